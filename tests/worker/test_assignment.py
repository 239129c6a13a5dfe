"""Which runner gets which job: by what was measured, never behind a slow one, suspects alone."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.job import Claim
from headrace.model.retry import Retry
from headrace.tasks.task import RunPlan
from headrace.worker.dispatcher.assignment import (
    BATCH,
    LEAST_AHEAD,
    MOST_AHEAD,
    SINGLES,
    STALL,
    Assignment,
    Attempt,
    RunnerHandle,
)

PLAN = RunPlan(Retry(max=0), None, None, 0, 0)
NOW = 1000.0


class Table:
    """A hand-out and its seats."""

    def __init__(self, prefetch_seconds: float = 0.005) -> None:
        self.assignment = Assignment(prefetch_seconds)
        self._token = 0

    def handle(self, kind: str = "process", slots: int = 1) -> RunnerHandle:
        number = len(self.assignment.handles) + 1
        handle = RunnerHandle(number, kind, 0, slots)
        places = self.assignment.places(kind)
        places.resize(places.snapshot.size + 1)
        self.assignment.attach(handle)
        return handle

    def single(self, kind: str) -> None:
        handle = self.handle(kind)
        handle.single = True
        self.assignment.detach(handle)

    def start(self, task: str, crashes: int = 0, kind: str = "process", now: float = NOW) -> Attempt | None:
        """Choose a seat for a job and book it there."""
        handle = self.assignment.choose(kind, task, now, alone=crashes > 0)
        if handle is None:
            return None
        self._token += 1
        claim = Claim("id", self._token, "default", 0, task, b"", self._token, b"", "", 0, crashes, 0, 0, False)
        start = Attempt(claim, PLAN, handle)
        self.assignment.assign(handle, start, now)
        return start

    def end(self, start: Attempt) -> None:
        del start.handle.starts[start.claim.number]
        self.assignment.release(start.handle, start)
        self.assignment.reindex(start.handle)


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_limited_job_prefers_the_runner_of_its_key_and_waits_for_none(table: Table) -> None:
    both = {table.handle(), table.handle()}

    def prefer(token: int) -> RunnerHandle | None:
        claim = Claim("id", token, "default", 0, "job", b"", token, key="k", lane="default|api|")
        handle = table.assignment.choose_by_place("process", claim, NOW, alone=False)
        if handle is not None:
            table.assignment.assign(handle, Attempt(claim, PLAN, handle), NOW)
        return handle

    first, second, third = prefer(1), prefer(2), prefer(3)
    assert ({first, second}, third) == (both, None)
    for token, handle in ((1, first), (2, second)):
        assert handle is not None
        table.end(handle.starts[token])
    assert prefer(4) is first


def test_a_runner_that_leaves_does_not_hide_the_one_that_has_its_place_since(table: Table) -> None:
    """A worker was made smaller and larger again while a job ran: the new runner was given no job."""
    places, leaving = table.assignment.places("process"), table.handle()
    places.resize(0)
    places.resize(1)
    follower = RunnerHandle(2, "process", 0)
    table.assignment.attach(follower)
    table.assignment.reindex(leaving)
    assert places.ranks.least() is follower.place


def test_an_unmeasured_task_is_never_sent_ahead(table: Table) -> None:
    table.handle()
    assert table.start("new") is not None
    assert table.start("new") is None


def test_a_tiny_task_is_sent_ahead_up_to_the_window(table: Table) -> None:
    table.handle()
    table.assignment.measure("tiny", 0.001)
    assert sum(table.start("tiny") is not None for _ in range(20)) == 5
    table.assignment.costs["free"] = 0.0
    assert sum(table.start("free") is not None for _ in range(MOST_AHEAD)) == LEAST_AHEAD - 5


def test_claims_come_in_batches_whatever_a_runner_may_hold(table: Table) -> None:
    """Room for one job is no claim of its own, where a window by cost is larger than what the runner may hold."""
    handle = table.handle()
    table.assignment.measure("free", 0.0)
    while table.start("free") is not None:
        pass
    assert table.assignment.rooms(NOW)["process"] == 0
    for token in list(handle.starts)[: BATCH - 1]:
        table.assignment.release(handle, handle.starts.pop(token))
    assert table.assignment.rooms(NOW)["process"] == 0
    table.assignment.release(handle, handle.starts.popitem()[1])
    assert table.assignment.rooms(NOW)["process"] == BATCH


def test_a_slow_task_is_never_sent_ahead(table: Table) -> None:
    table.handle()
    table.assignment.measure("slow", 0.5)
    assert table.start("slow") is not None
    assert table.start("slow") is None


def test_a_slow_job_is_believed_faster_than_a_quick_one(table: Table) -> None:
    assignment = table.assignment
    assignment.measure("task", 0.001)
    assignment.measure("task", 1.0)
    after_slow = assignment.costs["task"]
    assignment.measure("other", 1.0)
    assignment.measure("other", 0.001)
    assert after_slow > 0.25
    assert assignment.costs["other"] > 0.85


def test_work_goes_to_the_idle_and_then_to_the_least_loaded(table: Table) -> None:
    first, second = table.handle(), table.handle()
    table.assignment.measure("tiny", 0.001)
    table.assignment.measure("small", 0.002)
    handles = [table.start(task).handle for task in ("small", "tiny", "tiny", "tiny")]  # type: ignore[union-attr]
    assert handles == [first, second, second, first]


def test_nothing_is_sent_to_a_runner_that_makes_no_progress(table: Table) -> None:
    handle = table.handle()
    table.assignment.measure("tiny", 0.0001)
    assert table.start("tiny")
    late = NOW + STALL * 1.1
    assert table.assignment.stalled(handle, late)
    assert table.start("tiny", now=late) is None
    assert sum(table.assignment.rooms(late).values()) == 0


def test_a_suspect_travels_alone(table: Table) -> None:
    handle = table.handle()
    table.assignment.measure("tiny", 0.0001)
    suspect = table.start("tiny", crashes=1)
    assert suspect is not None
    assert table.start("tiny") is None
    assert sum(table.assignment.rooms(NOW).values()) == 0
    table.end(suspect)
    assert not handle.suspect
    assert table.start("tiny") is not None
    assert table.start("tiny", crashes=1) is None


def test_what_is_booked_off_is_what_was_booked_however_much_was_learned(table: Table) -> None:
    handle = table.handle()
    table.assignment.measure("tiny", 0.001)
    starts = [table.start("tiny") for _ in range(3)]
    table.assignment.measure("tiny", 0.004)
    for start in starts[:2]:
        assert start is not None
        table.end(start)
    assert handle.load == pytest.approx(0.001)


def test_threads_are_given_as_many_as_they_have_slots(table: Table) -> None:
    table.handle("thread", slots=3)
    assert sum(table.assignment.rooms(NOW).values()) == 3
    assert sum(table.start("task", kind="thread") is not None for _ in range(5)) == 3
    assert sum(table.assignment.rooms(NOW).values()) == 0


def test_threads_are_sent_tiny_jobs_ahead_once_all_are_busy(table: Table) -> None:
    handle = table.handle("thread", slots=3)
    table.assignment.measure("tiny", 0.001)
    table.assignment.measure("slow", 1.0)
    table.assignment.mean = 0.001
    assert sum(table.assignment.rooms(NOW).values()) == 3 - 1 + table.assignment.window() == 7
    assert sum(table.start("tiny", kind="thread") is not None for _ in range(9)) == 5
    assert len(handle.take_back(2)) == 2
    assert table.start("slow", kind="thread") is None, "tiny jobs alone are sent ahead"


def test_beside_slow_jobs_threads_are_sent_no_more_than_they_run(table: Table) -> None:
    handle = table.handle("thread", slots=3)
    table.assignment.measure("tiny", 0.0001)
    table.assignment.measure("slow", 1.0)
    assert table.start("slow", kind="thread") is not None
    assert sum(table.start("tiny", kind="thread") is not None for _ in range(9)) == 2
    handle.progress = NOW - 2 * STALL
    table.end(next(start for start in handle.starts.values() if start.claim.task == "tiny"))
    assert table.start("tiny", kind="thread") is not None, "a free thread is given its job, also beside one that hangs"


def test_free_threads_beside_a_slow_job_are_used_while_another_runner_is_full_of_tiny_jobs(table: Table) -> None:
    slow, tiny = table.handle("thread", slots=3), table.handle("thread", slots=3)
    table.assignment.measure("tiny", 0.001)
    table.assignment.measure("slow", 1.0)
    assert table.start("slow", kind="thread") is not None
    while len(tiny.starts) < 5:
        assert table.start("tiny", kind="thread") is not None
    assert len(slow.starts) == 3, "free threads come before work that is sent ahead"
    table.end(next(start for start in slow.starts.values() if start.claim.task == "tiny"))
    start = table.start("slow", kind="thread")
    assert start is not None
    assert start.handle is slow


def test_a_claim_is_for_whole_windows_so_that_batches_are_large(table: Table) -> None:
    table.handle()
    assert sum(table.assignment.rooms(NOW).values()) == 1
    # A little less than a tenth, so that rounding takes none away.
    table.assignment.measure("tiny", 0.000499)
    assert table.assignment.window() == 10
    starts = [start for _ in range(10) if (start := table.start("tiny"))]
    assert len(starts) == 10
    for start in starts[:4]:
        table.end(start)
    assert sum(table.assignment.rooms(NOW).values()) == 0
    table.end(starts[4])
    assert sum(table.assignment.rooms(NOW).values()) == 5


def test_ahead_of_zero_sends_one_at_a_time() -> None:
    table = Table(prefetch_seconds=0)
    table.handle()
    table.assignment.measure("tiny", 1e-6)
    assert table.start("tiny") is not None
    assert table.start("tiny") is None


def test_a_runner_that_is_to_be_replaced_gets_no_more_than_is_left_of_its_number(table: Table) -> None:
    handle = table.handle()
    handle.quota, handle.done = 10, 7
    table.assignment.costs["free"], table.assignment.mean = 0.0, 0.0
    assert sum(table.assignment.rooms(NOW).values()) == 3
    assert sum(table.start("free") is not None for _ in range(10)) == 3


def test_a_runner_that_leaves_gets_nothing(table: Table) -> None:
    handle = table.handle()
    handle.leaving = True
    table.assignment.reindex(handle)
    assert sum(table.assignment.rooms(NOW).values()) == 0
    assert table.start("task") is None


def test_runners_for_suspects_are_bounded_and_take_nobody_else(table: Table) -> None:
    assignment: Any = table.assignment
    assert assignment.single("thread") is None
    for n in range(SINGLES):
        assert assignment.wants_single("thread")
        if n % 2:
            assignment.coming["thread"] += 1
        else:
            table.single("thread")
    assert not assignment.wants_single("thread")
    assert assignment.wants_single("async")
    assert assignment.single("thread").single
    assert assignment.single("async") is None
    assert sum(assignment.rooms(NOW).values()) == 0
    assert table.start("task", kind="thread") is None


def test_a_runner_that_is_asked_for_what_it_has_not_begun_is_given_nothing_meanwhile(table: Table) -> None:
    """The answer is a number, of the last jobs that it was given: one more would be taken for one of them."""
    handle = table.handle()
    table.assignment.measure("tiny", 0.0001)
    starts = [table.start("tiny") for _ in range(3)]
    handle.recalling = True
    assert table.start("tiny") is None
    assert handle.take_back(2) == starts[1:]
    assert table.start("tiny") is not None
