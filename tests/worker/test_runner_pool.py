"""What becomes of runners and of what they run: by the actions that are decided and the ends that are returned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.model.ended import Succeeded
from headrace.model.job import Claim, parse_error
from headrace.model.options import Kind
from headrace.model.retry import Retry
from headrace.tasks.task import RunPlan
from headrace.worker.dispatcher.assignment import CALM, LEAST_AHEAD, MOST_AHEAD, Attempt
from headrace.worker.dispatcher.dispatcher_events import (
    Action,
    Heard,
    Notify,
    RunnerDied,
    TakeBack,
    TakenBack,
)
from headrace.worker.dispatcher.job_stops import SHOW
from headrace.worker.dispatcher.runner_pool import RunnerPool
from headrace.worker.messages import Done, Exit, FromRunner, JobProgress, Signal, Spawn, Spawned, Stop
from headrace.worker.worker_options import WorkerOptions
from tests.worker.worker_states import worker_state

PLAN = RunPlan(Retry(max=0), 5, 100, 0, 0)


class Rig:
    """A pool with one runner, number 7, and no clock."""

    def __init__(self, kind: Kind, **options: int) -> None:
        worker = worker_state(options=WorkerOptions(**options))  # type: ignore[arg-type]
        self.actions, self.timers = worker.actions, worker.timers
        self.runner_pool = RunnerPool(worker)
        self.runner_pool.supply.resize(kind, 1)
        self.runner_pool.supply.up(Spawned(7, kind, 70), 0)
        self.handle = self.runner_pool.assignment.handles[7]
        self.actions.take()

    def give(self, *tokens: int, now: float = 0, sent: bool = True) -> list[Attempt]:
        starts = [
            Attempt(Claim(f"id{token}", token, "default", 0, "task", b"", token), PLAN, self.handle) for token in tokens
        ]
        for start in starts:
            self.runner_pool.assignment.assign(self.handle, start, now)
        self.runner_pool.give(starts, now)
        if sent:
            self.actions.take()
        return starts

    def done(self) -> Sequence[Action]:
        return self.actions.take()


@pytest.mark.parametrize("kind", ["process", "fork", "thread", "async"])
def test_a_soft_limit_is_told_again_until_the_start_ends(kind: Kind) -> None:
    """A runner that was slow to begin the code forgets a limit: the job then ran until its hard limit killed it."""
    rig = Rig(kind)
    (start,) = rig.give(1)
    rig.done()
    for now in (5.0, 5.1, 5.3):
        rig.runner_pool.stops.enforce(now - 0.01)
        assert not rig.done()
        rig.runner_pool.stops.enforce(now)
        assert Notify(7, Stop(1, "soft")) in rig.done()
    start.stop_reason = "cancel"
    rig.runner_pool.stops.enforce(9)
    assert not [one for one in rig.done() if isinstance(one, Notify)], "it was told to stop for another reason"


def test_limits_of_a_start_that_was_taken_back_do_not_count_for_the_next_of_its_job() -> None:
    """A thread that holds the interpreter keeps its mates from beginning: their limits run, and go on elsewhere."""
    rig = Rig("thread")
    rig.give(1)
    (back,) = rig.runner_pool.taken_back(TakenBack(7, 1), 4).back
    rig.give(back.claim.token, now=4)
    rig.done()
    rig.runner_pool.stops.enforce(8.9)
    assert not rig.done()
    rig.runner_pool.stops.enforce(9)
    assert Notify(7, Stop(1, "soft")) in rig.done()
    rig.runner_pool.stops.enforce(103.9)
    assert Signal(7, "kill") not in rig.done()
    rig.runner_pool.stops.enforce(104)
    assert rig.done() == [Signal(7, "stacks")]
    rig.runner_pool.stops.enforce(104 + SHOW)
    assert rig.done() == [Signal(7, "kill")]


def test_a_runner_that_stalled_is_sent_less_ahead_until_it_has_run_many_more() -> None:
    """On a busy machine whole windows were claimed, taken back and claimed again: 2.4 claims for each job."""
    rig = Rig("process")

    def ends(*tokens: int) -> int:
        rig.give(*tokens, now=10)
        rig.runner_pool.on_messages(Heard(7, [Done(token, Succeeded(b"", 0), 5, 0) for token in tokens]), 10)
        return rig.handle.most

    assert [ends(*range(1, CALM)), ends(CALM)] == [LEAST_AHEAD, MOST_AHEAD]
    rig.give(CALM + 1, CALM + 2, now=10)
    rig.runner_pool.recall_stalled(11)
    assert rig.handle.most == LEAST_AHEAD
    rig.runner_pool.taken_back(TakenBack(7, 1), 11)
    assert [ends(*range(2 * CALM, 3 * CALM - 1)), ends(3 * CALM)] == [LEAST_AHEAD, MOST_AHEAD]


def test_the_end_of_a_runner_makes_room_for_its_kind() -> None:
    """Nobody takes the place of one that ran a suspect alone: a job that waits for that would never be claimed again."""
    rig = Rig("async")
    rig.handle.single = True
    rig.runner_pool.assignment.freed.clear()
    rig.runner_pool.died(RunnerDied(7, 9), 2)
    assert rig.runner_pool.assignment.freed == {"async"}


def test_a_death_says_how_each_start_ended_and_returns_what_had_not_begun() -> None:
    rig = Rig("process")
    first, *others = rig.give(1, 2, 3)
    returned = rig.runner_pool.died(RunnerDied(7, signal=9, unstarted=2), 5)
    assert [(end.claim, end.ended.kind) for end in returned.ends] == [(first.claim, "crashed")]
    assert returned.back == others
    assert not rig.runner_pool.present


def test_a_job_that_was_not_sent_yet_when_its_runner_died_had_not_begun() -> None:
    """A turn that gave a job and then heard of a death charged a crash: the runner had no ticket of that job."""
    rig = Rig("process")
    first, *others = rig.give(1, 2)
    others += rig.give(3, 4, sent=False)
    returned = rig.runner_pool.died(RunnerDied(7, signal=9, unstarted=1), 5)
    assert [(end.claim, end.ended.kind) for end in returned.ends] == [(first.claim, "crashed")]
    assert returned.back == others


@pytest.mark.parametrize(
    ("stop", "kind", "why"),
    [
        ("limit", "interrupted", "another job of its process ran past its hard time limit: "),
        ("cancel", "interrupted", "another job of its process was cancelled and did not end: "),
        ("lease", "interrupted", "the worker could not keep its lease: "),
        ("kill", "interrupted", "the worker was told to stop at once: "),
        ("interrupt", "interrupted", "the worker stopped or reloaded, and its shutdown timeout was over: "),
        ("orphan", "crashed", "the supervisor of its worker died, and all its processes were killed"),
        ("", "crashed", "its process was ended by SIGKILL"),
    ],
)
def test_a_start_says_what_ended_its_runner(stop: str, kind: str, why: str) -> None:
    rig = Rig("thread")
    stops = rig.runner_pool.stops
    # The one that is looked at begins later, so that its own limit is not over.
    rig.give(1)
    rig.give(2, now=50)
    match stop:
        case "limit":
            stops.enforce(100)
            stops.enforce(100 + SHOW)
        case "cancel":
            stops.cancel("id1", 50)
            stops.enforce(60)
        case "lease":
            stops.fence(lambda _: True)
        case "kill":
            stops.kill_all("the worker was told to stop at once")
        case "interrupt":
            stops.stop_all("interrupt", 50)
            # Also where its own limit is over now.
            stops.enforce(150)
        case _:
            stops.orphaned = stop == "orphan"
    ended = rig.runner_pool.died(RunnerDied(7, signal=9), 60).ends[-1].ended
    error = parse_error(ended.data)
    assert error is not None
    assert (ended.kind, error.message.startswith(why)) == (kind, True), error.message


@pytest.mark.parametrize(("number", "kind"), [(9, "interrupted"), (11, "crashed")])
def test_a_runner_killed_for_a_dispatcher_that_slept_interrupts_its_job(number: int, kind: str) -> None:
    """The dispatcher guessed it from its lease, which the answer to an earlier renewal had moved: a crash was charged."""
    rig = Rig("process")
    rig.give(1)
    returned = rig.runner_pool.died(RunnerDied(7, signal=number, fenced=True), 5)
    assert [end.ended.kind for end in returned.ends] == [kind]


def test_a_cancelled_job_that_had_not_begun_ends_without_a_stop_and_its_mates_come_back() -> None:
    rig = Rig("process")
    rig.give(1, 2, 3)
    rig.done()
    rig.runner_pool.stops.cancel("id2", 0)
    assert rig.done() == [TakeBack(7, 3)]
    returned = rig.runner_pool.taken_back(TakenBack(7, 2), 0)
    assert [(end.claim.id, end.ended.kind) for end in returned.ends] == [("id2", "cancelled")]
    assert [start.claim.id for start in returned.back] == ["id3"]
    assert not rig.done()


def test_a_cancelled_job_that_began_meanwhile_is_stopped() -> None:
    rig = Rig("process")
    rig.give(1, 2)
    rig.done()
    rig.runner_pool.stops.cancel("id2", 0)
    assert rig.done() == [TakeBack(7, 2)]
    assert rig.runner_pool.taken_back(TakenBack(7, 0), 0) == ([], [])
    assert rig.done() == [Notify(7, Stop(2, "cancel")), Signal(7, "stop")]
    rig.runner_pool.taken_back(TakenBack(7, 0), 0)
    assert not rig.done(), "it is told once"


def test_what_waits_behind_a_slow_job_is_taken_back_and_asked_for_again_after_a_while() -> None:
    rig = Rig("process")
    rig.give(1, 2, 3)
    rig.done()
    rig.runner_pool.recall_stalled(0.001)
    assert not rig.done()
    now = rig.timers.at("stall")
    assert 0.01 < now < 0.02
    rig.runner_pool.recall_stalled(now)
    assert rig.done() == [TakeBack(7, 2)]
    assert rig.runner_pool.taken_back(TakenBack(7, 0), now) == ([], [])
    rig.runner_pool.recall_stalled(now)
    assert not rig.done()
    assert rig.timers.next(now) == rig.timers.at("stall") > now


@pytest.mark.parametrize(("option", "memory"), [({"recycle_jobs": 1}, 0), ({"recycle_memory": 100}, 101)])
def test_a_worn_runner_is_replaced_when_what_it_runs_has_ended(option: dict[str, int], memory: int) -> None:
    """Two jobs of a key must not run beside each other."""
    rig = Rig("process", **option)
    rig.give(1, 2)
    rig.done()
    rig.handle.done = 1
    rig.runner_pool.supply.recycle(rig.handle, memory)
    assert rig.done() == [Notify(7, Exit()), TakeBack(7, 2)]
    rig.runner_pool.taken_back(TakenBack(7, 1), 0)
    assert not rig.done(), "one runs"
    rig.runner_pool.died(RunnerDied(7, unstarted=0), 5)
    assert [type(one) for one in rig.done() if isinstance(one, Spawn | Signal)] == [Spawn]


def test_what_a_job_spends_again_and_again_is_one_sum_for_each_limit() -> None:
    """While the store was away, each word made the note longer, and was copied with it; the store read all of them."""
    rig = Rig("process")
    rig.give(1)
    words: list[FromRunner] = [JobProgress(1, None, "", (), spent=((limit, 2),)) for limit in ("api", "slow", "api")]
    rig.runner_pool.on_messages(Heard(7, words), 0)
    assert rig.runner_pool.notes[0][1].spent == (("api", 4), ("slow", 2))
