"""What a dispatcher asks of its supervisor, by a socket that holds little of it."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from headrace.job import Claim
from headrace.options import Kind
from headrace.retry import Retry
from headrace.settings import Settings
from headrace.task import Plan
from headrace.worker.crew import Crew
from headrace.worker.exchange import Selectors
from headrace.worker.options import WorkerOptions
from headrace.worker.seat import Seat, Start
from headrace.worker.wire import Channel, Died, FromRunner, FromSupervisor, Spawn, Stop, ToRunner, ToSupervisor
from tests.deadline import eventually

MOST = 1024


def test_who_asks_for_many_runners_waits_for_nobody() -> None:
    """The supervisor may itself be waiting for the dispatcher to read: then neither of them would ever go on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        control: Channel[FromSupervisor] = Channel(ours, FromSupervisor)
        supervisor: Channel[ToSupervisor] = Channel(theirs, ToSupervisor)
        watched = Selectors()
        crew = Crew(Settings(), WorkerOptions(), "here:1", control, watched, lambda *_: None, lambda _: None)
        watched.watch(control, crew.ask)
        asking = threading.Thread(target=crew.resize, args=("process", MOST), daemon=True)
        asking.start()
        asking.join(10)
        assert not asking.is_alive(), "it waits"
        assert control.full, "more than a socket holds"
        heard: list[ToSupervisor] = []

        def all_heard() -> bool:
            for handler in watched.select(0.0, 0.0):
                handler()
            heard.extend(supervisor.receive(wait=False))
            return len(heard) >= MOST

        eventually(all_heard)
        assert len(heard) == MOST
        assert all(isinstance(one, Spawn) for one in heard)
        assert not watched.select(0.0, 0.0), "it is not woken any more for what was sent"


@pytest.mark.parametrize("kind", ["process", "fork", "thread", "async"])
def test_a_soft_limit_is_told_again_until_the_start_ends(kind: Kind) -> None:
    """A runner that was slow to begin the code forgets a limit: the job then ran until its hard limit killed it."""
    ours, theirs = socket.socketpair()
    mine, runners = socket.socketpair()
    pipes = [*os.pipe(), *os.pipe()]
    with ours, theirs, runners:
        control: Channel[FromSupervisor] = Channel(ours, FromSupervisor)
        watched = Selectors()
        crew = Crew(Settings(), WorkerOptions(), "here:1", control, watched, lambda *_: None, lambda _: None)
        watched.watch(control, crew.ask)
        seat = Seat(7, kind, 0, 1, pipes[:3], Channel(mine, FromRunner))
        crew.handout.sit(seat)
        claim = Claim("id", 1, "default", 0, "task", b"", b"", "", 0, 0, 0, 0, False)
        start = seat.starts[1] = Start(claim, Plan(Retry(max=0), 5, 100, 0, 0), seat)
        crew.limits.begin(start, 0)
        runner: Channel[ToRunner] = Channel(runners, ToRunner)
        for now in (5.0, 5.1, 5.3):
            assert not runner.receive(wait=False)
            crew.enforce(now)
            assert runner.receive(wait=False) == [Stop(1, "soft")]
        start.doom = "cancel"
        crew.enforce(9)
        assert not runner.receive(wait=False), "it was told to stop for another reason"
        for end in pipes:
            os.close(end)
        mine.close()


def test_the_end_of_a_runner_makes_room_for_its_kind() -> None:
    """Nobody takes the place of one that ran a suspect alone: a job that waits for that would never be claimed again."""
    ours, theirs = socket.socketpair()
    mine, runners = socket.socketpair()
    pipes = [*os.pipe(), *os.pipe()]
    with ours, theirs, runners:
        control: Channel[FromSupervisor] = Channel(ours, FromSupervisor)
        crew = Crew(Settings(), WorkerOptions(), "here:1", control, Selectors(), lambda *_: None, lambda _: None)
        os.set_blocking(pipes[0], False)
        seat = Seat(7, "async", 0, 1, pipes[:3], Channel(mine, FromRunner))
        seat.single = True
        crew.handout.sit(seat)
        crew.died(Died(7, 9, 0, 0))
        os.close(pipes[3])
    assert crew.freed == {"async"}
