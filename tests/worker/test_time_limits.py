"""Deadlines of starts: which are due when, and that an ended start's are forgotten. No clock but the one given."""

from __future__ import annotations

from typing import Any

from headrace.model.job import Claim
from headrace.model.retry import Retry
from headrace.tasks.task import RunPlan
from headrace.worker.dispatcher.assignment import Attempt
from headrace.worker.dispatcher.job_stops import Limits


def start(token: int, timeout: float | None = None, hard: float | None = None) -> Attempt:
    claim = Claim("id", token, "default", 0, "task", b"", token, b"", "", 0, 0, 0, 0, False)
    nowhere: Any = None
    return Attempt(claim, RunPlan(Retry(max=0), timeout, hard, 0, 0), nowhere)


def due(limits: Limits, now: float) -> list[tuple[int, str]]:
    return [(deadline.number, deadline.stage) for deadline in limits.due(now)]


def test_without_limits_nothing_is_ever_due() -> None:
    limits = Limits(10)
    limits.begin(start(1), 0)
    assert limits.next == float("inf")
    assert due(limits, 1e9) == []


def test_the_hard_limit_follows_the_soft_one_after_the_kill_timeout() -> None:
    limits = Limits(10)
    limits.begin(start(1, timeout=5), 100)
    assert limits.next == 105
    assert due(limits, 104.9) == []
    assert due(limits, 105) == [(1, "soft")]
    assert due(limits, 114.9) == []
    assert due(limits, 115) == [(1, "hard")]


def test_a_hard_limit_of_its_own_replaces_the_kill_timeout() -> None:
    limits = Limits(10)
    limits.begin(start(1, timeout=5, hard=6), 0)
    assert due(limits, 6) == [(1, "soft"), (1, "hard")]


def test_a_hard_limit_may_stand_alone() -> None:
    limits = Limits(10)
    limits.begin(start(1, hard=3), 0)
    assert due(limits, 3) == [(1, "hard")]


def test_who_was_interrupted_is_interrupted_again_at_growing_distances() -> None:
    limits, one = Limits(10), start(1)
    limits.remind(one, 0)
    limits.remind(one, 1)
    assert due(limits, 0.09) == []
    assert due(limits, 0.1) == [(1, "again")]
    assert due(limits, 1.19) == []
    assert due(limits, 1.2) == [(1, "again")]


def test_deadlines_come_in_the_order_of_time_whatever_the_order_of_starts() -> None:
    limits = Limits(1)
    for token, timeout in ((1, 30.0), (2, 10.0), (3, 20.0)):
        limits.begin(start(token, timeout=timeout), 0)
    assert due(limits, 100) == [(2, "soft"), (2, "hard"), (3, "soft"), (3, "hard"), (1, "soft"), (1, "hard")]
    assert limits.next == float("inf")


def test_a_start_has_its_whole_time_whatever_the_one_before_took() -> None:
    """WS7: an ended start's deadlines are of nobody, and the next one's count from its own beginning."""
    limits = Limits(1)
    limits.begin(start(1, timeout=10), 0)
    limits.begin(start(2, timeout=10), 9)
    assert [token for token, _ in due(limits, 18.9)] == [1, 1]
    assert due(limits, 19) == [(2, "soft")]


def test_a_cancellation_is_followed_by_the_kill() -> None:
    limits = Limits(2)
    limits.cancel(start(7), 50)
    assert due(limits, 51.9) == []
    assert due(limits, 52) == [(7, "hard")]
