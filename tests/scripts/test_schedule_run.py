from __future__ import annotations

from headrace.model.ids import tick_of
from headrace.protocol import ticks
from headrace.protocol.ticks import run_schedule
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, tick_id, told
from tests.scripts.stage import Stage


def test_a_run_by_hand_is_a_tick_of_this_moment(stage: Stage) -> None:
    put(stage)
    found = [stage.run(run_schedule(stage.keys, f"r{n}", "s")) for n in range(3)]
    ids = [id for rows in found for _, id in rows or []]
    # Several within one millisecond are several jobs.
    assert len({*ids}) == 3
    assert {tick_of(id, "s") for id in ids} == {stage.now}
    assert sorted(stage.ready()) == sorted(ids)
    # A repeat after a lost reply tells of the same job.
    assert stage.run(run_schedule(stage.keys, "r1", "s")) == found[1]
    assert stage.run(run_schedule(stage.keys, "r9", "other")) is None


def test_a_run_by_hand_obeys_the_overlap_policy_unless_told(stage: Stage) -> None:
    put(stage, row(overlap="skip"))
    ((_, first),) = stage.run(run_schedule(stage.keys, "r1", "s")) or []
    stage.now += MINUTE
    assert stage.run(run_schedule(stage.keys, "r2", "s")) == [("skipped", first)]
    rows = stage.run(run_schedule(stage.keys, "r3", "s", overlap="allow_all"))
    assert rows is not None
    assert rows[0][0] == "ran"
    # A tick does not pass it either.
    fire(stage)
    stage.now += MINUTE
    fire(stage)
    assert [what for _, what, _ in told(stage)] == ["ran", "skipped", "ran", "skipped", "skipped"]


def test_a_backfill_leaves_out_what_ran(stage: Stage) -> None:
    put(stage)
    fire(stage)
    stage.now = FIRST
    fire(stage)
    stage.take()
    moments = [FIRST - MINUTE, FIRST]
    assert stage.run(run_schedule(stage.keys, "b1", "s", moments)) == [
        ("ran", tick_id("s", FIRST - MINUTE, ordered=False)),
        ("ran before", tick_id("s", FIRST, ordered=False)),
    ]
    again = stage.run(run_schedule(stage.keys, "b2", "s", moments, again=True))
    assert again == [
        ("ran", tick_id("s", FIRST - MINUTE, 1, ordered=False)),
        ("ran", tick_id("s", FIRST, 1, ordered=False)),
    ]
    assert [tick_of(id, "s") for _, id in again or []] == moments


def test_a_backfill_waits_for_its_turn(stage: Stage) -> None:
    put(stage)
    moments = [FIRST - n * MINUTE for n in range(5, 0, -1)]
    rows = stage.run(run_schedule(stage.keys, "b1", "s", moments, "buffer_all"))
    assert [word for word, _ in rows or []] == ["ran"] * 5
    ran: list[str] = []
    while claims := stage.take():
        (claim,) = claims
        ran.append(claim.id)
        stage.end(claim)
    assert [tick_of(id, "s") for id in ran] == moments


def test_a_buffer_of_one_holds_one_whether_a_tick_a_run_or_a_backfill_asks(stage: Stage) -> None:
    put(stage, row(overlap="buffer_one"))
    fire(stage)

    def by_hand(sender: str, *moments: int) -> list[str]:
        return [word for word, _ in stage.run(run_schedule(stage.keys, sender, "s", moments)) or []]

    assert by_hand("r1") == ["ran"]
    (claim,) = stage.take()
    assert by_hand("b1", FIRST - 2 * MINUTE, FIRST - MINUTE) == ["ran", "skipped"]
    assert by_hand("r2") == ["skipped"]
    stage.now = FIRST
    assert fire(stage).ran == 0
    assert len(stage.members("chain:cron:s")) == 1
    # The one that waited runs now, and its place is free for one more.
    stage.end(claim)
    (claim,) = stage.take()
    assert tick_of(claim.id, "s") == FIRST - 2 * MINUTE
    stage.now += MINUTE
    assert fire(stage).ran == 1
    assert by_hand("r3") == ["skipped"]


def test_a_tick_that_is_backfilled_before_it_is_due_runs_once(stage: Stage) -> None:
    put(stage)
    fire(stage)
    stage.run(run_schedule(stage.keys, "b1", "s", [FIRST]))
    stage.now = FIRST
    assert fire(stage).ran == 0
    assert len(stage.ready()) == 1
    assert [what for _, what, _ in told(stage)] == ["ran", "twice"]
    assert stage.run(ticks.read_schedules(stage.keys)).rows[0].runs == 1
