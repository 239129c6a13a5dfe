from __future__ import annotations

from headrace.model.job import Outcome
from headrace.protocol.consume import renew
from headrace.protocol.operations import pause
from headrace.protocol.produce import cancel
from tests.scripts.stage import KEEP, SECOND, START, Stage

LEASE = 15 * SECOND


def test_everything_held_is_kept_for_another_lease(stage: Stage) -> None:
    stage.register()
    stage.now += 10 * SECOND
    answer = stage.run(renew(stage.keys, "w1", LEASE, ["load", "3"]))
    assert (answer.alive, answer.now, answer.lapse, answer.lapsing) == (True, stage.now, stage.now + LEASE, "w1")
    assert stage.members("owners") == {"w1": stage.now + LEASE}
    assert stage.client.hget(stage.keys("owner:w1"), "load") == b"3"
    assert (answer.due, answer.cancels, answer.parking, answer.over, answer.bytes, answer.kept) == (0, (), (), 0, 0, 0)
    assert answer.resumes == 0


def test_a_lost_lease_does_not_come_back(stage: Stage) -> None:
    assert not stage.run(renew(stage.keys, "w1", LEASE, [])).alive
    stage.register()
    stage.lapse()
    before = stage.everything()
    assert not stage.run(renew(stage.keys, "w1", LEASE, ["load", "3"])).alive
    assert stage.everything() == before


def test_the_lease_that_ends_first_is_named(stage: Stage) -> None:
    stage.register("w1", lease=3 * SECOND)
    stage.register("w2", lease=9 * SECOND)
    answer = stage.run(renew(stage.keys, "w2", LEASE, []))
    assert (answer.lapsing, answer.lapse) == ("w1", START + 3 * SECOND)


def test_what_waits_elsewhere_is_told(stage: Stage) -> None:
    parked, kept = stage.running(task="later.on"), stage.running()
    stage.end(parked, "parked")
    stage.end(kept, "succeeded", b"12345", KEEP)
    stage.put(delay=4 * SECOND)
    asked = stage.running()
    stage.run(cancel(stage.keys, asked.id, KEEP))
    answer = stage.run(renew(stage.keys, "w1", LEASE, []))
    assert answer.cancels == (asked.id,)
    assert answer.parking == ("later.on",)
    assert (answer.due, answer.over) == (START + 4 * SECOND, START + KEEP)
    assert (answer.bytes, answer.kept) == (5, 1)


def test_many_cancellations_arrive_in_pieces(stage: Stage) -> None:
    stage.put(700)
    claims = stage.take()
    for claim in claims:
        stage.run(cancel(stage.keys, claim.id, KEEP))
    heard: set[str] = set()
    while len(heard) < 700:
        ids = stage.run(renew(stage.keys, "w1", LEASE, [])).cancels
        assert ids
        assert len(ids) <= 500
        heard |= set(ids)
        stage.settle(*(Outcome(c.id, c.token, "cancelled") for c in claims if c.id in ids))


def test_work_without_a_token_gets_one(stage: Stage) -> None:
    stage.register()
    stage.put()
    stage.client.delete(stage.keys.wake("default"))
    stage.run(renew(stage.keys, "w1", LEASE, [], ["default", "empty"]))
    assert stage.client.zcard(stage.keys.wake("default")) == 1
    assert not stage.client.exists(stage.keys.wake("empty"))


def test_queues_with_ready_jobs_that_are_not_paused_are_counted(stage: Stage) -> None:
    stage.register()
    assert stage.run(renew(stage.keys, "w1", LEASE, [], ["default", "low"])).ready == 0
    for queue in ("default", "low", "other"):
        stage.put(queue=queue)
    assert stage.run(renew(stage.keys, "w1", LEASE, [], ["default", "low", "none"])).ready == 2
    stage.run(pause(stage.keys, "low", 0))
    assert stage.run(renew(stage.keys, "w1", LEASE, [], ["default", "low"])).ready == 1


def test_the_next_end_of_a_pause_is_told(stage: Stage) -> None:
    stage.register()
    for queue, duration in (("a", 9 * SECOND), ("b", 4 * SECOND), ("c", 0)):
        stage.run(pause(stage.keys, queue, duration))
    assert stage.run(renew(stage.keys, "w1", LEASE)).resumes == START + 4 * SECOND


def test_how_many_jobs_it_holds_is_told_also_where_nothing_else_is(stage: Stage) -> None:
    stage.put(3)
    claims = stage.take()
    assert stage.run(renew(stage.keys, "w1", LEASE)).held == 3
    stage.end(claims[0])
    assert stage.run(renew(stage.keys, "w1", LEASE)).held == 2


def test_its_queues_that_are_paused_are_told(stage: Stage) -> None:
    stage.register()
    for queue in ("a", "b"):
        stage.run(pause(stage.keys, queue))
    assert stage.run(renew(stage.keys, "w1", LEASE, [], ["default", "b"])).paused == ("b",)
    assert stage.run(renew(stage.keys, "w1", LEASE)).paused == ()


def test_a_renewal_of_one_that_knows_of_a_tick_costs_nothing_beside_schedules(stage: Stage) -> None:
    def renewed(*, ticks: bool) -> tuple[int | None, int]:
        before = stage.commands()
        answer = stage.run(renew(stage.keys, "w1", LEASE, [], ["default"], ticks=ticks))
        return answer.tick, stage.commands() - before

    stage.register()
    renewed(ticks=True)
    nothing = renewed(ticks=True)[1]
    due = stage.now + 9 * SECOND
    stage.client.zadd(stage.keys("ticking"), {"nightly": due, "weekly": due + SECOND})
    assert renewed(ticks=True) == (due, nothing + 1)
    assert renewed(ticks=False) == (None, nothing)
    # Nor is it told where there is something else to tell.
    stage.put(delay=4 * SECOND)
    assert renewed(ticks=False)[0] is None
    assert renewed(ticks=True)[0] == due
    stage.client.delete(stage.keys("ticking"))


def test_a_renewal_asks_only_until_it_has_found_all_that_exists(stage: Stage) -> None:
    def commands(queues: tuple[str, ...] = ("default", "b")) -> int:
        before = stage.commands()
        stage.run(renew(stage.keys, "w1", LEASE, [], queues))
        return stage.commands() - before

    stage.register()
    commands()
    nothing = commands()
    stage.finished("succeeded", b"12345")
    commands()
    assert commands() == nothing + 4
    # Of which each is told, however many others there are.
    for queue in ("b", "c"):
        stage.run(pause(stage.keys, queue, 7 * SECOND))
    stage.put(queue="b")
    stage.put(delay=4 * SECOND)
    answer = stage.run(renew(stage.keys, "w1", LEASE, [], ("default", "b")))
    assert (answer.due, answer.kept, answer.paused, answer.ready) == (stage.now + 4 * SECOND, 1, ("b",), 0)
    assert answer.resumes == stage.now + 7 * SECOND
