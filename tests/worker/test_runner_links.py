"""The sockets and pipes of runners, and the one of the supervisor: who gets a job, last words, and never a wait."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.model.ended import Succeeded
from headrace.model.job import Claim
from headrace.worker.channel import Channel, take_ticket
from headrace.worker.dispatcher.dispatcher_events import (
    Capture,
    Event,
    Give,
    Heard,
    Notify,
    Orphaned,
    RunnerClosed,
    RunnerDied,
    StackHeard,
    TakeBack,
    TakenBack,
)
from headrace.worker.dispatcher.runner_links import ControlLink, RunnerLinks, Selectors
from headrace.worker.messages import (
    Died,
    Done,
    Drain,
    Exit,
    FromSupervisor,
    Recall,
    Run,
    Spawn,
    Spawned,
    ToRunner,
    ToSupervisor,
)
from tests.deadline import eventually

MOST = 1024


class Rig:
    """A loop with links only, a supervisor, and one runner, number 7, whose ends are held here."""

    def __init__(self, stack: ExitStack) -> None:
        self.watched = Selectors()
        self.inbox: list[Event] = []
        self.links = RunnerLinks(self.watched, self.inbox)
        ours, theirs = (stack.enter_context(one) for one in socket.socketpair())
        self.supervisor: Channel[ToSupervisor] = Channel(theirs, ToSupervisor)
        self.control: Channel[FromSupervisor] = Channel(ours, FromSupervisor)
        self.link = ControlLink(self.control, self.watched, self.links, self.inbox)
        mine, runners = socket.socketpair()
        self.tickets, give = os.pipe()
        err, self.stderr = os.pipe()
        os.set_blocking(self.tickets, False)
        ends = [runners.fileno(), self.tickets, give, err]
        self.supervisor.send(Spawned(7, "process", os.getpid()), ends)
        self.runner: Channel[ToRunner] = Channel(mine, ToRunner)
        stack.callback(mine.close)
        for end in (give, err):
            os.close(end)
        runners.close()
        stack.callback(os.close, self.tickets)

    def turn(self) -> list[Event]:
        for handler in self.watched.select(0.0, 0.0):
            handler()
        events, self.inbox[:] = self.inbox.copy(), []
        return events


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        rig = Rig(stack)
        assert rig.turn() == [Spawned(7, "process", os.getpid())]
        yield rig
        rig.links.died(Died(7, 9, 0, 0))


def claims(*tokens: int) -> list[Claim]:
    return [Claim(str(token), token, "default", 0, "task", b"", token) for token in tokens]


def test_a_job_is_begun_or_taken_back_and_never_both(rig: Rig) -> None:
    rig.links.give(Give(7, claims(1, 2, 3)))
    assert take_ticket(rig.tickets) == 0
    rig.links.take_back(TakeBack(7, 3))
    assert rig.turn() == [TakenBack(7, 2)]
    assert take_ticket(rig.tickets) is None
    assert rig.runner.receive(wait=True) == [Run(claims(1, 2, 3)), Recall(2)]
    rig.links.give(Give(7, claims(4)))
    assert take_ticket(rig.tickets) == 1, "it waits for the recall"
    rig.links.take_back(TakeBack(7, 1))
    assert rig.turn() == [TakenBack(7, 0)]


def test_last_words_and_what_was_not_begun_come_with_the_death(rig: Rig) -> None:
    rig.links.give(Give(7, claims(1, 2, 3)))
    assert take_ticket(rig.tickets) == 0
    done = Done(1, Succeeded(b"", 0), 0, 0)
    rig.runner.send(done)
    os.write(rig.stderr, b"oh no")
    os.close(rig.stderr)
    rig.runner.sock.close()
    rig.supervisor.send(Died(7, 9, 0, 1 << 20))
    events: list[Event] = []

    def dead() -> bool:
        events.extend(rig.turn())
        return any(isinstance(event, RunnerDied) for event in events)

    eventually(dead)
    heard = [message for event in events if isinstance(event, Heard | RunnerDied) for message in _heard(event)]
    assert heard == [done]
    (death,) = [event for event in events if isinstance(event, RunnerDied)]
    assert (death.signal, death.memory, death.unstarted, death.stderr) == (9, 1 << 20, 2, b"oh no")
    assert rig.turn() == []


def test_what_a_runner_wrote_last_is_evidence_while_its_stacks_are_kept_from_the_log(rig: Rig) -> None:
    rig.links.capture(Capture(7, float("inf")))
    for text in (b"one\noh", b" no"):
        os.write(rig.stderr, text)
        rig.turn()
    rig.links.died(Died(7, 9, 0, 0))
    (death,) = [event for event in rig.turn() if isinstance(event, RunnerDied)]
    assert death.stderr == b"one\noh no"


def test_a_line_waits_for_its_end_since_it_was_begun(rig: Rig, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A runner that writes all the time always has begun a line: once a second one was cut, however young it was."""
    os.write(rig.stderr, b"one")
    rig.turn()
    first = rig.links.next
    os.write(rig.stderr, b" and\ntwo")
    rig.turn()
    rig.links.pass_on(first)
    assert capfdbinary.readouterr().err == b"one and\n"
    assert first < rig.links.next < float("inf")
    rig.links.pass_on(rig.links.next)
    assert capfdbinary.readouterr().err == b"two\n"
    assert rig.links.next == float("inf")


