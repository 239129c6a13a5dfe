"""The supervisor's runners: forked when the dispatcher asks, signalled, and reaped.

The supervisor's dispatcher: one process after the other, and the channel to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from headrace.app import Headrace
from headrace.model.options import Kind
from headrace.worker.channel import Channel, Closed, decoder
from headrace.worker.forking import child_process
from headrace.worker.forking.child_process import fork_child, kill_group, kill_runner, prctl
from headrace.worker.forking.lifecycle_hooks import run_around_fork
from headrace.worker.forking.standard_streams import STREAMS
from headrace.worker.messages import (
    Died,
    FromRunner,
    FromSupervisor,
    Signal,
    Spawn,
    Spawned,
    ToRunner,
    ToSupervisor,
)
from headrace.worker.preload import warmup
from headrace.worker.runner import fork_server, runner_process
from headrace.worker.runner.lifespans import starts_up
from headrace.worker.runner.runner_context import RunnerOptions
from headrace.worker.worker_options import WorkerOptions

# From the second on that dies younger than this (seconds), the next one is forked after a pause of at most so long.
YOUNG, MOST_PAUSE = 10.0, 10.0


class DispatcherProcess:
    """The one that works, if any.

    Attributes:
        pid: of its process; 0: there is none.
        fork_at: when one must be forked (monotonic seconds); infinity: none any more.
    """

    def __init__(self, selector: selectors.BaseSelector, hear: Callable[[ToSupervisor], None]) -> None:
        """Make one that is due at once; ``hear``: called with each message of it."""
        self.pid = 0
        self.fork_at = 0.0
        self._selector = selector
        self._hear = hear
        self._control: Channel[ToSupervisor] | None = None
        self._born = 0.0
        self._deaths = 0

    @property
    def socks(self) -> list[socket.socket]:
        """What other children must close."""
        return [] if self._control is None else [self._control.sock]

    def fork(self, work: Callable[[Channel[FromSupervisor]], None], strangers: list[socket.socket]) -> None:
        """Fork one that does this work. Raises OSError: the system has no room for it."""
        mine, theirs = socket.socketpair()
        warmup.write_out()

        def be() -> int:
            self._selector.close()
            # It holds four descriptors for each runner. No code of the application will miss the lower limit there.
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            work(Channel(theirs, FromSupervisor))
            return 0

        with theirs:
            try:
                self.pid = fork_child(be, [mine, *strangers], tied=False)
            except OSError:
                mine.close()
                raise
        self.fork_at, self._born = float("inf"), time.monotonic()
        self._control = Channel(mine, ToSupervisor)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def tell(self, message: FromSupervisor, descriptors: list[int] | None = None) -> None:
        """Send it a message. What a dead one should have heard does not matter: its death is noticed."""
        if self._control is not None:
            with contextlib.suppress(Closed):
                self._control.send(message, descriptors)

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
            self._hear(message)

    def reaped(self) -> None:
        self.pid = 0
        if self._control is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None

    def replace(self) -> None:
        """Another one is due: at once, or after a pause where several died young."""
        self._deaths = self._deaths + 1 if time.monotonic() - self._born < YOUNG else 0
        delay = 0.0 if self._deaths < 2 else min(0.1 * 2 ** min(self._deaths, 7), MOST_PAUSE)
        self.fork_at = time.monotonic() + delay


# A dispatcher opens so many descriptors for each runner, and at most so many for all else.
EACH, OTHERS = 4, 20


def make_once(app: Headrace) -> None:
    """What each child would make for itself otherwise."""
    for reads in (ToRunner, FromRunner, ToSupervisor, FromSupervisor):
        decoder(reads)
    prctl()
    for task in app.tasks.values():
        if task.kind == "fork":
            task.prepare()


def room_for(runners: int) -> bool:
    """Whether a dispatcher may open the descriptors of so many: those that find no room are lost on the way to it."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return most == resource.RLIM_INFINITY or EACH * runners + OTHERS <= most


class Child(msgspec.Struct):
    """A runner: its number with the dispatcher, its kind and process; and whether it forks a child for each job."""

    number: int
    kind: Kind
    pid: int
    is_fork_server: bool

    def kill(self) -> None:
        kill_runner(self.pid, is_fork_server=self.is_fork_server)


