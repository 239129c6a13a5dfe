"""The thread kind: several jobs at once in one process, each stopped alone."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.context import CurrentJob, StopReason
from headrace.errors import SoftTimeLimit
from headrace.worker.child_process import FAULTY
from headrace.worker.messages import Exit
from headrace.worker.runner.thread_kind import ThreadGate
from tests.deadline import eventually
from tests.worker import jobs, rig
from tests.worker.rig import Runner, claim, error_of


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


@pytest.fixture
def threads(start: Callable[..., Runner]) -> Runner:
    return start("thread", 4)


def test_as_many_jobs_as_slots_run_at_once(threads: Runner) -> None:
    threads.run(*(claim(n, "barrier") for n in range(1, 5)))
    threads.until(lambda: threads.ended(1, 2, 3, 4), "all at one time")
    threads.run(*(claim(n, "who") for n in range(5, 25)))
    threads.until(lambda: threads.ended(*range(5, 25)), "the rest")
    assert {threads.value(n)[0] for n in range(5, 25)} == {threads.pid}


def test_a_job_starts_while_another_runs(threads: Runner) -> None:
    threads.run(claim(1, "stubborn"))
    threads.started(1)
    assert threads.value(threads.one(claim(2, "add", 1)).number) == 2


def test_each_thread_has_its_own_current_job(threads: Runner) -> None:
    threads.run(*(claim(n, "current") for n in range(1, 41)))
    assert [threads.value(n)[0] for n in range(1, 41)] == [f"id{n}" for n in range(1, 41)]


def test_ends_that_are_kept_do_not_wait_for_jobs_that_take_long(
    start: Callable[..., Runner],
) -> None:
    """The one thread goes on with a job that waits, while others follow: nothing but the clock sends the first's end."""
    read, write = os.pipe()
    one = start("thread", 1)
    # It is known as one that ends at once.
    os.write(write, b"x")
    one.one(claim(1, "waits_for_a_byte", read))
    one.run(claim(2, "noop"), claim(3, "waits_for_a_byte", read), claim(4, "noop"))
    one.done(2)
    assert not one.ended(3)
    os.write(write, b"x")
    one.until(lambda: one.ended(3, 4), "the rest")
    os.close(read)
    os.close(write)


def test_jobs_start_behind_some_that_were_quick_and_block(start: Callable[..., Runner]) -> None:
    """One thread is woken for jobs that were quick. The last of these must start, since the others wait for it."""
    read, write = os.pipe()
    one = start("thread", 4)
    for token in range(1, 21, 2):
        one.one(claim(token, "writes_bytes", write, 1))
        one.one(claim(token + 1, "waits_for_a_byte", read))
    one.run(*(claim(n, "waits_for_a_byte", read) for n in (21, 22, 23)), claim(24, "writes_bytes", write, 3))
    one.until(lambda: one.ended(21, 22, 23, 24), "all ends")
    os.close(read)
    os.close(write)


def test_ends_of_tiny_jobs_travel_together(start: Callable[..., Runner]) -> None:
    """A call of the system for each would hand the interpreter's lock to another thread."""
    one = start("thread", 4)
    one.run(*(claim(n, "noop") for n in range(1, 401)))
    heard = 0
    while not one.ended(*range(1, 401)):
        heard += one.hear()
    assert heard < 200


