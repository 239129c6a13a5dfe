"""Housekeeping with a clock by hand and replies by hand: what is due when, and what each reply leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from headrace.protocol import consume
from headrace.protocol.ticks import Row
from headrace.worker.dispatcher.maintenance import AGAIN, ASK_AGAIN, BATCH, RENEW, Maintenance
from tests.worker.worker_states import arguments, desk_of, worker_state

LEASE = 15.0
SECOND = 1_000_000


def maintenance(expected: int = 0, schedules: Sequence[Row] = (), **settings: object) -> Maintenance:
    tasks = {"known": SimpleNamespace(name="known", kind="process")}
    worker = worker_state(tasks, lease=LEASE, **settings)
    worker.schedules = schedules
    desk = desk_of(worker)
    made = Maintenance(worker, desk, tuple, lambda: expected)
    desk.owner = "me"
    made.begin("me", 100.0)
    return made


def names(made: Maintenance, now: float) -> list[str]:
    return [call.script.name for call, _ in made.steps(now)]


def renewed(made: Maintenance, at: float, **facts: object) -> None:
    """Let the renewal that is due at ``at`` go out, and answer it."""
    steps = made.steps(at)
    (handler,) = [handler for call, handler in steps if call.script.name == "renew"]
    handler(consume.Renewed(True, **facts))  # type: ignore[arg-type]


def test_renewals_leave_time_for_a_second_try() -> None:
    made = maintenance()
    assert made.next == 100
    assert names(made, 100) == ["renew"]
    assert made.next == 100 + LEASE * RENEW
    assert names(made, made.next - 0.1) == []
    assert names(made, made.next) == ["renew"]
    assert RENEW < 0.5


def test_only_a_renewal_that_was_asked_for_asks_for_a_tick_where_one_is_known() -> None:
    made = maintenance()

    def asks(at: float, tick: int | None) -> bool:
        (call, handler), *_ = (step for step in made.steps(at) if step[0].script.name == "renew")
        handler(consume.Renewed(True, now=SECOND, tick=tick))
        return arguments(call)["ticks"] == 1

    made.renewal.renew_soon()
    assert asks(100, 0)
    assert asks(106, 61 * SECOND)
    assert not asks(112, None)
    # The tick is still known.
    assert made.ticks.at <= 112 + 60
    # News that come while an answer is under way are not in it.
    made.renewal.renew_soon()
    (call, handler), *_ = (step for step in made.steps(113) if step[0].script.name == "renew")
    assert arguments(call)["ticks"] == 1
    made.renewal.renew_soon()
    handler(consume.Renewed(True, now=SECOND, tick=61 * SECOND))
    assert asks(114, 61 * SECOND)
    assert not asks(120, None)
    made.begin("other", 121)
    assert asks(121, 0)


def test_the_lease_counts_from_before_the_renewal_was_sent() -> None:
    made = maintenance()
    assert made.renewal.lease_until == 100 + LEASE
    (step,) = made.steps(103)
    assert made.renewal.lease_until == 100 + LEASE
    step[1](consume.Renewed(True))
    assert made.renewal.lease_until == 103 + LEASE


def test_a_lost_lease_is_noticed() -> None:
    made = maintenance()
    (step,) = made.steps(100)
    step[1](consume.Renewed(False))
    assert made.renewal.gone
    made.begin("me again", 120)
    assert not made.renewal.gone


def test_renewals_that_count_other_jobs_than_we_do_are_counted() -> None:
    made = maintenance(expected=3)
    for at, held, doubtful in ((100, 2, False), (106, 3, False), (112, 2, False), (118, 4, True), (124, 2, False)):
        renewed(made, at, held=held)
        assert made.renewal.take_doubts(2) == doubtful


def test_due_jobs_are_promoted_when_they_are_due_by_the_servers_clock() -> None:
    made = maintenance()
    renewed(made, 100, now=5_000 * SECOND, due=5_002 * SECOND)
    assert made.next == 102
    (step,) = made.steps(102)
    assert step[0].script.name == "promote"
    step[1]((3, 5_002 * SECOND, 5_004 * SECOND, 0))
    assert made.next == 104


def test_a_retry_of_our_own_is_promoted_without_being_told() -> None:
    made = maintenance()
    renewed(made, 100)
    made.promotion.expect(101.5)
    made.promotion.expect(103)
    assert made.next == 101.5
    assert names(made, 101.5) == ["promote"]


def test_a_retry_that_is_due_is_promoted_though_a_claim_from_before_it_is_answered_after_it() -> None:
    """On a slow line it was forgotten until the next renewal."""
    made = maintenance()
    renewed(made, 100, now=50 * SECOND)
    made.promotion.expect(102)
    made.promotion.learn(103, 50 * SECOND, 0)
    assert names(made, 103) == ["promote"]
    made.promotion.learn(103, 50 * SECOND, 0)
    assert names(made, 104) == []


def test_an_answer_that_is_read_late_puts_off_nothing() -> None:
    """The claim that a promotion has woken is answered on another connection, and may be read before it."""
    made = maintenance()
    renewed(made, 100, now=50 * SECOND, due=51 * SECOND)
    (step,) = made.steps(101)
    made.promotion.learn(101.003, 51 * SECOND + 2000, 51 * SECOND + 100_000)
    step[1]((1, 51 * SECOND + 1000, 0, 0))
    assert abs(made.next - 101.101) < 1e-6


def test_the_worker_that_opened_gates_asks_again_when_the_next_ones_open() -> None:
    """The worker that starts the jobs behind them is told, and may be killed."""
    made = maintenance()
    renewed(made, 100, now=50 * SECOND, due=51 * SECOND)
    (step,) = made.steps(101)
    step[1]((1, 51 * SECOND, 0, 1))
    assert made.next == 101 + ASK_AGAIN
    (step,) = made.steps(made.next)
    step[1]((0, 51 * SECOND, 0, 0))
    assert names(made, 103) == []


def test_what_is_overdue_is_promoted_at_once() -> None:
    made = maintenance()
    renewed(made, 100, now=50 * SECOND, due=40 * SECOND)
    assert names(made, 100) == ["promote"]


def test_a_neighbour_that_was_given_up_is_reclaimed_at_once() -> None:
    """Its end is 0 since another worker began to reclaim it, and died; it stands before all others."""
    made = maintenance()
    renewed(made, 100, now=10 * SECOND, lapse=0, lapsing="neighbour")
    assert "reclaim" in names(made, 101)


def test_a_lapsing_neighbour_is_reclaimed_at_the_end_of_its_lease_and_not_sooner() -> None:
    made = maintenance()
    renewed(made, 100, now=10 * SECOND, lapse=13 * SECOND, lapsing="neighbour")
    assert names(made, 102.9) == []
    (step,) = made.steps(103.1)
    assert step[0].script.name == "reclaim"
    step[1](("done", 2))
    # There may be another one behind it: asked at once.
    assert names(made, 103.1) == ["renew"]


def test_a_neighbour_that_renewed_in_time_is_left_alone() -> None:
    made = maintenance()
    renewed(made, 100, now=10 * SECOND, lapse=16.5 * SECOND, lapsing="neighbour")
    renewed(made, 106, now=16 * SECOND, lapse=31 * SECOND, lapsing="neighbour")
    assert names(made, 107) == []


def test_its_own_lease_is_no_ones_to_reclaim() -> None:
    made = maintenance()
    renewed(made, 100, now=10 * SECOND, lapse=11 * SECOND, lapsing="me")
    assert names(made, 104.9) == []


def test_a_victim_with_much_to_reclaim_is_reclaimed_in_pieces() -> None:
    made = maintenance()
    renewed(made, 100)
    made.reclaim.add("victim", is_dead=True)
    assert made.next == 0
    for word in ("some", "some", "done"):
        (step,) = made.steps(100.1)
        assert step[0].script.name == "reclaim"
        step[1]((word, BATCH))
    assert names(made, 100.2) == ["renew"], "no piece is left, and the renewal names another incarnation"


def test_what_makes_jobs_ready_is_owed_until_it_is_answered() -> None:
    made = maintenance()
    renewed(made, 100, parking=("known",))
    made.reclaim.add("victim", is_dead=True)
    (reclaim,) = made.steps(100.1)
    assert made.may_make_ready(100.1), "a burst worker would leave before the jobs of the dead are ready"
    reclaim[1](("gone", 0))
    assert made.may_make_ready(100.1)
    _, moved = made.unparking.step("known", 3)
    assert made.may_make_ready(100.1)
    moved(2)
    assert not made.may_make_ready(100.1)


def test_tasks_that_are_known_here_are_unparked_while_there_is_room_until_none_is_left() -> None:
    made = maintenance()
    renewed(made, 100, parking=("unknown", "known"))
    assert made.unparking.parked == {"known"}
    call, moved = made.unparking.step("known", 10_000)
    assert call.script.name == "unpark"
    moved(BATCH)
    assert made.unparking.parked == {"known"}
    _, moved = made.unparking.step("known", 7)
    assert made.unparking.parked == set()
    moved(6)
    assert made.unparking.parked == set()


def test_jobs_that_are_parked_while_an_answer_is_on_its_way_are_not_forgotten() -> None:
    made = maintenance()
    renewed(made, 100, parking=("known",))
    _, moved = made.unparking.step("known", 7)
    made.unparking.parked.add("known")
    moved(0)
    assert made.unparking.parked == {"known"}


def test_retention_ends_when_the_server_says_and_goes_on_while_batches_are_full() -> None:
    made = maintenance()
    renewed(made, 100, now=10 * SECOND, over=13 * SECOND)
    assert names(made, 102.9) == []
    (step,) = made.steps(103)
    assert step[0].script.name == "sweep"
    step[1]((BATCH, 13 * SECOND, 0))
    (step,) = made.steps(103.1)
    step[1]((5, 13 * SECOND, 23 * SECOND))
    assert names(made, 104.9) == []


def test_too_much_that_is_kept_is_swept_at_once() -> None:
    made = maintenance(max_finished=10, max_finished_bytes=1000)
    renewed(made, 100)
    made.settled(10, 1000, 0, 101)
    assert names(made, 101) == []
    made.settled(11, 0, 0, 101)
    assert names(made, 101) == ["sweep"]
    made.settled(0, 1001, 0, 102)
    assert names(made, 102) == ["sweep"]


def test_cancellations_that_a_message_missed_come_with_the_renewal() -> None:
    made = maintenance()
    renewed(made, 100, cancels=("a", "b"))
    assert list(made.renewal.cancels) == ["a", "b"]


def test_a_pause_ends_when_it_ends_by_the_servers_clock() -> None:
    made = maintenance()
    renewed(made, 100, now=5_000 * SECOND, resumes=5_002 * SECOND)
    assert made.next == 102
    assert made.may_make_ready(101.95)
    (step,) = made.steps(102)
    assert step[0].script.name == "resume_due"
    assert made.may_make_ready(102), "it is not answered yet"
    step[1]((1, 5_002 * SECOND, 5_004 * SECOND))
    assert (made.next, made.may_make_ready(103)) == (104, False)
    # Another end was said meanwhile, or somebody resumed the queue.
    made.renewal.renew_soon()
    renewed(made, 103, now=5_003 * SECOND)
    assert made.next == 103 + LEASE * RENEW


def test_whatever_is_due_sooner_than_what_was_known_comes_sooner() -> None:
    """A workflow that stays for a month was asked about in a month, and with it all that came to their ends before."""
    made = maintenance()
    day = 86_400 * SECOND
    renewed(made, 100, now=SECOND, ends=30 * day, over=30 * day, chore=30 * day)
    renewed(made, 107, now=6 * SECOND, ends=8 * SECOND, over=8 * SECOND, chore=8 * SECOND)
    assert sorted(names(made, 109)) == ["lapse", "sweep", "tend"]


def test_a_piece_that_is_due_later_is_done_then_and_not_at_the_next_renewal() -> None:
    """Such a piece was done at renewals only."""
    made = maintenance()
    renewed(made, 100, now=SECOND, chore=SECOND)
    (step,) = made.steps(101)
    assert step[0].script.name == "tend"
    step[1]((0, 2 * SECOND, 4 * SECOND))
    assert names(made, 102.9) == []
    (step,) = made.steps(103)
    assert step[0].script.name == "tend"
    step[1]((0, 4 * SECOND, 0))
    assert names(made, 105) == []


def test_limits_are_declared_again_while_newer_code_says_otherwise() -> None:
    made = maintenance()
    renewed(made, 100)
    made.limits.on_reply(2, 100)
    assert "limit_declare" not in names(made, 100 + AGAIN - 0.01)
    ((_, handler),) = [step for step in made.steps(100 + AGAIN) if step[0].script.name == "limit_declare"]
    handler(0)
    assert "limit_declare" not in names(made, 100 + 10 * AGAIN)
    made.limits.on_reply(-1, 500)
    assert "limit_declare" in names(made, 500)
    # At once only the first time: an incarnation that is gone hears it from its renewal.
    made.limits.on_reply(-1, 501)
    assert made.limits.at == 501 + ASK_AGAIN
    made.limits.first("next", 502)
    made.limits.on_reply(-1, 503)
    assert made.limits.at == 503


def test_what_other_code_has_replaced_is_declared_again() -> None:
    made = maintenance(schedules=[("nightly", "f1", []), ("weekly", "f1", [])])
    renewed(made, 100)
    renewed(made, 106, replaced=("limits",))
    assert "limit_declare" in names(made, 106)
    assert "schedule_declare" not in names(made, 107)
    renewed(made, 112, replaced=("schedules", "limits"))
    found = {step[0].script.name: step for step in made.steps(112)}
    assert {"limit_declare", "schedule_declare"} <= found.keys()
    # Newer code is still there; it may leave at any time.
    found["limit_declare"][1](1)
    found["schedule_declare"][1](["superseded", "same"])
    assert not {"limit_declare", "schedule_declare"} & set(names(made, 112 + AGAIN - 0.01))
    assert {"limit_declare", "schedule_declare"} <= set(names(made, 112 + AGAIN))


def test_what_the_server_may_have_forgotten_is_declared_again() -> None:
    made = maintenance(schedules=[("nightly", "f1", [])])
    renewed(made, 100)
    assert {"limit_declare", "schedule_declare"}.isdisjoint(names(made, 101))
    made.declare_anew(102)
    assert {"limit_declare", "schedule_declare"} <= set(names(made, 102))


def test_ready_jobs_are_counted_once_a_minute_by_the_servers_clock() -> None:
    worker, found = worker_state({}, lease=LEASE), list[tuple[Mapping[str, int], float, bool]]()
    worker.sample = lambda sizes, at, is_first: found.append((sizes, at, is_first))
    desk = desk_of(worker)
    made, desk.owner = Maintenance(worker, desk, tuple, lambda: 0), "me"
    made.begin("me", 100.0)
    renewed(made, 100, now=30 * SECOND)
    assert names(made, 129) == ["renew"]
    ((call, handler),) = [step for step in made.steps(130) if step[0].script.name == "sample"]
    handler((60 * SECOND, {"default": 3}))
    assert (call.script.name, found) == ("sample", [({"default": 3}, 60.0, True)])
    ((_, handler),) = [step for step in made.steps(190) if step[0].script.name == "sample"]
    handler((121 * SECOND, None))
    assert len(found) == 1, "another dispatcher was first"
    assert "sample" not in names(made, 240)
    assert "sample" in names(made, 250)
