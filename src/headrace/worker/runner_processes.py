"""The processes that a supervisor forks: dispatcher, runners, and the metrics server.

That one answers Prometheus and probes: the supervisor has no connection, the dispatcher may not wait for a slow reader,
runners come and go. The supervisor holds its socket, so that an address in use is reported at the start and a death
loses no request. In a reload the address passes on when the old worker is told to leave.
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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import msgspec

from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.model.options import FORKING, Kind
from headrace.worker import warmup
from headrace.worker.channel import Channel, Closed, decoder
from headrace.worker.child_process import fork_child, how, kill_group, kill_runner, only_wake, prctl
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.messages import Died, FromRunner, FromSupervisor, Signal, Spawn, Spawned, ToRunner, ToSupervisor
from headrace.worker.runner import process_kind, runner_process
from headrace.worker.runner.lifespans import starts_up
from headrace.worker.runner.runner_context import RunnerOptions
from headrace.worker.standard_streams import STREAMS, log
from headrace.worker.warmup import run_around_fork
from headrace.worker.worker_options import WorkerOptions

if TYPE_CHECKING:
    from headrace.stats.prometheus import Answer, Page

# From the second on that dies younger than this (seconds), the next one is forked after a pause of at most so long.
YOUNG = 10.0
MOST_PAUSE = 10.0


class DispatcherProcess:
    """The one that works, if any.

    Attributes:
        pid: of its process; 0: there is none.
        fork_at: when one must be forked (monotonic seconds); infinity: none any more.
    """

    def __init__(self, selector: selectors.BaseSelector, on_message: Callable[[ToSupervisor], None]) -> None:
        self.pid = 0
        self.fork_at = 0.0
        self._selector = selector
        self._on_message = on_message
        self._control: Channel[ToSupervisor] | None = None
        self._born = 0.0
        self._deaths = 0

    @property
    def sockets(self) -> list[socket.socket]:
        return [] if self._control is None else [self._control.sock]

    def fork(self, work: Callable[[Channel[FromSupervisor]], None], to_close: list[socket.socket]) -> None:
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
                self.pid = fork_child(be, [mine, *to_close], tied=False)
            except OSError:
                mine.close()
                raise
        self.fork_at, self._born = float("inf"), time.monotonic()
        self._control = Channel(mine, ToSupervisor)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def send(self, message: FromSupervisor, descriptors: list[int] | None = None) -> None:
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
            self._on_message(message)

    def reaped(self) -> None:
        self.pid = 0
        if self._control is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None

    def schedule_fork(self) -> None:
        self._deaths = self._deaths + 1 if time.monotonic() - self._born < YOUNG else 0
        delay = 0.0 if self._deaths < 2 else min(0.1 * 2 ** min(self._deaths, 7), MOST_PAUSE)
        self.fork_at = time.monotonic() + delay


# A dispatcher opens this many descriptors for each runner, for each shard, and at most this many for all else.
EACH, OF_SHARD, OTHERS = 4, 5, 15


def make_before_forks(app: Headrace) -> None:
    for reads in (ToRunner, FromRunner, ToSupervisor, FromSupervisor):
        decoder(reads)
    prctl()
    for task in app.tasks.values():
        if task.kind == "fork":
            task.prepare()


class Child(msgspec.Struct):
    """A runner; ``number``: with the dispatcher; ``fenced``: it was killed for a dispatcher that did not move."""

    number: int
    kind: Kind
    pid: int
    is_fork_server: bool
    fenced: bool = False

    def kill(self) -> None:
        kill_runner(self.pid, is_fork_server=self.is_fork_server)


class RunnerProcesses:
    """Those that were not reaped; ``last``: number of the last one that was forked."""

    def __init__(
        self,
        app: Headrace,
        place: str,
        selector: selectors.BaseSelector,
        dispatcher: DispatcherProcess,
        to_close: Callable[[], list[socket.socket]],
    ) -> None:
        self.last = 0
        self._app, self._place = app, place
        self._selector, self._dispatcher, self._to_close = selector, dispatcher, to_close
        self._children: dict[int, Child] = {}
        self._store_use = warmup.StoreUse()

    @property
    def present(self) -> bool:
        return bool(self._children)

    def fork(self, wanted: Spawn, options: WorkerOptions) -> None:
        """Fork a runner, and hand the dispatcher its descriptors. Raises OSError: the system, or that, has no room."""
        # Descriptors that find no room with the dispatcher are lost on the way to it.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        used = EACH * (len(self._children) + 1) + OF_SHARD * self._app.client.count + OTHERS
        if most != resource.RLIM_INFINITY and used > most:
            raise OSError(errno.EMFILE, "too many runners for this limit of open files: raise it, or run fewer at once")
        with contextlib.ExitStack() as stack:
            self._fork(stack, wanted, options)

    def _fork(self, stack: contextlib.ExitStack, wanted: Spawn, options: WorkerOptions) -> None:
        self._store_use.load_if_used(self._app)
        kind = wanted.kind
        mine, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
        ticket_read, ticket_write = _pipe(stack)
        err_read, err_write = _pipe(stack)
        os.set_blocking(ticket_read, False)
        is_fork_server = kind in FORKING and process_kind.lasts(self._app)
        facts = RunnerOptions(
            kind, Channel(theirs, ToRunner), ticket_read, slots=options.slots(kind),
            measure_memory=options.recycle_memory > 0 or self._app.settings.log_jobs == "all", place=self._place,
            profiled=wanted.profile, is_fork_server=is_fork_server, store_use=self._store_use,
        )  # fmt: skip
        # A fork server surrounds its own children with them.
        before, after = ([], []) if is_fork_server else (self._app.before_fork_hooks, self._app.after_fork_parent_hooks)
        run_around_fork(list(reversed(before)))
        stack.callback(run_around_fork, after)
        warmup.write_out()

        def be() -> int:
            # QUIT is as in any program. USR1 and USR2 end no runner that has no handlers of its own yet.
            if signal.getsignal(signal.SIGQUIT) is only_wake:
                signal.signal(signal.SIGQUIT, signal.SIG_DFL)
            os.dup2(err_write, 2)
            STREAMS.be_patient()
            for descriptor in (ticket_write, err_read, err_write):
                os.close(descriptor)
            self._selector.close()
            return runner_process.serve(self._app, facts)

        pid = fork_child(be, [mine, *self._to_close()])
        self.last += 1
        self._children[pid] = Child(self.last, kind, pid, is_fork_server)
        spawned = Spawned(self.last, kind, pid, is_fork_server, starts_up(self._app, kind))
        self._dispatcher.send(spawned, [mine.fileno(), ticket_read, ticket_write, err_read])

    def signal(self, message: Signal) -> None:
        # Only a child that was not reaped yet is signalled: its number cannot belong to a stranger.
        child = next((one for one in self._children.values() if one.number == message.runner), None)
        if child is not None and message.what == "kill":
            child.kill()
        elif child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child.pid, signal.SIGUSR1 if message.what == "stop" else signal.SIGUSR2)

    def kill_all(self) -> None:
        for child in self._children.values():
            child.fenced = True
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
        self._dispatcher.send(Died(child.number, max(0, -code), max(0, code), size, child.fenced))
        return True

    def stop(self, patience: float) -> None:
        """Every runner ends: by itself within ``patience`` seconds, then by force."""
        end = time.monotonic() + patience
        while self._children and time.monotonic() < end:
            # Nothing reads here what signals and a dead dispatcher have made readable: a select would not wait.
            time.sleep(min(0.01, patience))
            self._reap_quietly(os.WNOHANG)
        self.kill_all()
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
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


# Seconds that the worker before this may take to give the address up; then the log says that it is taken.
PATIENCE = 10.0
# Seconds between two starts: one that dies at once must not keep the supervisor busy.
PAUSE = 1.0
# Seconds between two attempts to have an address that the worker before gives up soon: no request is answered then.
AGAIN = 0.05
_NEVER = float("inf")


class MetricsServer:
    """The process that answers Prometheus and probes. It holds nothing that would be lost with it.

    Attributes:
        pid: of the process; 0: there is none.
        next: when one must be forked (monotonic seconds).
        sock: where it listens, once the address is ours. The process inherits it; the others close it.
    """

    def __init__(self, host: str, port: int, stamps: HealthStamps) -> None:
        self.pid = 0
        self.next = 0.0
        self.sock: socket.socket | None = None
        self._address = host, port
        self._stamps = stamps
        self._told = False
        # Since when the address is waited for.
        self._since: float | None = None

    def listen(self) -> str:
        """Take the address; the URL to ask at. Raises HeadraceError: it cannot be used."""
        from headrace.stats import prometheus

        self.sock = prometheus.listen(*self._address)
        return prometheus.url_of(self.sock)

    def listens(self, now: float) -> bool:
        """Whether the address is ours; if not, it is tried again: the worker before this one may have it."""
        if self.sock is None:
            try:
                log.info("metrics server listens on %s", self.listen(), code="metrics.listens")
            except HeadraceError as error:
                self._since = now if self._since is None else self._since
                if now - self._since >= PATIENCE and not self._told:
                    log.warning("the metrics server cannot start yet: %s", error, code="metrics.waiting")
                    self._told = True
        return self.sock is not None

    def fork(self, app: Headrace, selector: selectors.BaseSelector, to_close: Sequence[socket.socket]) -> None:
        """Fork the process, which closes these, unless its address cannot be had yet. Raises OSError: no room."""
        now = time.monotonic()
        if not self.listens(now):
            self.next = now + (PAUSE if self._told else AGAIN)
            return

        def be() -> NoReturn:
            from headrace.admin.queues import scale_page
            from headrace.metrics import Exporter
            from headrace.stats import prometheus

            selector.close()
            assert self.sock is not None
            more = pages(self._stamps) | {"/scale": scale_page(app.queues)}
            prometheus.serve(self.sock, [Exporter(app.client, app.stats)], more)

        self.pid = fork_child(be, to_close)
        self.next = _NEVER

    def reaped(self, pid: int, status: int) -> None:
        if pid == self.pid:
            self.pid = 0
            log.warning("the metrics server exited (%s); restarting", how(status), code="process.restarted")
            self.next = time.monotonic() + PAUSE

    def stop(self) -> None:
        self.next = _NEVER
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


def pages(stamps: HealthStamps) -> dict[str, Page]:
    from headrace.stats.prometheus import Answer

    def verdict(troubles: list[str]) -> Answer:
        return Answer(503, "".join(f"{trouble}\n" for trouble in troubles)) if troubles else Answer(200, "ok\n")

    return {
        "/healthz": lambda _: verdict(stamps.read().reasons_unhealthy(time.monotonic())),
        "/readyz": lambda _: verdict(stamps.read().reasons_unready(time.monotonic())),
    }
