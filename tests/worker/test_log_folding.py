"""Log lines that repeat themselves are counted."""

from __future__ import annotations

from headrace.worker.dispatcher.links.dispatcher_log import DispatcherLog
from headrace.worker.dispatcher.links.log_folding import AGAIN_AFTER, MOST, Folded


def test_a_line_that_repeats_itself_is_said_once_and_counted() -> None:
    said = Folded()
    assert said.say("full", 0.0) == ["full"]
    assert [said.say("full", 1.0) for _ in range(82)] == [[]] * 82
    assert said.rest() == ["full (repeated 82 times)"]
    assert said.rest() == []
    assert said.say("full", 2.0) == ["full"]


def test_a_fault_that_lasts_is_told_again_from_time_to_time() -> None:
    said = Folded()
    said.say("full", 0.0)
    assert said.say("full", AGAIN_AFTER - 1) == []
    assert said.say("full", AGAIN_AFTER) == ["full (repeated 2 times)"]
    assert said.say("full", AGAIN_AFTER + 1) == []
    assert said.say("full", 2 * AGAIN_AFTER) == ["full (repeated 2 times)"]


def test_lines_that_come_by_turns_are_each_said_once_and_counted() -> None:
    """A server that refuses a client's certificate ends a connection now while it is read, now while it is written."""
    said = Folded()
    assert [line for n in range(9) for line in said.say(("refused", "gone")[n % 2], n)] == ["refused", "gone"]
    assert said.say("gone", 1 + AGAIN_AFTER) == ["gone (repeated 4 times)"]
    assert said.rest() == ["refused (repeated 4 times)"]
    assert said.say("gone", 100.0) == ["gone"]


def test_lines_that_are_all_different_fill_no_memory() -> None:
    said = Folded()
    said.say("full", 0.0)
    said.say("full", 1.0)
    lines = [line for n in range(1000) for line in said.say(str(n), 2.0)]
    assert lines == [*map(str, range(7)), "full (once more)", *map(str, range(7, 1000))]
    assert len(said._said) <= MOST


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
