"""Log lines that repeat themselves are counted."""

from __future__ import annotations

from headrace.worker.dispatcher.endings import DispatcherLog


def test_a_flood_of_one_code_and_task_is_counted_and_told_when_its_second_is_over() -> None:
    flood = DispatcherLog()
    admitted = [flood.admits("job.failed", "a", 30, 100 + n / 1000) for n in range(542)]
    assert sum(admitted) == 10
    assert admitted[:10] == [True] * 10
    # Another task, and another code, are other lines.
    assert flood.admits("job.failed", "b", 30, 100.6)
    assert flood.admits("job.crashed", "a", 40, 100.6)
    assert flood.next == 101
    assert flood.rest(100.9) == []
    assert flood.rest(101) == [(30, "job.failed", "a", 532)]
    assert flood.rest(102) == []
    assert flood.admits("job.failed", "a", 30, 101.5)


def test_ten_lines_in_each_of_many_seconds_are_no_flood() -> None:
    flood = DispatcherLog()
    assert all(flood.admits("job.failed", "a", 30, 100 + n / 9) for n in range(500))
    assert flood.next == float("inf")
