"""The supervisor: the warm image that everything else is forked from. It forks, reaps and signals; nothing else.

Its duties:

1. fork the dispatcher, and another when it dies, after stopping the runners of the dead one;
2. fork a runner when the dispatcher asks, and hand the dispatcher its descriptors;
3. reap, and tell the dispatcher how a runner ended;
4. pass on signals as messages;
5. leave room for the image that is to follow it (``lineage``, see handover.py);
6. keep a process that answers Prometheus, where one is wanted (metrics_server.py);
7. have tried what might be done once before the fork, and do it where that is wanted (apply.py).

One thread, no store connection, no lock: whatever it forks starts clean. Signals are values in a queue that one loop
reads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from headrace.worker.channel import Channel, Closed, decoder
from headrace.worker.dispatcher.loop import Dispatcher
from headrace.worker.forking import signals
from headrace.worker.forking.lifecycle_hooks import run_around_fork
from headrace.worker.forking.process_ties import die_with, prctl
from headrace.worker.forking.standard_streams import STREAMS
from headrace.worker.messages import (
    Died,
    Drain,
    FromRunner,
    FromSupervisor,
    Owner,
    Resize,
    Signal,
    Size,
    Spawn,
    Spawned,
    ToRunner,
    ToSupervisor,
)
from headrace.worker.preload import warmup
from headrace.worker.preload.advice import NOTHING, Learned
from headrace.worker.reload.image_protocol import Heir, Lineage
from headrace.worker.runner import fork_server, runner_process
from headrace.worker.runner.lifespans import starts_up
from headrace.worker.supervisor.metrics_server import Metrics, answer
from headrace.worker.supervisor.readiness import Settling, tell
from headrace.worker.worker_options import WorkerOptions

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")

# A second TERM or INT within this many seconds repeats the first (a terminal and a process manager both send one).
SAME_SIGNAL = 1.0
EXIT_PATIENCE = 5.0
# What could not be forked is tried again after this long (seconds), then after twice as long each time.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
_FORWARD = (*signals.STOPS, signal.SIGCHLD, *signals.RESIZE)
_FOREVER = float("inf")


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

    def __init__(
        self,
        app: Headrace,
        options: WorkerOptions,
        lineage: Lineage | None = None,
        metrics: Metrics | None = None,
        learned: Learned = NOTHING,
    ) -> None:
        self.app = app
        self.options = options
        self.lineage = lineage
        self.metrics = metrics
        self.learned = learned
        self.place = f"{socket.gethostname()}:{os.getpid()}"
        self._anchor = os.getppid() if isinstance(lineage, Heir) else 0
        self.children: dict[int, Child] = {}
        self.owner = ""
        self.stopping = False
        self.retired = False
        self._control: Channel[ToSupervisor] | None = None
        self._dispatcher = 0
        self._born = 0.0
        self._deaths = 0
        self._fork_at: float | None = 0.0
        self._wanted: deque[Spawn] = deque()
        self._again_at, self._again_after = 0.0, FIRST_PAUSE
        self._last_signal = 0.0
        self._number = 0
        self._selector = selectors.DefaultSelector()
        self._wake, self._alarm = socket.socketpair()
        self._settling: Settling | None = None

    def run(self) -> int:
        """Work until told to stop; the exit code."""
        STREAMS.install()
        # What each child would make for itself otherwise.
        for reads in (ToRunner, FromRunner, ToSupervisor, FromSupervisor):
            decoder(reads)
        prctl()
        for task in self.app.tasks.values():
            if task.kind == "fork":
                task.prepare()
        warmup.compact()
        self._listen_to_signals()
        try:
            while self._fork_at is not None or self._dispatcher:
                self._fork_due()
                for key, _ in self._selector.select(self._pause()):
                    key.data()
                if time.monotonic() >= STREAMS.next:
                    STREAMS.pass_on()
                if self.lineage is not None:
                    self.lineage.tick(time.monotonic())
        finally:
            if self.metrics is not None:
                self.metrics.stop()
            self._stop_runners(EXIT_PATIENCE)
            STREAMS.drain()
        return 0

    def _pause(self) -> float | None:
        fork = min(
            _FOREVER if self._fork_at is None else self._fork_at,
            _FOREVER if self.metrics is None else self.metrics.next,
            0.0 if self._wanted else _FOREVER,
        )
        lineage = _FOREVER if self.lineage is None else self.lineage.next
        wanted = min(max(fork, self._again_at), lineage, STREAMS.next)
        return None if wanted == _FOREVER else max(0.0, wanted - time.monotonic())

    def _fork_due(self) -> None:
        """Fork what is wanted. What the system has no room for now is tried again later; what lives goes on."""
        now = time.monotonic()
        if now < self._again_at:
            return
        try:
            if self._fork_at is not None and now >= self._fork_at:
                self._fork_dispatcher()
            while self._wanted:
                self._fork_runner(self._wanted[0].kind, profile=self._wanted[0].profile)
                self._wanted.popleft()
            if self.metrics is not None and now >= self.metrics.next and self.metrics.listens():
                self._fork_metrics(self.metrics)
        except OSError as error:
            log.error("cannot fork a process (%s); trying again in %.1f s", error, self._again_after)
            self._again_at = time.monotonic() + self._again_after
            self._again_after = min(self._again_after * 2, LONGEST_PAUSE)
            return
        if self._again_after != FIRST_PAUSE:
            self._again_after = FIRST_PAUSE
            self._claims()

    # -- signals ----------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        for sock in (self._wake, self._alarm):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        # SIGUSR1, too: a stop that reaches a runner before its own handler is there must not end it.
        for number in (*_FORWARD, signal.SIGUSR1):
            signal.signal(number, signals.only_wake)
        signals.disregard()
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_signal)
        if self.lineage is not None:
            signal.signal(signal.SIGHUP, signals.only_wake)
            self.lineage.join(self._selector, self)
            if self.lineage.waits:
                self._settling = Settling(self._selector, self._settled)
        # Whoever started us may have blocked some, which is inherited.
        signals.let_in()

    def _on_signal(self) -> None:
        heard = signals.heard(self._wake)
        for number in heard:
            if number == signal.SIGCHLD:
                self._reap()
            elif number in signals.STOPS:
                self.asked_to_stop(at_once=number == signal.SIGQUIT)
            elif number in signals.RESIZE:
                self.grow(signals.RESIZE[signal.Signals(number)] * heard[number])
            elif number == signal.SIGHUP and self.lineage is not None:
                self.lineage.hung_up()

    def asked_to_stop(self, *, at_once: bool = False) -> None:
        """Somebody wants this worker to end: when its jobs have, or ``at_once``, as when it is asked again."""
        now = time.monotonic()
        if self.stopping and not at_once and now - self._last_signal < SAME_SIGNAL:
            return
        again, self.stopping, self._last_signal = self.stopping or at_once, True, now
        self._fork_at = None
        self._tell(Drain(again))
        if self.lineage is not None:
            self.lineage.stop(again=again)

    def retire(self) -> None:
        """Another image claims: finish what runs here. A first TERM after this is still a first one."""
        self.retired, self._fork_at = True, None
        self._tell(Drain(now=False))
        if self.metrics is not None:
            # The address is the next image's.
            self.metrics.stop()

    def resize(self, kind: str, size: int) -> None:
        """Run so many of a kind at once, as the image before this one did."""
        self.options = self.options.resized(kind, size)
        self._tell(Size(kind, size))

    def grow(self, by: int) -> None:
        """Run so many more at once, or fewer; of an image that finishes, it is the next one that is meant."""
        if not (self.stopping or self.retired):
            self._tell(Resize(by))
        elif self.lineage is not None:
            self.lineage.grow(by)

    def _tell(self, message: FromSupervisor, descriptors: list[int] | None = None) -> None:
        if self._control is not None:
            # A dispatcher that is gone is noticed by its death; what it should have heard does not matter.
            with contextlib.suppress(Closed):
                self._control.send(message, descriptors)

    # -- the dispatcher ---------------------------------------------------------------------------------------------

    def _fork_dispatcher(self) -> None:
        mine, theirs = socket.socketpair()
        parent = os.getpid()
        warmup.write_out()
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                mine.close()
                raise
            if not pid:
                strangers = [mine, self._wake, self._alarm, *self._links()]
                _child(self._run_dispatcher, theirs, strangers, parent, die_with_parent=False)
        self._fork_at = None
        self._dispatcher, self._born = pid, time.monotonic()
        self._control = Channel(mine, ToSupervisor)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def _links(self) -> list[socket.socket]:
        """What children must close: one that held it would keep an address taken, or an image from ending."""
        listening = [] if self.metrics is None or self.metrics.sock is None else [self.metrics.sock]
        settling = [] if self._settling is None else self._settling.socks
        return [*listening, *settling, *([] if self.lineage is None else self.lineage.links())]

    def _run_dispatcher(self, theirs: socket.socket) -> int:
        self._selector.close()
        # It holds four descriptors for each runner. No code of the application will miss the lower limit there.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        control: Channel[FromSupervisor] = Channel(theirs, FromSupervisor)
        Dispatcher(self.app, self.options, control, self.place, self._anchor, self.learned).run(self.owner)
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
                    self._wanted.append(message)
                    self._fork_due()
                case Signal():
                    self._signal(message)
                case Size():
                    self.options = self.options.resized(message.kind, message.size)
                    if self.lineage is not None:
                        self.lineage.resized(message.kind, message.size)
                case Owner():
                    self.owner = message.owner
                    # Its runners were asked for before this.
                    self._claims()

    def _dispatcher_died(self, status: int) -> None:
        """What it held is taken over by the next one, once nothing runs that nobody could settle."""
        self._dispatcher = 0
        # The next one asks for its own.
        self._wanted.clear()
        if self._control is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None
        if os.waitstatus_to_exitcode(status) == 0:
            return
        log.error("the dispatcher died (%s)", _how(status))
        self._stop_runners(0.0)
        if self.stopping or self.retired:
            return
        self._deaths = self._deaths + 1 if time.monotonic() - self._born < 10.0 else 0
        delay = 0.0 if self._deaths < 2 else min(0.1 * 2 ** min(self._deaths, 7), 10.0)
        self._fork_at = time.monotonic() + delay

    def _claims(self) -> None:
        """The image claims, if it is registered and its runners are forked and have settled in."""
        coming = self._wanted or (self._settling and self._settling.socks)
        if self.lineage is None or self.stopping or not self.owner or coming:
            return
        self._settling = None
        self.lineage.claims()

    def _settled(self, trouble: str) -> None:
        if trouble and self._settling is not None and self.lineage is not None:
            self._settling.end()
            self._settling = None
            if not self.stopping:
                self.lineage.failed(f"its runners cannot begin: {trouble}")
                self.asked_to_stop()
        elif not trouble:
            self._claims()

    # -- figures ----------------------------------------------------------------------------------------------------

    def _fork_metrics(self, metrics: Metrics) -> None:
        parent, mine = os.getpid(), metrics.sock
        assert mine is not None
        pid = os.fork()
        if not pid:
            strangers = [self._wake, self._alarm, *([self._control.sock] if self._control else [])]
            strangers += [link for link in self._links() if link is not mine]
            _child(self._run_metrics, mine, strangers, parent, die_with_parent=True)
        metrics.forked(pid)

    def _run_metrics(self, sock: socket.socket) -> int:
        # Out of the group, so that a Ctrl-C in the terminal is the supervisor's to pass on.
        os.setpgid(0, 0)
        self._selector.close()
        answer(self.app, sock)

    # -- runners ----------------------------------------------------------------------------------------------------

    def _fork_runner(self, kind: str, *, profile: bool) -> None:
        with contextlib.ExitStack() as stack:
            self._fork_runner_with(stack, kind, profile=profile)

    def _fork_runner_with(self, stack: contextlib.ExitStack, kind: str, *, profile: bool) -> None:
        """Fork it; ``stack`` closes what is not ours to keep, whether it was forked or not."""
        began = time.monotonic_ns() if profile else 0
        mine, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
        ticket_read, ticket_write = _pipe(stack)
        err_read, err_write = _pipe(stack)
        os.set_blocking(ticket_read, False)
        parent = os.getpid()
        control = [self._control.sock] if self._control else []
        settled = None if self._settling is None else stack.enter_context(self._settling.expected())
        forker = kind == "fork" and fork_server.lasts(self.app)
        # A forker surrounds its own children with them.
        before, after = ([], []) if forker else (self.app.before_fork_hooks, self.app.after_fork_parent_hooks)
        run_around_fork(list(reversed(before)))
        stack.callback(run_around_fork, after)
        warmup.write_out()

        def be(sock: socket.socket) -> int:
            os.setpgid(0, 0)
            signals.regard()
            os.dup2(err_write, 2)
            STREAMS.be_patient()
            for descriptor in (ticket_write, err_read, err_write):
                os.close(descriptor)
            return self._run_runner(sock, kind, ticket_read, began, settled, forker=forker)

        pid = os.fork()
        if not pid:
            strangers = [mine, self._wake, self._alarm, *control, *self._links()]
            _child(be, theirs, strangers, parent, die_with_parent=True)
        # Both sides set the group: whoever comes first, a kill of the group can never hit ours.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._number += 1
        self.children[pid] = Child(self._number, kind, pid)
        starting = starts_up(self.app, kind, forker=forker)
        self._tell(
            Spawned(self._number, kind, pid, forker, starting), [mine.fileno(), ticket_read, ticket_write, err_read]
        )

    def _run_runner(
        self,
        theirs: socket.socket,
        kind: str,
        tickets: int,
        forked: int,
        settled: socket.socket | None,
        *,
        forker: bool,
    ) -> int:
        self._selector.close()
        channel: Channel[ToRunner] = Channel(theirs, ToRunner)
        options = runner_process.RunnerOptions(
            slots=self.options.slots(kind),
            measure_memory=self.options.recycle_memory > 0,
            place=self.place,
            forked=forked,
            forker=forker,
            settled=None if settled is None else partial(tell, settled),
        )
        return runner_process.serve(self.app, kind, channel, tickets, options)

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
            elif self.metrics is not None and self.metrics.pid == pid:
                self.metrics.died(_how(status))
            elif self.lineage is not None:
                self.lineage.reaped(pid, status)

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


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends of a pipe, for reading and for writing, which the stack closes."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


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
            signal.signal(number, signals.only_wake)
        for stranger in strangers:
            stranger.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if die_with_parent:
            die_with(parent)
        code = main(sock)
    except BaseException:
        log.critical("a process of the worker failed", exc_info=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        STREAMS.drain()
        os._exit(code)
