"""The supervisor: the warm image that everything else is forked from. It forks, reaps and signals; nothing else.

Its duties:

1. fork the dispatcher, and another when it dies, after stopping the runners of the dead one;
2. fork a runner when the dispatcher asks, and hand the dispatcher its descriptors;
3. reap, and tell the dispatcher how a runner ended;
4. pass on signals as messages.

One thread, no store connection, no lock: whatever it forks starts clean. Signals are values in a queue that one loop
reads.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from headrace.worker import runner
from headrace.worker.dispatcher import Dispatcher
from headrace.worker.options import WorkerOptions
from headrace.worker.wire import (
    Channel,
    Closed,
    Died,
    Drain,
    FromSupervisor,
    Owner,
    Signal,
    Spawn,
    Spawned,
    ToRunner,
    ToSupervisor,
)

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")

# A second TERM or INT within this many seconds repeats the first (a terminal and a process manager both send one).
SAME_SIGNAL = 1.0
EXIT_PATIENCE = 5.0
_FORWARD = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass(slots=True)
class Child:
    """A runner: its number with the dispatcher, its kind and process."""

    number: int
    kind: str
    pid: int


class Supervisor:
    """Runs one worker in this process; returns when it has stopped.

    The process must have one thread and no open store connection.
    """

    def __init__(self, app: Headrace, options: WorkerOptions) -> None:
        self.app = app
        self.options = options
        self.place = f"{socket.gethostname()}:{os.getpid()}"
        self.children: dict[int, Child] = {}
        self.owner = ""
        self.stopping = False
        self._control: Channel[ToSupervisor] | None = None
        self._dispatcher = 0
        self._born = 0.0
        self._deaths = 0
        self._fork_at: float | None = 0.0
        self._last_signal = 0.0
        self._number = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._alarm = socket.socketpair()

    def run(self) -> int:
        """Work until told to stop; the exit code."""
        gc.collect()
        # Frozen objects are not visited by the collector, so their pages stay shared with every child.
        gc.freeze()
        self._listen_to_signals()
        try:
            while self._fork_at is not None or self._dispatcher:
                if self._fork_at is not None and time.monotonic() >= self._fork_at:
                    self._fork_dispatcher()
                pause = None if self._fork_at is None else max(0.0, self._fork_at - time.monotonic())
                for key, _ in self._selector.select(pause):
                    key.data()
        finally:
            self._stop_runners(EXIT_PATIENCE)
        return 0

    # -- signals ----------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        for sock in (self._wake, self._alarm):
            sock.setblocking(False)
        # SIGUSR1, too: a stop that reaches a runner before its own handler is there must not end it.
        for number in (*_FORWARD, signal.SIGUSR1):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_signal)

    def _on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in set(self._wake.recv(4096)):
                if number == signal.SIGCHLD:
                    self._reap()
                elif number in (signal.SIGTERM, signal.SIGINT):
                    self._asked_to_stop()

    def _asked_to_stop(self) -> None:
        now = time.monotonic()
        if self.stopping and now - self._last_signal < SAME_SIGNAL:
            return
        again, self.stopping, self._last_signal = self.stopping, True, now
        self._fork_at = None
        self._tell(Drain(again))

    def _tell(self, message: FromSupervisor, descriptors: list[int] | None = None) -> None:
        if self._control is not None:
            # A dispatcher that is gone is noticed by its death; what it should have heard does not matter.
            with contextlib.suppress(Closed):
                self._control.send(message, descriptors)

    # -- the dispatcher ---------------------------------------------------------------------------------------------

    def _fork_dispatcher(self) -> None:
        self._fork_at = None
        mine, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            _child(self._run_dispatcher, theirs, [mine, self._wake, self._alarm], parent, die_with_parent=False)
        theirs.close()
        self._dispatcher, self._born = pid, time.monotonic()
        self._control = Channel(mine, ToSupervisor)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def _run_dispatcher(self, theirs: socket.socket) -> int:
        self._selector.close()
        control: Channel[FromSupervisor] = Channel(theirs, FromSupervisor)
        Dispatcher(self.app, self.options, control, self.place).run(self.owner)
        return 0

    def _on_control(self) -> None:
        control = self._control
        if control is None:
            return
        try:
            messages = control.receive(wait=False)
        except Closed:
            self._selector.unregister(control)
            return
        for message in messages:
            match message:
                case Spawn():
                    self._fork_runner(message.kind)
                case Signal():
                    self._signal(message)
                case Owner():
                    self.owner = message.owner

    def _dispatcher_died(self, status: int) -> None:
        """What it held is taken over by the next one, once nothing runs that nobody could settle."""
        self._dispatcher = 0
        if self._control is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        if os.waitstatus_to_exitcode(status) == 0:
            return
        log.error("the dispatcher died (%s)", _how(status))
        self._stop_runners(0.0)
        if self.stopping:
            return
        self._deaths = self._deaths + 1 if time.monotonic() - self._born < 10.0 else 0
        delay = 0.0 if self._deaths < 2 else min(0.1 * 2**self._deaths, 10.0)
        self._fork_at = time.monotonic() + delay

    # -- runners ----------------------------------------------------------------------------------------------------

    def _fork_runner(self, kind: str) -> None:
        mine, theirs = socket.socketpair()
        ticket_read, ticket_write = os.pipe()
        err_read, err_write = os.pipe()
        os.set_blocking(ticket_read, False)
        parent = os.getpid()
        self._number += 1
        control = [self._control.sock] if self._control else []
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            os.close(ticket_write)
            os.close(err_read)
            os.dup2(err_write, 2)
            os.close(err_write)
            strangers = [mine, self._wake, self._alarm, *control]
            _child(
                lambda sock: self._run_runner(sock, kind, ticket_read), theirs, strangers, parent, die_with_parent=True
            )
        # Both sides set the group: whoever comes first, a kill of the group can never hit ours.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self.children[pid] = Child(self._number, kind, pid)
        self._tell(Spawned(self._number, kind, pid), [mine.fileno(), ticket_read, ticket_write, err_read])
        for sock in (mine, theirs):
            sock.close()
        for descriptor in (ticket_read, ticket_write, err_read, err_write):
            os.close(descriptor)

    def _run_runner(self, theirs: socket.socket, kind: str, tickets: int) -> int:
        self._selector.close()
        channel: Channel[ToRunner] = Channel(theirs, ToRunner)
        options = runner.RunnerOptions(
            slots=self.options.slots(kind), measure_memory=self.options.recycle_memory > 0, place=self.place
        )
        return runner.serve(self.app, kind, channel, tickets, options)

    def _signal(self, message: Signal) -> None:
        # Only a child that was not reaped yet is signalled: its number cannot belong to a stranger.
        for child in self.children.values():
            if child.number == message.runner:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if message.what == "stop":
                        os.kill(child.pid, signal.SIGUSR1)
                    else:
                        os.killpg(child.pid, signal.SIGKILL)
                return

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._dispatcher:
                self._dispatcher_died(status)
            elif child := self.children.pop(pid, None):
                self._buried(child, status, usage.ru_maxrss)

    def _buried(self, child: Child, status: int, memory: int) -> None:
        # Its children die with it. The group's number stays taken while one of them lives, so it is never a stranger's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(status)
        size = memory if sys.platform == "darwin" else memory * 1024
        self._tell(Died(child.number, max(0, -code), max(0, code), size))

    def _stop_runners(self, patience: float) -> None:
        """Every runner ends: by itself within ``patience`` seconds, then by force."""
        end = time.monotonic() + patience
        while self.children and time.monotonic() < end:
            self._selector.select(min(0.1, patience))
            self._reap_quietly(os.WNOHANG)
        for child in list(self.children.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        while self.children:
            self._reap_quietly(0)

    def _reap_quietly(self, flags: int) -> None:
        for pid in list(self.children):
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(pid, flags)[0]:
                    continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            del self.children[pid]


def _nothing(number: int, frame: FrameType | None) -> None:
    """A signal is a byte in the wake-up socket; the handler has nothing to add."""


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _child(
    main: Callable[[socket.socket], int],
    sock: socket.socket,
    strangers: list[socket.socket],
    parent: int,
    *,
    die_with_parent: bool,
) -> NoReturn:
    """Be a forked child: nothing of the parent's but its memory, and never its frames' ``finally`` or ``atexit``."""
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A Python handler, not SIG_IGN: what the user's code starts must not inherit deafness.
            signal.signal(number, _nothing)
        for stranger in strangers:
            stranger.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if die_with_parent:
            _die_with(parent)
        code = main(sock)
    except BaseException:
        log.critical("a process of the worker failed", exc_info=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Ask the kernel to end this process with its supervisor. Elsewhere than on Linux the dispatcher does it."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
