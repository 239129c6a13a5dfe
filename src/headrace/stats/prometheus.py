"""A Prometheus endpoint of statistics: what was counted under chosen labels, on this machine's own address unless told.

Reads at each scrape, and stores nothing. Needs the ``prometheus`` extra.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

from headrace.protocol import operations
from headrace.protocol.stats import children, peek
from headrace.stats import http_server
from headrace.stats.engine_labels import UNITS
from headrace.stats.http_server import Page
from headrace.stats.reading import Reading, ask
from headrace.stats.stats_client import Way

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from headrace.protocol.stats import Line
    from headrace.stats.reading import Bucket
    from headrace.stats.resolutions import Layout, Resolution
    from headrace.stats.stats import Stats

log = logging.getLogger("headrace.stats")

# Labels below each chosen one that one scrape tells of, those that were counted last.
MOST = 500
QUANTILES = (50, 90, 95, 99)
# Seconds that the quantiles are of.
WINDOW = 3600


class Scrape:
    """What Prometheus collects.

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

        Cost: two round trips, however many labels there are; one more to a broker.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        names = ["label", "field"]
        counts = CounterMetricFamily("headrace_stats", f"Counted in the current bucket{_UNITS}.", labels=names)
        seen = CounterMetricFamily("headrace_stats_observed", "Values observed in the current bucket.", labels=names)
        values = GaugeMetricFamily(
            "headrace_stats_quantile", f"Values of the last hour, at most 2 % off{_UNITS}.", labels=[*names, "quantile"]
        )
        figures, line = self._figures()
        for label, whole, recent in figures:
            for field, n in whole.counts.items():
                counts.add_metric([label, field], n)
            for field, histogram in whole.histograms.items():
                seen.add_metric([label, field], histogram.count)
            for field, histogram in recent.histograms.items():
                for percent in QUANTILES:
                    values.add_metric([label, field, f"{percent / 100:g}"], histogram.percentile(percent))
        yield from (counts, seen, values)
        yield from _line(line)

    def describe(self) -> list[Metric]:
        """Nothing ahead: without this, registering would ask the server, which need not be up yet."""
        return []

    def _figures(self) -> tuple[list[tuple[str, Bucket, Bucket]], Line]:
        """Each label with what its coarsest bucket and its last hour hold; and the line of batches."""
        now, stats = self._clock(), self._stats
        labels, line = self._expanded()
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
        return [(whole.label, whole.total(), recent.total()) for whole, recent in pairs], stats.behind(line)

    def _expanded(self) -> tuple[list[str], Line]:
        """The labels, and those right below them; and the line of batches, which comes along."""
        way = self._stats.way
        above = [self._stats.find(label, self._clock()).label for label in self._labels]
        *below, line = way.store.run_all([*(children(way.keys, label, 0, MOST) for label in above), peek(way.keys)])
        found: dict[str, None] = {}
        for label, names in zip(above, below, strict=True):
            if label:
                found[label] = None
            found |= dict.fromkeys(f"{label}/{name}" if label else name for name in names)
            if len(names) == MOST and not self._warned:
                log.warning("Prometheus gets only the %d labels below %r that were counted last", MOST, label)
                self._warned = True
        return list(found), line


# What is said of the units of what workers count.
_UNITS = f"; of what workers count {', '.join(f'{field} in {unit}' for field, unit in UNITS.items())}"


def _recent(layout: Layout) -> Resolution:
    """The finest resolution of which an hour is no more than sixty buckets."""
    fit = [level for level in layout.levels if level.cut.step == 0 or level.cut.step * 60 >= WINDOW]
    return (fit or list(layout.levels))[0].cut


def _line(line: Line) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    lag = (line.now - line.oldest) / 1e6 if line.oldest else 0.0
    yield GaugeMetricFamily("headrace_stats_waiting", "Batches that wait to be counted.", value=line.waiting)
    yield GaugeMetricFamily("headrace_stats_lag_seconds", "Since when the oldest of them waits.", value=max(0.0, lag))
    yield CounterMetricFamily("headrace_stats_lost", "Batches that a full line pushed out.", value=line.lost)


class Engine:
    """What Prometheus collects of jobs themselves: how many are where, and who works. Cost: one round trip."""

    def __init__(self, way: Way) -> None:
        self._way = way

    def collect(self) -> Iterator[Metric]:
        """All figures, at one moment."""
        from prometheus_client.core import GaugeMetricFamily

        seen = self._way.run(operations.overview(self._way.keys, details=False))
        jobs = GaugeMetricFamily("headrace_jobs", "Jobs in a state; the final ones are those kept.", labels=["state"])
        for state, count in seen.states.items():
            jobs.add_metric([state], count)
        ready = GaugeMetricFamily("headrace_queue_ready", "Jobs that may start.", labels=["queue"])
        paused = GaugeMetricFamily("headrace_queue_paused", "Whether it is paused.", labels=["queue"])
        delay = GaugeMetricFamily("headrace_queue_delay_seconds", "Since when the first one waits.", labels=["queue"])
        for queue in seen.queues:
            ready.add_metric([queue.name], queue.size)
            paused.add_metric([queue.name], queue.paused)
            delay.add_metric([queue.name], max(0, seen.now - queue.oldest) / 1e6 if queue.oldest else 0)
        yield from (jobs, ready, paused, delay)
        yield GaugeMetricFamily(
            "headrace_workers", "Workers whose lease holds.", value=sum(one.lease > seen.now for one in seen.workers)
        )

    def describe(self) -> list[Metric]:
        """See :meth:`Scrape.describe`."""
        return []


def serve(sock: socket.socket, sources: Sequence[Scrape | Engine], pages: Mapping[str, Page]) -> NoReturn:
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
