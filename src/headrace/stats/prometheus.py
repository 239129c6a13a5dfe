"""Prometheus endpoints: the server for a worker's pages, and the endpoint of statistics.

:func:`serve_pages` is a small HTTP server for programs that watch a worker: it knows pages by path, and nothing of
their content. :class:`Scrape` counts under chosen labels: it reads at each scrape, and stores nothing. Needs the
``prometheus`` extra.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, cast
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from headrace.errors import HeadraceError, OptionsError
from headrace.protocol.stats_calls import children
from headrace.stats.reading import Reading, ask
from headrace.stats.resolutions import ALL, UNITS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from headrace.stats.reading import Bucket
    from headrace.stats.resolutions import Resolution, Resolutions
    from headrace.stats.stats import Stats

log = logging.getLogger("headrace.stats")

LOCAL = "127.0.0.1"
PORT = 9464


class Answer(NamedTuple):
    status: int
    body: str
    type: str = "text/plain; charset=utf-8"


#: A page: what was asked behind the ``?``, by name; and what it says to that.
Page = Callable[[Mapping[str, str]], Answer]


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9464``, ``[::1]:9464`` or ``9464``, which is this machine's own."""
    host, _, port = text.strip().rpartition(":")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535 or (":" in host and host[:1] != "["):
        raise OptionsError(f"metrics={text!r} is not an address: write 127.0.0.1:9464, [::1]:9464 or a port alone")
    return host.strip("[]") or LOCAL, int(port)


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(16)
        except BaseException:
            sock.close()
            raise
    except (OSError, OverflowError) as error:
        raise HeadraceError(f"cannot listen on {host}:{port}: {error}; take another port or address") from None
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


class _Quiet(WSGIRequestHandler):
    # Who connects and says nothing holds a thread for so long, seconds.
    timeout = 10

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        log.debug(format, *args)


class _Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def serve_pages(
    sock: socket.socket, metrics: Callable[[Any, Any], Iterable[bytes]], pages: Mapping[str, Page]
) -> NoReturn:
    """Answer requests at a listening socket, a thread each; ``metrics`` is asked for every path that is not a page."""
    server = _Threaded(sock.getsockname()[:2], _Quiet, bind_and_activate=False)
    server.socket.close()
    server.socket = sock
    # What binding would have done, but for the look-up of our own name, which may take seconds.
    server.server_name, server.server_port = sock.getsockname()[:2]
    server.setup_environ()
    server.set_app(_routed(metrics, pages))
    server.serve_forever()
    raise AssertionError


def _routed(
    metrics: Callable[[Any, Any], Iterable[bytes]], pages: Mapping[str, Page]
) -> Callable[[Any, Any], Iterable[bytes]]:
    def answered(environ: Any, start: Any) -> Iterable[bytes]:
        page = pages.get(environ.get("PATH_INFO", ""))
        try:
            if page is None:
                return metrics(environ, start)
            status, body, type_ = page(dict(parse_qsl(environ.get("QUERY_STRING", ""))))
        except OptionsError as error:
            status, body, type_ = Answer(400, f"{error}\n")
        except HeadraceError as error:
            if page is None:
                log.warning("Prometheus got an error instead of metrics: %s", error)
            status, body, type_ = Answer(503, f"{error}\n")
        data = body.encode()
        phrase = f"{status} {HTTPStatus(status).phrase}"
        start(phrase, [("Content-Type", type_), ("Content-Length", str(len(data))), ("Cache-Control", "no-store")])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [data]

    return answered


# Labels below each chosen one that one scrape tells of, those that were counted last.
MOST = 500
QUANTILES = (50, 90, 95, 99)
# Seconds that the quantiles are of.
WINDOW = 3600


class Collector(Protocol):
    def collect(self) -> Iterable[Metric]: ...
    def describe(self) -> Iterable[Metric]: ...


class Scrape:
    """What Prometheus collects of a program's own labels.

    A counter is that of the current bucket of the coarsest resolution, so it begins anew with each of them: Prometheus
    takes that as the reset that it is. Quantiles are of the last hour.
    """

    def __init__(self, stats: Stats, labels: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        self._stats = stats
        self._labels = labels
        self._clock = clock
        self._warned = False

    def collect(self) -> Iterator[Metric]:
        """All figures; none when the server does not answer: Prometheus shows a failed scrape. Two round trips."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        names = ["label", "field"]
        counts = CounterMetricFamily("headrace_stats", f"Counted in the current bucket{_UNITS}.", labels=names)
        seen = CounterMetricFamily("headrace_stats_observed", "Values observed in the current bucket.", labels=names)
        values = GaugeMetricFamily(
            "headrace_stats_quantile", f"Values of the last hour, at most 2 % off{_UNITS}.", labels=[*names, "quantile"]
        )
        for label, whole, recent in self._figures():
            for field, n in whole.counts.items():
                counts.add_metric([label, field], n)
            for field, histogram in whole.histograms.items():
                seen.add_metric([label, field], histogram.count)
            for field, histogram in recent.histograms.items():
                for percent in QUANTILES:
                    values.add_metric([label, field, f"{percent / 100:g}"], histogram.percentile(percent))
        yield from (counts, seen, values)

    def describe(self) -> list[Metric]:
        """Nothing ahead: without this, registering would ask the server, which need not be up yet."""
        return []

    def _figures(self) -> list[tuple[str, Bucket, Bucket]]:
        now, stats = self._clock(), self._stats
        pairs: list[tuple[Reading, Reading]] = []
        for label in self._expanded():
            layout = stats.find(label, now).query.kept
            coarsest, recent = layout.levels[-1].cut, _recent(layout)
            whole = stats.find(label, now, every=coarsest.name, inclusive=True)
            pairs.append((whole, stats.find(label, now - WINDOW, every=recent.name)))
        ask(stats.client, [one for pair in pairs for one in pair])
        return [(whole.label, whole.total(), recent.total()) for whole, recent in pairs]

    def _expanded(self) -> list[str]:
        client = self._stats.client
        above = [self._stats.find(label, self._clock()).label for label in self._labels]
        below = client.store.run_all([children(client.keys, label, 0, MOST) for label in above])
        found: dict[str, None] = {}
        for label, names in zip(above, below, strict=True):
            if label:
                found[label] = None
            found |= dict.fromkeys(f"{label}/{name}" if label else name for name in names if label or name not in ALL)
            if len(names) == MOST and not self._warned:
                log.warning("Prometheus gets only the %d labels below %r that were counted last", MOST, label)
                self._warned = True
        return list(found)


# What is said of the units of what workers count.
_UNITS = f"; of what workers count {', '.join(f'{field} in {unit}' for field, unit in UNITS.items())}"


def _recent(layout: Resolutions) -> Resolution:
    fit = [level for level in layout.levels if level.cut.step == 0 or level.cut.step * 60 >= WINDOW]
    return (fit or list(layout.levels))[0].cut


def serve(sock: socket.socket, sources: Sequence[Collector], pages: Mapping[str, Page]) -> NoReturn:
    """Answer Prometheus, and other pages by their path. Raises ImportError: the ``prometheus`` extra is missing."""
    import prometheus_client
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry()
    for source in sources:
        registry.register(cast(Any, source))
    serve_pages(sock, cast(Any, prometheus_client).make_wsgi_app(registry), pages)