def test_a_runner_without_room_for_its_threads_leaves_without_a_traceback(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert start("thread", 4).wait() == FAULTY


def test_a_pipe_of_tickets_that_a_job_closed_ends_the_runner(start: Callable[..., Runner]) -> None:
    one = start("thread", 2)
    one.noisy = True
    one.run(claim(1, "close", one.ticket_read))
    one.done(1)
    one.run(claim(2, "noop"))
    assert one.wait() == 70


@pytest.mark.parametrize(("reason", "kind"), [("soft", "failed"), ("cancel", "cancelled")])
def test_a_stop_ends_one_job_and_none_of_its_mates(threads: Runner, reason: str, kind: str) -> None:
    threads.run(*(claim(n, "stubborn") for n in (1, 2, 3)))
    threads.started(1, 2, 3)
    threads.stop(2, reason)
    done = threads.done(2)
    assert done.ended.kind == kind
    assert error_of(done).type in ("headrace.errors.SoftTimeLimit", "headrace.errors.CancelRequested")
    assert "headrace/worker" not in error_of(done).traceback
    assert not threads.hear(timeout=0.05)
    # The thread takes the next job.
    assert threads.value(threads.one(claim(4, "add", 1)).number) == 2


def test_a_job_can_be_profiled_after_another_was_stopped(start: Callable[..., Runner]) -> None:
    """Python 3.11 loops for ever in a profiled call after an exception for a thread was replaced by none."""
    one = start("thread", 2)
    one.run(claim(1, "stubborn"))
    one.started(1)
    one.stop(1)
    assert one.done(1).ended.kind == "failed"
    assert one.value(one.one(claim(2, "profiled")).number) > 0


def test_a_job_may_clean_up_after_its_limit(threads: Runner) -> None:
    threads.run(claim(1, "stubborn", "clean"), claim(2, "swallow"))
    threads.started(1, 2)
    threads.stop(1)
    threads.stop(2, "cancel")
    assert threads.value(1) == "cleaned False"
    assert threads.value(2) == "swallowed True"


def test_a_stop_of_a_start_that_is_not_here_is_ignored(threads: Runner) -> None:
    for token in range(50):
        threads.stop(token, "cancel")
    threads.run(*(claim(n, "noop") for n in range(1, 20)))
    threads.until(lambda: threads.ended(*range(1, 20)), "all ends")
    assert {threads.done(n).ended.kind for n in range(1, 20)} == {"succeeded"}


def test_a_cancellation_that_comes_before_its_start_ends_it_there(start: Callable[..., Runner]) -> None:
    one = start("thread", 1)
    one.run(claim(1, "stubborn"), claim(2, "noop"), claim(3, "noop"))
    one.started(1)
    one.stop(2, "cancel")
    one.stop(3, "soft")
    one.stop(1)
    one.until(lambda: one.ended(1, 2, 3), "all ends")
    assert [one.done(n).ended.kind for n in (1, 2, 3)] == ["failed", "cancelled", "succeeded"]


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["soft", "cancel"])
def test_a_stop_at_the_end_of_a_job_never_hits_the_next(start: Callable[..., Runner], reason: str) -> None:
    one = start("thread", 2)
    dice, edge = random.Random(3), rig.Edge(0.0005)
    for turn in range(500):
        victim, *mates = (1 + 5 * turn + n for n in range(5))
        one.run(claim(victim, "spin_politely", edge.seconds, True), *(claim(n, "chatty", 3) for n in mates))
        one.started(victim)
        one.said.clear()
        jobs.spin.function(dice.random() * 0.001)
        one.stop(victim, reason)
        for token in mates:
            assert one.done(token).ended.kind == "succeeded", one.done(token)
        edge.learn(one.done(victim).ended.kind)
    assert edge.kinds.keys() == {"succeeded", "failed" if reason == "soft" else "cancelled"}


@pytest.mark.slow
def test_stops_do_not_tear_what_a_job_says(threads: Runner) -> None:
    dice = random.Random(11)
    for token in range(1, 200):
        threads.run(claim(token, "speaks_for_ever"))
        threads.started(token)
        jobs.spin.function(dice.random() * 0.0005)
        threads.stop(token)
        assert threads.done(token).ended.kind == "failed"


