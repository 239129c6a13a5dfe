"""The process that answers Prometheus and probes for a worker: forked from the warm image, and again when it dies.

A process of its own, because neither of the others may do this: the supervisor may have no thread and no connection,
the dispatcher may not wait for a slow reader, runners run user code. The supervisor holds the socket, so that an
address that is taken is told at the start and a death loses no request in its queue. In a rolling restart the address
passes on when the old image retires.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from headrace.errors import HeadraceError
from headrace.stats.http_server import Answer, Page
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.supervisor.children import be_child

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")

# Seconds between two starts: one that dies at once must not keep the supervisor busy.
PAUSE = 1.0


class Metrics:
    """A listening socket, and who answers at it.

    Attributes:
        sock: where it listens; None before and after. The child inherits it, all others of the supervisor close it.
        pid: of the child; 0: there is none.
        next: when one must be forked (monotonic seconds).
    """

    def __init__(self, host: str, port: int, stamps: HealthStamps) -> None:
        self.sock: socket.socket | None = None
        self.pid = 0
        self.next = 0.0
        self._address = host, port
        self._stamps = stamps
        self._refused = False

    def listen(self) -> str:
        """Take the address; the URL to ask at.

        Raises:
            HeadraceError: it cannot be used.
        """
        from headrace.stats import http_server

        self.sock = http_server.listen(*self._address)
        return http_server.url_of(self.sock)

    def listens(self) -> bool:
        """Whether the address is ours; if not, it is tried again after a pause: the image before this may have it."""
        if self.sock is None:
            try:
                log.info("metrics server listens on %s", self.listen())
            except HeadraceError as error:
                self.next = time.monotonic() + PAUSE
                if not self._refused:
                    log.warning("the metrics server cannot start yet: %s", error)
                self._refused = True
        return self.sock is not None

    def fork(self, app: Headrace, selector: selectors.BaseSelector, strangers: Sequence[socket.socket]) -> None:
        """Fork the child.

        Args:
            selector: the supervisor's, which the child closes.
            strangers: sockets that it closes, besides its own.

        Raises:
            OSError: the system has no room for it.
        """
        parent, mine = os.getpid(), self.sock
        assert mine is not None

        def be(sock: socket.socket) -> int:
            # Out of the group, so that a Ctrl-C in the terminal is the supervisor's to pass on.
            os.setpgid(0, 0)
            selector.close()
            answer(app, self._stamps, sock)

        pid = os.fork()
        if not pid:
            be_child(be, mine, [one for one in strangers if one is not mine], parent, die_with_parent=True)
        self.pid, self.next = pid, float("inf")

    def died(self, how: str) -> None:
        """The child ended; another is due after a pause, unless it was stopped."""
        self.pid = 0
        if self.sock is not None:
            log.warning("the metrics server exited (%s); restarting", how)
            self.next = time.monotonic() + PAUSE

    def stop(self) -> None:
        """Nobody answers any more, and the address is free. Stopping twice is fine."""
        self.next = float("inf")
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def answer(app: Headrace, stamps: HealthStamps, sock: socket.socket) -> NoReturn:
    """Be the child: answer until killed. It holds nothing that would be lost with it."""
    from headrace.admin.scale_page import scale_page
    from headrace.metrics.exporter import Exporter
    from headrace.stats import prometheus

    prometheus.serve(sock, [Exporter(app.client, app.stats)], pages(stamps) | {"/scale": scale_page(app.queues)})


def pages(stamps: HealthStamps) -> dict[str, Page]:
    """What is told besides metrics, by path."""

    def verdict(troubles: list[str]) -> Answer:
        return Answer(503, "".join(f"{trouble}\n" for trouble in troubles)) if troubles else Answer(200, "ok\n")

    return {
        "/healthz": lambda _: verdict(stamps.read().unhealthy(time.monotonic())),
        "/readyz": lambda _: verdict(stamps.read().unready(time.monotonic())),
    }
