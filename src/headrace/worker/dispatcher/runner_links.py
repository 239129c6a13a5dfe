"""The sockets and pipes of a dispatcher's loop to the other processes of its worker: actions in, events out.

Never waits for another process. Decides nothing: received messages go into the loop's inbox.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.model.stacks import stacks_and_others
from headrace.worker.channel import Channel, Closed, Garbled, frame, give_tickets, take_back
from headrace.worker.child_process import kill_runner
from headrace.worker.dispatcher import dispatcher_events as events
from headrace.worker.messages import Died, FromRunner, FromSupervisor, Recall, Run, Spawned, ToSupervisor, WakeHint


class Selectors:
    """What the loop waits for: ``all`` that it listens to, and ``urgent``, the part that is not runners."""

    def __init__(self) -> None:
        self.all = selectors.DefaultSelector()
        self.urgent = selectors.DefaultSelector()

    def watch(self, source: Any, handler: Callable[[], None], *, urgent: bool = False) -> None:
        self.all.register(source, selectors.EVENT_READ, handler)
        if urgent:
            self.urgent.register(source, selectors.EVENT_READ, handler)

    def unwatch(self, source: Any) -> None:
        for selector in (self.all, self.urgent):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(source)

    def set_write_interest(self, source: Any, *, wanted: bool) -> None:
        key = self.all.get_key(source)
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != mask:
            self.all.modify(source, mask, key.data)

    def select(self, pause: float, gather: float) -> list[Callable[[], None]]:
        """The handlers of what is ready; with ``gather``, what runners say may wait that many seconds."""
        if gather:
            self.urgent.select(gather)
            pause = 0.0
        # A process that was stopped (SIGSTOP) for longer than the pause has not looked, and replies would look overdue.
        return [key.data for key, _ in self.all.select(pause) or self.all.select(0.0)]


STDERR_TAIL = 4096
# A line of stderr that becomes longer than this many bytes is passed on in pieces.
LINE = 1 << 16
# Seconds that a line which a runner has begun on stderr waits for its end: what a job says must not wait for the next.
LINE_WAITS = 1.0
_WAKE_HINT = frame(WakeHint())
# How the interpreter begins what it says of the fault that ends its process.
_FATAL = b"Fatal Python error"


class RunnerLink:
    """What leads to one runner.

    Attributes:
        tail: the end of what it wrote to stderr and is passed on.
        begun: the line that it has begun and not ended there; it waits until ``begun_until`` for its end.
        captures: until when stacks are kept out of what is passed on; stacks: those that came.
        closed: its socket ended; ``blocked``: it had no room for all that it was sent.
    """

    def __init__(self, message: Spawned, descriptors: list[int]) -> None:
        self.number = message.runner
        self.pid = message.pid
        self.is_fork_server = message.is_fork_server
        self.channel: Channel[FromRunner] = Channel(socket.socket(fileno=descriptors[0]), FromRunner)
        self.ticket_read, self.ticket_write, self.stderr = descriptors[1:]
        self.tail = b""
        self.begun, self.begun_until = b"", 0.0
        self.captures = 0.0
        self.stacks = b""
        self.closed = self.blocked = False
        # How often work was taken back; tickets carry it.
        self._recalls = 0
        os.set_blocking(self.stderr, False)

    def give(self, action: events.Give) -> None:
        give_tickets(self.ticket_write, len(action.claims), self._recalls)
        self.channel.send_or_keep(Run(action.claims))

    def take_back(self, most: int) -> int:
        count = take_back(self.ticket_read, most)
        self._recalls += bool(count)
        return count

    def drain_stderr(self) -> bool:
        """Pass on what the runner wrote to stderr, and keep its end as evidence; False: the other end is closed. A line
        that has not ended waits: what another process says meanwhile must not go on in it.
        """
        try:
            data = os.read(self.stderr, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        text = self.begun + data
        end = text.rfind(b"\n") + 1
        if end or not self.begun:
            self.begun_until = time.monotonic() + LINE_WAITS
        self.begun, lines = text[end:], text[:end]
        if _FATAL in lines:
            # The stacks that follow are evidence of the crash.
            self.captures = 0.0
        if self.captures and time.monotonic() < self.captures:
            found, lines = stacks_and_others(lines)
            self.stacks += found
        self.tail = (self.tail + lines)[-STDERR_TAIL:]
        _pass_on(lines)
        if not data or len(self.begun) > LINE:
            self.end_line()
        return bool(data)

    def end_line(self) -> None:
        if self.begun:
            self.tail = (self.tail + self.begun)[-STDERR_TAIL:]
            _pass_on(self.begun + b"\n")
            self.begun = b""

    def close(self) -> None:
        self.closed = True
        self.end_line()
        self.channel.close()
        for descriptor in (self.ticket_read, self.ticket_write, self.stderr):
            with contextlib.suppress(OSError):
                os.close(descriptor)


class RunnerLinks:
    """Those of one worker; ``next``: when lines of stderr that have not ended are passed on (monotonic seconds)."""

    def __init__(self, watched: Selectors, inbox: list[events.Event]) -> None:
        self.next = float("inf")
        self._links: dict[int, RunnerLink] = {}
        self._watched, self._inbox = watched, inbox

    def add(self, message: Spawned, descriptors: list[int]) -> None:
        link = self._links[message.runner] = RunnerLink(message, descriptors)
        self._watched.watch(link.channel, lambda: self._on_socket(link))
        self._watched.watch(link.stderr, lambda: self._on_stderr(link))
        self._inbox.append(message)

    def give(self, action: events.Give) -> None:
        """Send claims to a runner; one that just died tells so by its socket, and what it was sent comes back then."""
        if (link := self._links.get(action.runner)) is not None:
            with contextlib.suppress(Closed):
                link.give(action)
                self._send_rest_when_room(link)

    def send(self, action: events.Notify) -> None:
        if (link := self._links.get(action.runner)) is not None:
            self._offer(link, action.message)

    def take_back(self, action: events.TakeBack) -> None:
        link = self._links.get(action.runner)
        count = 0 if link is None else link.take_back(action.most)
        if link is not None and count:
            self._offer(link, Recall(count))
        self._inbox.append(events.TakenBack(action.runner, count))

    def capture(self, action: events.Capture) -> None:
        if (link := self._links.get(action.runner)) is not None:
            link.captures = action.until

    def hint(self, runner: int) -> None:
        if (link := self._links.get(runner)) is not None:
            link.channel.send_or_drop(_WAKE_HINT)

    def died(self, died: Died) -> None:
        link = self._links.pop(died.runner, None)
        if link is None:
            return
        heard: list[FromRunner] = []
        with contextlib.suppress(Closed, Garbled):
            while messages := link.channel.receive(wait=False):
                heard += messages
        link.drain_stderr()
        unstarted = link.take_back(1 << 16)
        self._watched.unwatch(link.channel)
        self._watched.unwatch(link.stderr)
        link.close()
        ended = (died.signal, died.code, died.memory)
        self._inbox.append(events.RunnerDied(died.runner, *ended, heard, unstarted, link.tail, died.fenced))

    def kill_all(self) -> None:
        """End every runner: there is no supervisor any more that would."""
        for link in self._links.values():
            kill_runner(link.pid, is_fork_server=link.is_fork_server)
        for number in list(self._links):
            self.died(Died(number, signal.SIGKILL, 0, 0))

    def pass_on(self, now: float) -> None:
        if now >= self.next:
            for link in self._links.values():
                if now >= link.begun_until:
                    link.end_line()
            self.next = min((link.begun_until for link in self._links.values() if link.begun), default=float("inf"))

    def _offer(self, link: RunnerLink, message: msgspec.Struct) -> None:
        with contextlib.suppress(Closed):
            link.channel.send_or_keep(message)
            self._send_rest_when_room(link)

    def _send_rest_when_room(self, link: RunnerLink) -> None:
        if (link.channel.full or link.blocked) and not link.closed:
            link.blocked = link.channel.full
            self._watched.set_write_interest(link.channel, wanted=link.blocked)

    def _on_socket(self, link: RunnerLink) -> None:
        channel = link.channel
        try:
            messages = channel.receive(wait=False)
        except (Closed, Garbled) as error:
            self._close(link, garbled=isinstance(error, Garbled))
            return
        if channel.full:
            with contextlib.suppress(Closed):
                channel.flush()
                self._send_rest_when_room(link)
        self._inbox.append(events.Heard(link.number, messages))
        if channel.garbled:
            self._close(link, garbled=True)

    def _close(self, link: RunnerLink, *, garbled: bool = False) -> None:
        if not link.closed:
            link.closed = True
            self._watched.unwatch(link.channel)
            self._inbox.append(events.RunnerClosed(link.number, garbled))

    def _on_stderr(self, link: RunnerLink) -> None:
        if not link.drain_stderr():
            self._watched.unwatch(link.stderr)
        if link.stacks:
            self._inbox.append(events.StackHeard(link.number, link.stacks))
            link.stacks = b""
        if link.begun:
            self.next = min(self.next, link.begun_until)


def _pass_on(text: bytes) -> None:
    # It may have no reader, which is not a fault of a runner.
    with contextlib.suppress(OSError, ValueError):
        if text:
            sys.stderr.buffer.write(text)
            sys.stderr.buffer.flush()


class ControlLink:
    """The channel to the supervisor. What it says of runners goes to their links, the rest into the loop's inbox."""

    def __init__(
        self, control: Channel[FromSupervisor], watched: Selectors, links: RunnerLinks, inbox: list[events.Event]
    ) -> None:
        self._control, self._watched, self._links, self._inbox = control, watched, links, inbox
        watched.watch(control, self._on_ready, urgent=True)

    def ask(self, message: ToSupervisor) -> None:
        """Send a message after what did not fit before. Never waits: the supervisor may be waiting for us to read."""
        with contextlib.suppress(Closed):
            self._control.send_or_keep(message)
            self._watched.set_write_interest(self._control, wanted=self._control.full)

    def _on_ready(self) -> None:
        control = self._control
        if control.full:
            with contextlib.suppress(Closed):
                control.flush()
                self._watched.set_write_interest(control, wanted=control.full)
        try:
            messages = control.receive_with_descriptors()
        except Closed:
            self._watched.unwatch(control)
            self._inbox.append(events.Orphaned())
            self._links.kill_all()
            return
        for message in messages:
            match message:
                case Spawned():
                    self._links.add(message, [control.descriptors.popleft() for _ in range(4)])
                case Died():
                    self._links.died(message)
                case _:
                    self._inbox.append(message)
