"""What waits in a mailbox ends in time, and misses nothing that was put."""

from __future__ import annotations

import gc
import signal
import threading
from queue import Empty
from types import FrameType

import pytest

from headrace.mailbox import Mailbox
from tests.deadline import held_up


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 0.02])
def test_a_wait_for_nothing_ends_and_finds_what_comes_later(seconds: float) -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in range(3):
        with pytest.raises(Empty):
            mailbox.get(seconds)
        mailbox.put(number)
        assert mailbox.get(seconds) == number


def test_a_wait_that_is_held_up_until_its_end_is_past_ends() -> None:
    mailbox: Mailbox[int] = Mailbox()
    with held_up(0.3), pytest.raises(Empty):
        mailbox.get(0.2)


def test_a_longer_wait_than_a_lock_can_take_is_a_wait_all_the_same() -> None:
    mailbox: Mailbox[str] = Mailbox()
    for seconds in (None, 2 * threading.TIMEOUT_MAX, float("inf")):
        timer = threading.Timer(0.01, mailbox.put, ["news"])
        timer.start()
        assert mailbox.get(seconds) == "news"
        timer.join()


def test_nothing_is_lost_or_told_twice_and_what_one_thread_put_stays_in_order() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()

    def write(writer: int) -> None:
        for number in range(2_000):
            mailbox.put((writer, number))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    got = [mailbox.get(20) for _ in range(8_000)]
    for writer in writers:
        writer.join()
    assert mailbox.empty()
    for number in range(4):
        assert [second for first, second in got if first == number] == list(range(2_000))


def test_the_reader_may_be_interrupted_by_what_puts() -> None:
    mailbox: Mailbox[str] = Mailbox()

    class Dropped:
        def __del__(self) -> None:
            mailbox.put("dropped")

    def hear(_number: int, _frame: FrameType | None) -> None:
        ring: list[object] = [Dropped()]
        ring.append(ring)
        del ring
        gc.collect()
        mailbox.put("heard")

    before = signal.signal(signal.SIGALRM, hear)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert [mailbox.get(20), mailbox.get(20)] == ["dropped", "heard"]
    finally:
        signal.signal(signal.SIGALRM, before)
