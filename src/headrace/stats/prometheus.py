"""A Prometheus endpoint of statistics: what was counted under chosen labels, on this machine's own address unless told.

Reads at each scrape, and stores nothing. Needs the ``prometheus`` extra.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from headrace.protocol.stats_calls import children
from headrace.stats import http_server
from headrace.stats.engine_labels import ALL, UNITS
from headrace.stats.http_server import Page
from headrace.stats.reading import Reading, ask

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from headrace.stats.reading import Bucket
    from headrace.stats.resolutions import Resolution, Resolutions
    from headrace.stats.stats import Stats

log = logging.getLogger("headrace.stats")

# Labels below each chosen one that one scrape tells of, those that were counted last.
MOST = 500
QUANTILES = (50, 90, 95, 99)
# Seconds that the quantiles are of.
WINDOW = 3600


class Collector(Protocol):
    """What tells Prometheus of some families when it asks."""

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
        """All figures; none when the server does not answer, which Prometheus shows as a failed scrape.

        Cost: two round trips, however many labels there are.
        """
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
        """Each label with what its coarsest bucket and its last hour hold."""
        now, stats = self._clock(), self._stats
        labels = self._expanded()
        pairs: list[tuple[Reading, Reading]] = []
        for label in labels:
            layout = stats.find(label, now).query.kept
            coarsest, recent = layout.levels[-1].cut, _recent(layout)
            pairs.append(
                (
                    stats.find(label, now, every=coarsest.name, inclusive=True),
                    stats.find(label, now - WINDOW, every=recent.name),
                )
            )
        ask(stats.way, [one for pair in pairs for one in pair])
        return [(whole.label, whole.total(), recent.total()) for whole, recent in pairs]

    def _expanded(self) -> list[str]:
        """The labels, and those right below them; below the root without those of the engine, which have families."""
        way = self._stats.way
        above = [self._stats.find(label, self._clock()).label for label in self._labels]
        below = way.store.run_all([children(way.keys, label, 0, MOST) for label in above])
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
    """The finest resolution of which an hour is no more than sixty buckets."""
    fit = [level for level in layout.levels if level.cut.step == 0 or level.cut.step * 60 >= WINDOW]
    return (fit or list(layout.levels))[0].cut


def serve(sock: socket.socket, sources: Sequence[Collector], pages: Mapping[str, Page]) -> NoReturn:
    """Answer Prometheus at a listening socket, and other pages by their path, until an exception ends it.

    Raises:
        ImportError: the ``prometheus`` extra is not installed.
    """
    import prometheus_client
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry()
    for source in sources:
        registry.register(cast(Any, source))
    http_server.serve(sock, cast(Any, prometheus_client).make_wsgi_app(registry), pages)
