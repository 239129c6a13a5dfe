"""Headrace's own code fails inside a runner: the job gets a crash outcome with evidence, never none at all."""

from __future__ import annotations

import _thread
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace
from headrace.worker.channel import Channel, Garbled, frame
from headrace.worker.child_process import FAULTY
from headrace.worker.messages import JobProgress, ToRunner
from headrace.worker.runner import async_kind, execute, process_kind, reporting, thread_kind
from tests.worker import jobs, rig
from tests.worker.rig import Runner, claim, error_of

KINDS = ("process", "fork", "thread", "async")
TASKS = {"thread": ("noop", "fail"), "async": ("anoop", "aexits")}


class Fault(Exception): ...


def broken(*_: Any, **__: Any) -> Any:
    raise Fault("a fault of ours")


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield lambda kind: make(kind, 2, is_fork_server=kind == "fork" and sys.platform == "linux")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "fails"),
    [("prepare", False), ("packed", False), ("conclude", True), ("evidence", True), ("of_error", True)],
)
def test_a_fault_around_a_job_is_its_crash_and_the_runner_goes_on(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, kind: str, name: str, fails: bool
) -> None:
    monkeypatch.setattr(execute, name, broken)
    runner = start(kind)
    well, badly = TASKS.get(kind, ("noop", "fail"))
    for token in (1, 2):
        done = runner.one(claim(token, badly, "here") if fails else claim(token, well))
        error = error_of(done)
        assert (done.ended.kind, error.type, error.worker) == ("crashed", "Crashed", rig.PLACE)
        assert "Headrace's own code failed" in error.message
        assert "a fault of ours" in error.traceback


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_where_an_end_is_said_ends_the_runner(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(reporting.Reporter, "done", broken)
    runner = start(kind)
    runner.noisy = True
    runner.run(claim(1, TASKS.get(kind, ("noop",))[0]))
    code = runner.wait()
    # A fork server says how its child fell, and leaves.
    fell = [one.code for one in runner.parting if hasattr(one, "code")]
    assert FAULTY in (code, *fell)
    assert "a fault of ours" in runner.stderr()
    assert not runner.ended(1)


@pytest.mark.parametrize(("kind", "place"), [("process", process_kind.Process), ("thread", thread_kind.Threads)])
def test_a_fault_where_work_arrives_ends_the_runner(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, kind: str, place: type
) -> None:
    monkeypatch.setattr(place, "_file", broken)
    _falls_over_its_work(start(kind))


@pytest.mark.parametrize("name", ["_start", "_file_all"])
def test_a_fault_in_what_the_event_loop_calls_ends_the_runner(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """asyncio logs what its callbacks raise and goes on, which would leave the jobs running for ever."""
    monkeypatch.setattr(async_kind.Loop, name, broken)
    _falls_over_its_work(start("async"))


def _falls_over_its_work(runner: Runner) -> None:
    runner.noisy = True
    runner.run(claim(1, "anoop" if runner.kind == "async" else "noop"))
    assert runner.wait() != 0
    assert "a fault of ours" in runner.stderr()
    assert not runner.ended(1)


@pytest.mark.parametrize("kind", ["process", "async"])
def test_a_fault_while_a_signal_is_looked_into_is_not_raised_in_the_job(
    start: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    runner = start(kind)
    runner.noisy = True
    runner.run(claim(1, "blocks" if kind == "async" else "swallow"))
    runner.started(1)
    # What no dispatcher says: the look into the channel fails amid the job's code.
    runner.channel.sock.sendall(b"rubbish!" * 4)
    runner.wake()
    assert runner.wait() == FAULTY
    assert "Garbled" in runner.stderr()


# --- what a runner says cannot be read ---


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Channel[Any]]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, Channel(ours, ToRunner | JobProgress)


SAID = JobProgress(1, 0.5, "half", ())


@pytest.mark.parametrize(
    "rubbish",
    [
        b"printed by a job\n",
        b"\x00" * 8,
        b"\xff" * 8,
        b"\x00\x00\x00\x04\x00\x00\x00\x00none",
        frame(SAID)[:8] + b"\xc1" * (len(frame(SAID)) - 8),
        frame(SAID)[:8] + b"\x91" * (len(frame(SAID)) - 8),
    ],
)
def test_rubbish_is_found_out_at_once_and_what_came_before_it_counts(
    pair: tuple[socket.socket, Channel[Any]], rubbish: bytes
) -> None:
    theirs, channel = pair
    theirs.sendall(frame(SAID) + rubbish)
    assert channel.receive(wait=True) == [SAID]
    assert channel.garbled
    with pytest.raises(Garbled):
        channel.receive(wait=True)


def test_rubbish_of_a_few_bytes_is_found_out_by_the_next_message(pair: tuple[socket.socket, Channel[Any]]) -> None:
    theirs, channel = pair
    theirs.sendall(b"hi\n")
    assert channel.receive(wait=False) == []
    theirs.sendall(frame(SAID))
    with pytest.raises(Garbled):
        channel.receive(wait=True)


def test_a_message_without_end_is_refused(pair: tuple[socket.socket, Channel[Any]]) -> None:
    theirs, channel = pair
    length = (1 << 30) + 1
    theirs.sendall(length.to_bytes(4, "big") + (length ^ 0x48527631).to_bytes(4, "big"))
    with pytest.raises(Garbled):
        channel.receive(wait=True)


def test_exit_hooks_have_their_turn_where_there_is_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    app = Headrace()
    say = jobs.to_stdout.function
    app.on_exit(lambda: say("bye"))
    monkeypatch.setattr(_thread, "start_new_thread", full)
    with rig.runners() as make:
        one = make(app=app)
        assert one.leave() == 0
        assert one.stdout() == "bye\n"
