"""What jobs say while they run, in each kind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.worker import rig
from tests.worker.rig import Runner, claim


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


def test_progress_is_thinned_out_and_its_last_word_comes_before_the_end(start: Callable[..., Runner]) -> None:
    one = start()
    one.one(claim(1, "chatty", 20_000))
    # At most the burst, one each 50 ms, and the last one.
    assert 2 <= len(one.said) <= 7 + one.done(1).cost / 50_000
    assert (one.said[-1].progress, one.said[-1].text) == (1.0, "step 19999")
    assert [say.progress for say in one.said] == sorted(say.progress or 0 for say in one.said)


def test_the_first_words_are_not_held_back(start: Callable[..., Runner]) -> None:
    one = start()
    one.one(claim(1, "chatty", 4))
    assert [say.text for say in one.said] == ["step 0", "step 1", "step 2", "step 3"]


def test_log_lines_are_kept_whole_in_order_and_capped(start: Callable[..., Runner]) -> None:
    one = start()
    one.one(claim(1, "odd_log"))
    first, odd, long, many, half = one.said
    assert first.lines == ("first", "second")
    assert odd.lines == ("\\udcff odd",)
    assert long.lines == ("y" * 4000,)
    assert len(many.lines) == 1000
    assert many.lines[-1] == "4999"
    assert (half.progress, half.text) == (0.5, "\\udcff half")


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_threads_of_a_job_may_speak_at_once(start: Callable[..., Runner], kind: str) -> None:
    one = start(kind, 2)
    one.run(claim(1, "speaks_from_threads", 200))
    one.done(1)
    assert sorted(int(line) for say in one.said for line in say.lines) == sorted(list(range(200)) * 4)


def test_what_is_said_after_the_end_is_dropped(start: Callable[..., Runner]) -> None:
    one = start()
    one.one(claim(1, "late_speaker"))
    one.one(claim(2, "lets_speak"))
    assert one.said == []


def test_a_handler_of_a_signal_may_speak_amid_a_word(start: Callable[..., Runner]) -> None:
    """It waited for ever for the lock that its own thread held."""
    one = start()
    one.run(claim(1, "speaks_when_alarmed"))
    one.speechless()
    os.kill(one.pid, signal.SIGALRM)
    assert one.done(1).ended.kind == "succeeded"
    assert [say.lines[-1][-7:] for say in one.said] == ["zzzzzzz", "alarmed"]
