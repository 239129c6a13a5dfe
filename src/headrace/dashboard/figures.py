"""What workers counted, ready to be drawn: courses over time, and totals by task. Reads statistics, draws nothing."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.stats.reading import Bucket, series_document
from headrace.stats.resolutions import QUEUES, TASKS, WRONG, Every, histogram_of
from headrace.store.client import Client, then

MOST = 200  # tasks or queues of one table


class TimeRange(msgspec.Struct, frozen=True):
    """A range that a page offers.

    Attributes:
        name: as in its link.
        words: for people.
        seconds: how long it is.
        every: resolution of its course.
        edges: resolution of the totals by task: the coarser, the fewer buckets each costs.
    """

    name: str
    words: str
    seconds: int
    every: Every
    edges: Every


SPANS = {
    span.name: span
    for span in (
        TimeRange("15m", "15 minutes", 900, "minute", "minute"),
        TimeRange("1h", "hour", 3600, "minute", "hour"),
        TimeRange("6h", "6 hours", 6 * 3600, "minute", "hour"),
        TimeRange("1d", "day", 86400, "hour", "hour"),
        TimeRange("7d", "7 days", 7 * 86400, "hour", "day"),
        TimeRange("30d", "30 days", 30 * 86400, "day", "day"),
        TimeRange("1y", "year", 365 * 86400, "day", "month"),
    )
}
NORMAL = SPANS["1h"]


class TaskFigures(msgspec.Struct, frozen=True):
    """What became of the jobs of one task, queue or of all within a range.

    Attributes:
        started, succeeded, failed, retried: starts, and how they ended; crashed ones count as failed.
        run, wait: seconds that half of them took, and that 95 of 100 did not exceed.
        total: seconds that all of them ran; mean: that one did.
    """

    name: str
    started: int
    succeeded: int
    failed: int
    retried: int
    run: tuple[float, float]
    wait: tuple[float, float]
    total: float
    mean: float = 0.0

    @property
    def share(self) -> float:
        ends = self.succeeded + self.failed
        return self.failed / ends if ends else 0.0


def figures_document(one: TaskFigures) -> dict[str, Any]:
    """The figures of a task or queue for programs; times in seconds."""
    named = {"name": one.name, "started": one.started, "succeeded": one.succeeded, "failed": one.failed}
    times = {"run_p50": one.run[0], "run_p95": one.run[1], "wait_p50": one.wait[0], "wait_p95": one.wait[1]}
    return {**named, "retried": one.retried, "share_failed": one.share, **times, "run_total": one.total}


def summed(bucket: Bucket, fields: Sequence[str]) -> int:
    return sum(bucket.counts.get(field, 0) for field in fields)


def figures_of(name: str, bucket: Bucket) -> TaskFigures:
    run, wait = bucket.histogram("run"), bucket.histogram("wait")
    return TaskFigures(
        name, bucket["started"], bucket["succeeded"], summed(bucket, WRONG), bucket["retried"],
        (run.percentile(50), run.percentile(95)), (wait.percentile(50), wait.percentile(95)),
        run.mean * run.count, run.mean,
    )  # fmt: skip


class Course(msgspec.Struct, frozen=True):
    """How one label went over a range: its buckets in the order of time, their sum, and the figures of that.

    Attributes:
        deploys: versions of code, by their first start in microseconds.
    """

    span: TimeRange
    label: str
    buckets: Sequence[Bucket]
    whole: Bucket
    total: TaskFigures
    deploys: Mapping[str, int] = {}

    @property
    def document(self) -> dict[str, Any]:
        return series_document(self.label, self.span.every, self.whole, self.buckets)


def _label(kind: str, name: str) -> str:
    root = QUEUES if kind == "queues" else TASKS
    return f"{root}/{name}" if name else root


async def course(app: Headrace, way: Client, span: TimeRange, kind: str = "tasks", name: str = "") -> Course:
    end = time.time()
    reading = app.stats.find(_label(kind, name), end - span.seconds, end, every=span.every, inclusive=True)
    buckets = await way.adrive(then(reading.learn_series(), lambda _: reading.series()))
    whole = together(buckets)
    return Course(span, reading.label, buckets, whole, figures_of(name, whole))


def together(buckets: Sequence[Bucket]) -> Bucket:
    counts: Counter[str] = Counter()
    found: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for bucket in buckets:
        counts.update(bucket.counts)
        for field, values in bucket.histograms.items():
            found[field].update(values.counts)
    histograms = {field: histogram_of(sums) for field, sums in found.items()}
    return Bucket(buckets[0].start, buckets[-1].end, counts, histograms, all(one.exact for one in buckets))


async def table(app: Headrace, way: Client, span: TimeRange, kind: str = "tasks") -> list[TaskFigures]:
    """Figures of tasks or queues within a range, at most ``MOST``, those counted last. Cost: one round trip."""
    root = app.stats.find(_label(kind, ""), time.time() - span.seconds, every=span.edges)
    totals = await way.adrive(root.totals_below(MOST))
    found = [figures_of(name, totals[name]) for name in sorted(totals)]
    return [one for one in found if one.started]
