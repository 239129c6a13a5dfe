"""What Prometheus collects of jobs, queues, tasks and workers: the families of the table, from one shared reading."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.metrics.metric_families import (
    FAMILIES,
    FoldedHistogram,
    LabelMemory,
    MetricFamily,
    MetricSnapshot,
    SharedReading,
    read_snapshot,
)
from headrace.stats.stats import Stats
from headrace.store.client import Client

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Exporter:
    """A collector for Prometheus. Needs the ``prometheus`` extra.

    A counter is that of the current bucket of the coarsest resolution, so it begins anew with each of them: Prometheus
    takes that as the reset that it is.
    """

    def __init__(self, client: Client, stats: Stats, clock: Callable[[], float] = time.time) -> None:
        memory = LabelMemory()
        self._shared = SharedReading(lambda: read_snapshot(client, stats, clock(), memory), clock)

    def collect(self) -> Iterator[Metric]:
        """All figures. Raises StoreUnavailable, ServerError: the server did not answer, which Prometheus shows as a
        failed scrape. Cost: three round trips, however many labels there are; one more where statistics have a server
        of their own; none within a second of the last.
        """
        seen = self._shared.get()
        return (_metric(family, seen) for family in FAMILIES)

    def describe(self) -> list[Metric]:
        """Nothing ahead: without this, registering would ask the server, which need not be up yet."""
        return []


def _metric(family: MetricFamily, seen: MetricSnapshot) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    series = family.series(seen)
    if family.type == "histogram":
        told = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in series.items():
            assert isinstance(value, FoldedHistogram)
            told.add_metric(list(labels), buckets=list(value.buckets()), sum_value=value.total)
        return told
    kind = CounterMetricFamily if family.type == "counter" else GaugeMetricFamily
    plain = kind(family.name, family.help, labels=family.labels)
    for labels, value in series.items():
        assert not isinstance(value, FoldedHistogram)
        plain.add_metric(list(labels), value)
    return plain
