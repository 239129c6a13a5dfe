"""Processes beside the dispatcher and the runners: one answers Prometheus and probes, one calls hooks.

Each is forked from the warm image, and again when it dies. They are processes of their own, because no other one may do
what they do: the supervisor may have no thread and no connection, the dispatcher may not wait for a slow reader and
runs no code of the application, runners come and go with jobs.

The process that answers Prometheus and probes for a worker, and its address.

The supervisor holds the socket, so that an address that is taken is told at the start and a death loses no request in
its queue. In a rolling restart the address passes on when the old image retires.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.worker.forking.child_process import fork_child, how
from headrace.worker.forking.standard_streams import log
from headrace.worker.health_stamps import HealthStamps

if TYPE_CHECKING:
    from headrace.stats.prometheus import Answer, Page


# Seconds that the image before this may take to give the address up: what keeps it for longer is to be told of.
PATIENCE = 10.0


class MetricsAddress:
    """Where Prometheus is answered.

    Attributes:
        sock: where it listens; None before and after.
        told: whether the log says that the address is taken.
    """

    def __init__(self, host: str, port: int) -> None:
        self.sock: socket.socket | None = None
        self._address = host, port
        self.told = False
        # Since when it is waited for.
        self._since: float | None = None

    def listen(self) -> str:
        """Take the address; the URL to ask at. Raises HeadraceError: it cannot be used."""
        from headrace.stats import prometheus

        self.sock = prometheus.listen(*self._address)
        return prometheus.url_of(self.sock)

    def listens(self, now: float) -> bool:
        """Whether the address is ours; if not, it is tried again: the image before this has it until it retires."""
        if self.sock is None:
            try:
                log.info("metrics server listens on %s", self.listen(), code="metrics.listens")
            except HeadraceError as error:
                self._since = now if self._since is None else self._since
                if now - self._since >= PATIENCE and not self.told:
                    log.warning("the metrics server cannot start yet: %s", error, code="metrics.waiting")
                    self.told = True
        return self.sock is not None

    def close(self) -> None:
        """Give the address up. Closing twice is fine."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def answer(app: Headrace, stamps: HealthStamps, address: MetricsAddress) -> NoReturn:
    """Be the child: answer until killed. It holds nothing that would be lost with it."""
    from headrace.admin.queues import scale_page
    from headrace.metrics.exporter import Exporter
    from headrace.stats import prometheus

    assert address.sock is not None
    prometheus.serve(
        address.sock, [Exporter(app.client, app.stats)], pages(stamps) | {"/scale": scale_page(app.queues)}
    )


def pages(stamps: HealthStamps) -> dict[str, Page]:
    """What is told besides metrics, by path."""
    from headrace.stats.prometheus import Answer

    def verdict(troubles: list[str]) -> Answer:
        return Answer(503, "".join(f"{trouble}\n" for trouble in troubles)) if troubles else Answer(200, "ok\n")

    return {
        "/healthz": lambda _: verdict(stamps.read().unhealthy(time.monotonic())),
        "/readyz": lambda _: verdict(stamps.read().unready(time.monotonic())),
    }


# Seconds between two starts: one that dies at once must not keep the supervisor busy.
PAUSE = 1.0
# Seconds between two attempts to have an address which the image before gives up soon: nobody is answered meanwhile.
AGAIN = 0.05
_NEVER = float("inf")


class SideProcess:
    """One of them.

    Attributes:
        pid: of the child; 0: there is none.
        next: when one must be forked (monotonic seconds).
        address: where it listens; None: nowhere. The child inherits the socket, all others of the supervisor close it.
    """

    def __init__(
        self,
        name: str,
        main: Callable[[Headrace], object],
        *,
        address: MetricsAddress | None = None,
        stop_by: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Make one that is due at once.

        Args:
            main: what the child does, until it ends or is stopped.
            stop_by: how it is told to stop; one that would lose something gets TERM.
        """
        self.pid = 0
        self.next = 0.0
        self.address = address
        self._name, self._main, self._stop_by = name, main, stop_by
        self._stopped = False

    @property
    def socks(self) -> list[socket.socket]:
        """What the other children must close."""
        return [] if self.address is None or self.address.sock is None else [self.address.sock]

    def fork(self, app: Headrace, selector: selectors.BaseSelector, strangers: Sequence[socket.socket]) -> None:
        """Fork the child, which closes these, unless its address cannot be had yet. Raises OSError: no room."""
        now = time.monotonic()
        if self.address is not None and not self.address.listens(now):
            self.next = now + (PAUSE if self.address.told else AGAIN)
            return
        mine = self.socks

        def be() -> int:
            selector.close()
            self._main(app)
            return 0

        self.pid = fork_child(be, [one for one in strangers if one not in mine])
        self.next = _NEVER

    def reaped(self, pid: int, status: int) -> bool:
        """Whether this process was the child; another is due after a pause, unless it was stopped."""
        if pid != self.pid:
            return False
        self.pid = 0
        if not self._stopped:
            log.warning("the %s exited (%s); restarting", self._name, how(status), code="process.restarted")
            self.next = time.monotonic() + PAUSE
        return True

    def stop(self) -> None:
        """It ends, and its address is free. Stopping twice is fine."""
        self._stopped, self.next = True, _NEVER
        if self.address is not None:
            self.address.close()
        self._signal(self._stop_by)

    def wait(self, until: float) -> None:
        """Wait until then (monotonic seconds) for the end of a child that was told to end; then end it."""
        while self.pid:
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(self.pid, os.WNOHANG)[0]:
                    if time.monotonic() >= until:
                        self._signal(signal.SIGKILL)
                    time.sleep(0.01)
                    continue
            self.pid = 0

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def metrics_server(address: MetricsAddress, stamps: HealthStamps) -> SideProcess:
    """The process that answers Prometheus and probes there."""
    return SideProcess("metrics server", lambda app: answer(app, stamps, address), address=address)


def watchers(app: Headrace) -> list[SideProcess]:
    """The process that calls hooks and looks at alarms, where the application declares any; or none."""
    if not app.hooks.declared and not app.alarms.declared:
        return []
    return [SideProcess("watcher", _watch, stop_by=signal.SIGTERM)]


def _watch(app: Headrace) -> None:
    from headrace.worker.watcher.watcher_loop import watch

    watch(app)
