"""The supervisor: the warm image that everything else is forked from. It forks, reaps and signals; nothing else.

It forks the dispatcher, and another when it dies, and runners as that asks; it stops the runners of one that died, or
does not move when its lease ends. It passes on signals as messages, and tells the parent of ``--reload`` when the
worker is ready, or why it cannot start. One thread, no store connection, no lock: whatever it forks starts clean.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Generator, MutableMapping
from typing import Any, Self

import msgspec

from headrace.app import Headrace
from headrace.errors import HeadraceError, OptionsError
from headrace.model.options import KINDS, Kind
from headrace.worker import child_process, messages, warmup
from headrace.worker.channel import Channel, Closed
from headrace.worker.child_process import Terminal, fork_child, how, reap
from headrace.worker.health_stamps import REGISTERED, SILENT, HealthStamps, fence_at
from headrace.worker.reload_parent import VARIABLE
from headrace.worker.runner_processes import DispatcherProcess, MetricsServer, RunnerProcesses, make_before_forks
from headrace.worker.standard_streams import STREAMS, log
from headrace.worker.warmup import warm_up
from headrace.worker.worker_options import WorkerOptions, kinds_of, parse_queues

# A second TERM or INT within this many seconds repeats the first (a terminal and a process manager both send one).
SAME_SIGNAL = 1.0
EXIT_PATIENCE = 5.0
# A dispatcher may be silent for this many seconds at the end, however short its lease: it waits for the last runners
# and for the store of its statistics.
LAST_SILENCE = 20.0
# A dispatcher that has not stamped for this many leases when its lease ends does not move. A living one does each 0.2.
STILL = 0.3
# What could not be forked is tried again after this long (seconds), then after twice as long each time.
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
_FOREVER = float("inf")


class ParentLink(msgspec.Struct, frozen=True):
    """A worker's link to its parent; ``first``: no worker served before this one."""

    channel: Channel[messages.ToWorker]
    health: str
    first: bool

    @classmethod
    def take_from(cls, environ: MutableMapping[str, str]) -> Self | None:
        number, health, first = [*environ.pop(VARIABLE, "").split(":"), "", ""][:3]
        if not number:
            return None
        sock = socket.socket(fileno=int(number))
        sock.set_inheritable(False)
        return cls(Channel(sock, messages.ToWorker), health, first == "1")

    def send(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(Closed):
            self.channel.send(message)


class Supervisor:
    """Runs one worker in this process, which has one thread and no open store connection."""

    def __init__(
        self,
        app: Headrace,
        options: WorkerOptions,
        parent: ParentLink | None,
        metrics: MetricsServer | None,
        stamps: HealthStamps,
        terminal: Terminal,
    ) -> None:
        self.app, self.options, self.parent, self.terminal = app, options, parent, terminal
        self._parent_pid = 0 if parent is None else os.getppid()
        self._metrics, self.stamps = metrics, stamps
        self.place = f"{socket.gethostname()}:{os.getpid()}"
        # Incarnations of its dispatchers: the last may have died before it took over from those before it.
        self._owners = deque[str](maxlen=8)
        self.stopping = False
        self._ready = False
        self._wanted: deque[messages.Spawn] = deque()
        self._again_at, self._again_after = 0.0, FIRST_PAUSE
        self._last_signal = 0.0
        self._fence_at = _FOREVER
        self._selector = selectors.DefaultSelector()
        self._dispatcher = DispatcherProcess(self._selector, self._on_message)
        self._runners = RunnerProcesses(app, self.place, self._selector, self._dispatcher, self._to_close)

    def run(self) -> int:
        STREAMS.install()
        make_before_forks(self.app)
        warmup.compact()
        self._listen_to_signals()
        self.stamps.begin(self.app.settings.lease, time.monotonic())
        try:
            while self._dispatcher.fork_at < _FOREVER or self._dispatcher.pid:
                self._fork_due()
                for key, _ in self._selector.select(self._pause()):
                    key.data()
                now = time.monotonic()
                if now >= STREAMS.next:
                    STREAMS.pass_on()
                of_use = self._again_after == FIRST_PAUSE or self._runners.present
                self._keep_fence(now)
                self._end_silent(self.stamps.supervised(now, of_use=of_use))
        finally:
            self.stamps.end()
            self._stop_metrics()
            self._runners.stop(EXIT_PATIENCE)
            STREAMS.drain()
        return 0

    def _pause(self) -> float:
        metrics = _FOREVER if self._metrics is None else self._metrics.next
        fork = min(self._dispatcher.fork_at, metrics, 0.0 if self._wanted else _FOREVER)
        wanted = min(max(fork, self._again_at), STREAMS.next, self.stamps.next, self._fence_at)
        return max(0.0, wanted - time.monotonic())

    def _fork_due(self) -> None:
        now = time.monotonic()
        if now < self._again_at:
            return
        try:
            if now >= self._dispatcher.fork_at:
                self._dispatcher.fork(self._dispatch, self._to_close())
            while self._wanted:
                self._runners.fork(self._wanted[0], self.options)
                self._wanted.popleft()
            if self._metrics is not None and now >= self._metrics.next:
                self._metrics.fork(self.app, self._selector, self._to_close(metrics=False))
        except OSError as error:
            text = "cannot fork a process (%s); trying again in %.1f s"
            log.error(text, error, self._again_after, code="fork.failed")
            self._again_at = time.monotonic() + self._again_after
            self._again_after = min(self._again_after * 2, LONGEST_PAUSE)
            return
        self._again_after = FIRST_PAUSE

    def _dispatch(self, control: Channel[messages.FromSupervisor]) -> None:
        # Here, since runners are forked from a smaller image without it.
        from headrace.worker.dispatcher.loop import Dispatcher

        stamp = self.stamps.dispatched
        Dispatcher(self.app, self.options, control, self.place, stamp, self._parent_pid).run(tuple(self._owners))

    def _to_close(self, *, metrics: bool = True) -> list[socket.socket]:
        """What children must close: one that held it would keep an address taken, or a parent from ending."""
        found = [*self._dispatcher.sockets, *([] if self.parent is None else [self.parent.channel.sock])]
        if metrics and self._metrics is not None and self._metrics.sock is not None:
            found.append(self._metrics.sock)
        return found

    def _listen_to_signals(self) -> None:
        # SIGUSR1, too: a stop that reaches a runner before its own handler is there must not end it.
        wake = child_process.listen((*child_process.HEARD, signal.SIGUSR1))
        child_process.disregard()
        self._selector.register(wake, selectors.EVENT_READ, self._on_signal)
        if self.parent is not None:
            self._selector.register(self.parent.channel, selectors.EVENT_READ, self._on_parent)
            # Sizes were sent at the start: nothing is forked yet, and so no runner in vain.
            self._on_parent()
        if self.terminal.gone and not self.terminal.ignored:
            self.asked_to_stop()
        # The starting process may have blocked some, which is inherited.
        child_process.let_in()

    def _on_signal(self) -> None:
        heard = child_process.taken_signals()
        for number in heard:
            if number == signal.SIGCHLD:
                self._reap()
            elif number in child_process.STOPS:
                self.asked_to_stop(at_once=number == signal.SIGQUIT)
            elif number in child_process.RESIZE:
                self._grow(child_process.RESIZE[signal.Signals(number)] * heard[number])
            elif number == signal.SIGHUP and not self.terminal.gone:
                to_parent = f"send it to process {self._parent_pid}"
                advice = "start the worker with --reload=hup" if self.parent is None else to_parent
                log.warning("HUP reloads nothing here: %s", advice, code="reload.refused")
            elif number == signal.SIGHUP and not self.terminal.ignored and self.parent is None:
                self.asked_to_stop()

    def asked_to_stop(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self.stopping and not at_once and now - self._last_signal < SAME_SIGNAL:
            return
        again, self.stopping, self._last_signal = self.stopping or at_once, True, now
        self._dispatcher.fork_at = _FOREVER
        if self.parent is not None:
            # The address is the next worker's. A probe must not hear of a reload that the worker stops.
            self._stop_metrics()
        self._dispatcher.send(messages.Drain(again))

    def _on_parent(self) -> None:
        assert self.parent is not None
        try:
            heard = self.parent.channel.receive(wait=False)
        except Closed:
            # It was killed: a new worker must find nothing half done.
            self._selector.unregister(self.parent.channel)
            self.asked_to_stop()
            return
        for message in heard:
            match message:
                case messages.Size(kind, size):
                    self.options = self.options.resized(kind, size)
                    self._dispatcher.send(message)
                case messages.Resize(by):
                    self._grow(by)

    def _stop_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.stop()

    def _grow(self, by: int) -> None:
        if self.stopping:
            return
        # Counted here: a dispatcher that dies meanwhile would take the wish along.
        kinds = kinds_of(self.app.tasks)
        kind: Kind = next(one for one in KINDS if one in kinds)
        size = self.options.jobs_at_once(kind) + by
        try:
            self._on_message(messages.Size(kind, size))
        except OptionsError as error:
            log.warning("not resized: %s", error, code="worker.not_resized")
        else:
            self._dispatcher.send(messages.Size(kind, size))

    def _on_message(self, message: messages.ToSupervisor) -> None:
        match message:
            case messages.Spawn():
                self._wanted.append(message)
                self._fork_due()
            case messages.Signal():
                self._runners.signal(message)
            case messages.Size():
                self.options = self.options.resized(message.kind, message.size)
                self._send_parent(message)
            case messages.Quiet():
                self.options = msgspec.structs.replace(self.options, quiet=True)
            case messages.Owner():
                if message.owner not in self._owners:
                    self._owners.append(message.owner)
            case messages.Begun():
                self._begun(message.trouble)

    def _reap(self) -> None:
        for pid, status, memory in reap():
            if pid != self._dispatcher.pid:
                if not self._runners.reaped(pid, status, memory) and self._metrics is not None:
                    self._metrics.reaped(pid, status)
                continue
            self._dispatcher.reaped()
            # The next one asks for its own.
            self._wanted.clear()
            if os.waitstatus_to_exitcode(status) != 0:
                log.error("the dispatcher died (%s)", how(status), code="dispatcher.died")
                self._runners.stop(0.0)
                if not self.stopping:
                    self._dispatcher.schedule_fork()

    def _keep_fence(self, now: float) -> None:
        stamp, lease = self.stamps.read(), self.app.settings.lease
        at = max(fence_at(stamp.until, lease), stamp.dispatcher + STILL * lease)
        if not (stamp.flags & REGISTERED and self._runners.present):
            at = _FOREVER
        elif now >= at:
            silence = now - stamp.dispatcher
            text = "the dispatcher has not moved for %.1f s and its lease ends: killing its runners"
            log.error(text, silence, code="dispatcher.silent")
            self._runners.kill_all()
            # One that was forked meanwhile is killed at a further turn.
            at = now + 1.0
        self._fence_at = at

    def _end_silent(self, silence: float) -> None:
        """A dispatcher that does not move (SIGSTOP) must not hold up the end of the worker; its lease is over."""
        limit = max(SILENT * self.app.settings.lease, LAST_SILENCE)
        if silence >= limit and self._dispatcher.pid and self.stopping:
            text = "the dispatcher has not moved for %.0f s: it is killed, since the worker stops"
            log.error(text, silence, code="dispatcher.killed")
            os.kill(self._dispatcher.pid, signal.SIGKILL)

    def _begun(self, trouble: str) -> None:
        if self.stopping or self._ready:
            return
        if not trouble:
            self._ready = True
            self.stamps.publish()
            self._send_parent(messages.Serves())
        elif self.parent is not None:
            self._send_parent(messages.StartFailed(f"its runners cannot begin: {trouble}"))
            self.asked_to_stop()

    def _send_parent(self, message: messages.Serves | messages.StartFailed | messages.Size) -> None:
        if self.parent is not None:
            self.parent.send(message)


# The worker may take this much longer (seconds) to stop than its jobs and runners.
SPARE = 30.0


@contextlib.contextmanager
def worker(app: Headrace, queues: str = "default", **sizes: int) -> Generator[int]:
    """Run a worker of this program's tasks as long as the block; yields its process id.

    It is forked from this program, so it runs what is defined so far, in a notebook too, in all kinds. Variables that
    jobs change are the worker's. Where the block ends, running jobs get ``shutdown_timeout`` seconds; what has not
    ended then returns to its queue. It stops likewise when the program ends or is killed.

    Args:
        queues: as ``headrace worker --queues`` takes them.
        sizes: fields of :class:`headrace.worker.worker_options.WorkerOptions`, such as ``threads``.

    Raises:
        OptionsError: there is no task, queue or size like this.
        HeadraceError: the worker could not start within ``reload_timeout`` seconds.
    """
    try:
        given: dict[str, Any] = {**sizes}
        options = WorkerOptions(queues=parse_queues(queues), **given)
    except TypeError as error:
        raise OptionsError(f"app.worker: {error}") from None
    if not app.tasks:
        raise OptionsError("the application has no task: define its tasks before app.worker()")
    # The private server, where it is one, is this program's too.
    app.client.url()
    mine, theirs = socket.socketpair()

    def be() -> int:
        # No Ctrl-C of the program's terminal reaches it.
        os.setsid()
        app.disconnect()
        warm_up(app)
        parent = ParentLink(Channel(theirs, messages.ToWorker), "", first=True)
        return Supervisor(app, options, parent, None, HealthStamps("a program"), Terminal.of_process()).run()

    with mine:
        with theirs:
            pid = fork_child(be, [mine], tied=False)
        link: Channel[messages.FromWorker] = Channel(mine, messages.FromWorker)
        try:
            _await_start(link, time.monotonic() + app.settings.reload_timeout)
            yield pid
        finally:
            _stop(link, pid, time.monotonic() + app.settings.shutdown_timeout + app.settings.kill_timeout + SPARE)


def _await_start(link: Channel[messages.FromWorker], end: float) -> None:
    while select.select([link.sock], [], [], max(0.0, end - time.monotonic()))[0]:
        try:
            heard = link.receive(wait=False)
        except Closed:
            raise HeadraceError("the worker ended before it was ready; its stderr says why") from None
        for message in heard:
            if isinstance(message, messages.StartFailed):
                raise HeadraceError(f"the worker cannot start: {message.reason}")
            if isinstance(message, messages.Serves):
                return
    raise HeadraceError("the worker was not ready in time; its stderr says what it waits for")


def _stop(link: Channel[messages.FromWorker], pid: int, end: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with contextlib.suppress(Closed):
        while select.select([link.sock], [], [], max(0.0, end - time.monotonic()))[0]:
            link.receive(wait=False)
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