class RunnerProcesses:
    """Those that were not reaped.

    Attributes:
        last: number of the last one that was forked.
    """

    def __init__(
        self,
        app: Headrace,
        place: str,
        selector: selectors.BaseSelector,
        dispatcher: DispatcherProcess,
        strangers: Callable[[], list[socket.socket]],
    ) -> None:
        """Make one without runners; ``strangers``: what a child must close."""
        self.last = 0
        self._app = app
        self._place = place
        self._selector = selector
        self._dispatcher = dispatcher
        self._strangers = strangers
        self._children: dict[int, Child] = {}

    @property
    def present(self) -> bool:
        """Whether there is one."""
        return bool(self._children)

    def fork(self, wanted: Spawn, options: WorkerOptions) -> None:
        """Fork a runner, and hand the dispatcher its descriptors.

        Raises:
            OSError: the system has no room for it, or the dispatcher.
        """
        if not room_for(len(self._children) + 1):
            raise OSError(errno.EMFILE, "too many runners for this limit of open files: raise it, or run fewer at once")
        with contextlib.ExitStack() as stack:
            self._fork(stack, wanted, options)

    def _fork(self, stack: contextlib.ExitStack, wanted: Spawn, options: WorkerOptions) -> None:
        """Fork it; ``stack`` closes what is not ours to keep, whether it was forked or not."""
        kind, began = wanted.kind, time.monotonic_ns() if wanted.profile else 0
        mine, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
        ticket_read, ticket_write = _pipe(stack)
        err_read, err_write = _pipe(stack)
        os.set_blocking(ticket_read, False)
        is_fork_server = kind == "fork" and fork_server.lasts(self._app)
        facts = RunnerOptions(
            kind,
            Channel(theirs, ToRunner),
            ticket_read,
            slots=options.slots(kind),
            measure_memory=options.recycle_memory > 0 or self._app.settings.log_jobs == "all",
            place=self._place,
            forked=began,
            is_fork_server=is_fork_server,
        )
        # A fork server surrounds its own children with them.
        before, after = ([], []) if is_fork_server else (self._app.before_fork_hooks, self._app.after_fork_parent_hooks)
        run_around_fork(list(reversed(before)))
        stack.callback(run_around_fork, after)
        warmup.write_out()

        def be() -> int:
            child_process.regard()
            os.dup2(err_write, 2)
            STREAMS.be_patient()
            for descriptor in (ticket_write, err_read, err_write):
                os.close(descriptor)
            self._selector.close()
            return runner_process.serve(self._app, facts)

        pid = fork_child(be, [mine, *self._strangers()])
        self.last += 1
        self._children[pid] = Child(self.last, kind, pid, is_fork_server)
        spawned = Spawned(self.last, kind, pid, is_fork_server, starts_up(self._app, kind))
        self._dispatcher.tell(spawned, [mine.fileno(), ticket_read, ticket_write, err_read])

    def signal(self, message: Signal) -> None:
        """Interrupt what a runner runs, have it write its stacks, or end it with all that it started."""
        # Only a child that was not reaped yet is signalled: its number cannot belong to a stranger.
        for child in self._children.values():
            if child.number != message.runner:
                continue
            if message.what == "kill":
                child.kill()
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child.pid, signal.SIGUSR1 if message.what == "stop" else signal.SIGUSR2)
            return

    def kill(self) -> None:
        """End all of them with what they started. They are reaped, and the dispatcher is told, as ever."""
        for child in self._children.values():
            child.kill()

    def reaped(self, pid: int, status: int, memory: int) -> bool:
        """Whether this process was a runner, whose end the dispatcher is told of."""
        child = self._children.pop(pid, None)
        if child is None:
            return False
        # Its children die with it. The group's number stays taken while one of them lives, so it is never a stranger's.
        kill_group(child.pid)
        code = os.waitstatus_to_exitcode(status)
        size = memory if sys.platform == "darwin" else memory * 1024
        self._dispatcher.tell(Died(child.number, max(0, -code), max(0, code), size))
        return True

    def stop(self, patience: float) -> None:
        """Every runner ends: by itself within ``patience`` seconds, then by force."""
        end = time.monotonic() + patience
        while self._children and time.monotonic() < end:
            # Nothing reads here what signals and a dead dispatcher have made readable: a select would not wait.
            time.sleep(min(0.01, patience))
            self._reap_quietly(os.WNOHANG)
        self.kill()
        while self._children:
            self._reap_quietly(0)

    def _reap_quietly(self, flags: int) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(pid, flags)[0]:
                    continue
            kill_group(pid)
            del self._children[pid]


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends of a pipe, for reading and for writing, which the stack closes."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends
