"""The process that answers Prometheus and probes for a worker, and its address.

The supervisor holds the socket, so that an address that is taken is told at the start and a death loses no request in
its queue. In a rolling restart the address passes on when the old image retires.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING, NoReturn

from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.worker.health_stamps import HealthStamps

if TYPE_CHECKING:
    from headrace.stats.http_server import Answer, Page

log = logging.getLogger("headrace.worker")

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
        from headrace.stats import http_server

        self.sock = http_server.listen(*self._address)
        return http_server.url_of(self.sock)

    def listens(self, now: float) -> bool:
        """Whether the address is ours; if not, it is tried again: the image before this has it until it retires."""
        if self.sock is None:
            try:
                log.info("metrics server listens on %s", self.listen())
            except HeadraceError as error:
                self._since = now if self._since is None else self._since
                if now - self._since >= PATIENCE and not self.told:
                    log.warning("the metrics server cannot start yet: %s", error)
                    self.told = True
        return self.sock is not None

    def close(self) -> None:
        """Give the address up. Closing twice is fine."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def answer(app: Headrace, stamps: HealthStamps, address: MetricsAddress) -> NoReturn:
    """Be the child: answer until killed. It holds nothing that would be lost with it."""
    from headrace.admin.scale_page import scale_page
    from headrace.metrics.exporter import Exporter
    from headrace.stats import prometheus

    assert address.sock is not None
    prometheus.serve(
        address.sock, [Exporter(app.client, app.stats)], pages(stamps) | {"/scale": scale_page(app.queues)}
    )


def pages(stamps: HealthStamps) -> dict[str, Page]:
    """What is told besides metrics, by path."""
    from headrace.stats.http_server import Answer

    def verdict(troubles: list[str]) -> Answer:
        return Answer(503, "".join(f"{trouble}\n" for trouble in troubles)) if troubles else Answer(200, "ok\n")

    return {
        "/healthz": lambda _: verdict(stamps.read().unhealthy(time.monotonic())),
        "/readyz": lambda _: verdict(stamps.read().unready(time.monotonic())),
    }