def test_the_stacks_of_a_fatal_fault_are_evidence_while_others_are_kept_from_the_log(rig: Rig) -> None:
    rig.links.capture(Capture(7, float("inf")))
    stacks = b'Current thread 0x00007f (most recent call first):\n  File "a.py", line 1 in f\n'
    os.write(rig.stderr, stacks)
    assert rig.turn() == [StackHeard(7, stacks)]
    fault = b"Fatal Python error: Segmentation fault\n\n"
    for text in (fault, stacks):
        os.write(rig.stderr, text)
        rig.turn()
    rig.links.died(Died(7, 11, 0, 0))
    (death,) = [event for event in rig.turn() if isinstance(event, RunnerDied)]
    assert death.stderr == fault + stacks


def _heard(event: Heard | RunnerDied) -> list[Any]:
    return list(event.messages if isinstance(event, Heard) else event.heard)


def test_a_runner_that_closed_its_socket_is_told_of_once_and_can_be_spoken_to(rig: Rig) -> None:
    rig.runner.sock.close()
    assert rig.turn() == [RunnerClosed(7)]
    assert rig.turn() == []
    rig.links.give(Give(7, claims(1)))
    rig.links.send(Notify(7, Exit()))
    rig.links.take_back(TakeBack(7, 1))
    assert rig.turn() == [TakenBack(7, 1)]


def test_a_runner_that_sends_no_message_is_not_listened_to_any_more(rig: Rig) -> None:
    rig.runner.sock.send(b"x" * 100)
    assert rig.turn() == [RunnerClosed(7, garbled=True)]
    assert rig.turn() == []


def test_a_runner_that_is_gone_has_begun_nothing_more(rig: Rig) -> None:
    rig.links.take_back(TakeBack(8, 1))
    assert rig.turn() == [TakenBack(8, 0)]


def test_what_the_supervisor_says_and_its_death_are_events(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, _: killed.append(pid))
    rig.supervisor.send(Drain(now=False))
    assert rig.turn() == [Drain(now=False)]
    rig.supervisor.sock.close()
    orphaned, death = rig.turn()
    assert (orphaned, type(death), killed) == (Orphaned(), RunnerDied, [os.getpid()])
    rig.link.ask(Spawn("process"))


def test_who_asks_for_many_runners_waits_for_nobody(rig: Rig) -> None:
    """The supervisor may itself be waiting for the dispatcher to read: then neither of them would ever go on."""

    def ask() -> None:
        for _ in range(MOST):
            rig.link.ask(Spawn("process"))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(10)
    assert not asking.is_alive(), "it waits"
    assert rig.control.full, "more than a socket holds"
    heard: list[ToSupervisor] = []

    def all_heard() -> bool:
        rig.turn()
        heard.extend(rig.supervisor.receive(wait=False))
        return len(heard) >= MOST

    eventually(all_heard)
    assert len(heard) == MOST
    assert all(isinstance(one, Spawn) for one in heard)
    assert not rig.watched.select(0.0, 0.0), "it is not woken any more for what was sent"