def test_what_is_sent_is_heard_while_jobs_wait_for_room_to_speak(threads: Runner, tmp_path: Path) -> None:
    """The main thread waited for the lock of a job that spoke without end: no stop reached that, and no job began."""
    threads.run(claim(1, "speaks_for_ever"))
    threads.speechless()
    for token in (2, 3, 4):
        path = tmp_path / str(token)
        threads.run(claim(token, "touch", str(path)))
        eventually(path.exists, 20, what=f"the start of {token}")
    threads.stop(1)
    assert threads.done(1).ended.kind == "failed"
    threads.until(lambda: threads.ended(2, 3, 4), "the other ends")


def test_system_exit_ends_a_job_and_no_thread(threads: Runner) -> None:
    threads.run(*(claim(n, "fail", "exit") for n in range(1, 13)))
    threads.until(lambda: threads.ended(*range(1, 13)), "all ends")
    assert {threads.done(n).ended.kind for n in range(1, 13)} == {"failed"}
    threads.run(*(claim(n, "barrier") for n in range(13, 17)))
    threads.until(lambda: threads.ended(*range(13, 17)), "four at once")


def test_a_stray_fork_of_a_job_is_not_heard(threads: Runner) -> None:
    assert threads.value(threads.one(claim(1, "forked", "raise")).number) == 1
    assert threads.value(threads.one(claim(2, "forked", "speak")).number) == 0
    assert threads.said == []
    assert threads.leave() == 0


def test_the_wake_up_of_other_kinds_does_no_harm(threads: Runner) -> None:
    threads.one(claim(1, "noop"))
    threads.wake()
    assert threads.value(threads.one(claim(2, "add", 1)).number) == 2


def test_exit_lets_what_is_held_end_and_stops_still_work(threads: Runner, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    threads.run(claim(1, "gated", str(tmp_path / "gate")), claim(2, "stubborn"))
    threads.started(1, 2)
    threads.channel.send(Exit())
    (tmp_path / "gate").write_text("go")
    assert threads.value(1) == "go"
    threads.stop(2)
    assert threads.wait() == 0
    assert threads.done(2).ended.kind == "failed"


def test_an_idle_runner_leaves(start: Callable[..., Runner]) -> None:
    assert start("thread", 3).leave() == 0
    gone = start("thread", 3)
    gone.channel.close()
    assert gone.wait() == 0


def test_a_busy_runner_starts_nothing_when_its_dispatcher_is_gone(start: Callable[..., Runner], tmp_path: Path) -> None:
    one = start("thread", 1)
    os.mkfifo(tmp_path / "gate")
    one.run(claim(1, "gated", str(tmp_path / "gate")), claim(2, "touch", str(tmp_path / "no")))
    one.started(1)
    one.channel.close()
    (tmp_path / "gate").write_text("")
    assert one.wait() == 0
    assert not (tmp_path / "no").exists()


def test_a_crash_takes_the_process(threads: Runner) -> None:
    threads.noisy = True
    threads.run(claim(1, "segfault"))
    assert threads.wait() == -signal.SIGSEGV
    assert "in segfault" in threads.stderr()


class Witness(CurrentJob):
    """A job that lets its thread come to the end of its code just after somebody has aimed at it."""

    __slots__ = ("aimed", "closed")

    def begin_stop(self, reason: StopReason) -> None:
        self.aimed.set()
        self.closed.wait(0.05)


def test_a_thread_does_not_go_on_while_somebody_aims_at_it() -> None:
    job = Witness(claim(1, "noop"), lambda _: None)
    job.aimed, job.closed = threading.Event(), threading.Event()
    gate, caught = ThreadGate({}), list[str]()

    def work() -> None:
        gate.attach()
        try:
            try:
                gate.open(job)
                job.aimed.wait()
            finally:
                gate.close()
            job.closed.set()
            caught.append("nothing")
        except SoftTimeLimit:
            gate.close()
            caught.append("in time")
        try:
            jobs.spin_politely.function(0.05)
        except SoftTimeLimit:
            caught.append("in the next job")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while gate.job is None:
        jobs.spin_politely.function(0.001)
    gate.stop(1, "soft")
    thread.join()
    assert caught == ["in time"]
