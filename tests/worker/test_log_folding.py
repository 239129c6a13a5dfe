"""Log lines that repeat themselves are counted."""

from __future__ import annotations

from headrace.worker.dispatcher.links.log_folding import AGAIN_AFTER, Folded


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


def test_another_line_tells_how_often_the_one_before_was_repeated() -> None:
    said = Folded()
    said.say("full", 0.0)
    said.say("full", 1.0)
    assert said.say("gone", 2.0) == ["full (once more)", "gone"]
    assert said.say("full", 3.0) == ["full"]
