"""The table of the metrics: name, type, unit, labels, meaning and source of each family.

Pure. The exporter, the alert rules, the board and ``docs/metrics.md`` are made of it or checked against it.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import Literal

import msgspec

from headrace.metrics.snapshot import OTHER, MetricSnapshot
from headrace.model.schedule_record import TickWord
from headrace.protocol.overviews import CountedQueues
from headrace.protocol.stats_calls import Held
from headrace.stats.histogram import middle_of
from headrace.stats.labels import MARK, OUTCOMES

# Upper edges of all histograms, seconds: the same everywhere, so that they can be added up.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0)
_EDGES = (*map(str, BOUNDS), "+Inf")


class FoldedHistogram(msgspec.Struct, frozen=True):
    """Values by the edges that they do not exceed.

    Attributes:
        counts: of each bound, those above the one before it; the last are above all bounds.
        total: the sum of all values, at most 2 % off.
    """

    counts: tuple[int, ...]
    total: float

    def __add__(self, other: FoldedHistogram) -> FoldedHistogram:
        return FoldedHistogram(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)), self.total + other.total
        )

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, with how many values do not exceed it."""
        return zip(_EDGES, accumulate(self.counts), strict=True)


@lru_cache(8192)
def _place(number: str) -> tuple[int, float]:
    """Which of the bounds a bucket of a fine histogram is counted under, and its middle."""
    value = middle_of(number)
    return bisect_left(BOUNDS, value), value


def fold(held: Held, field: str) -> FoldedHistogram | None:
    """The histogram of a field; None where nothing was observed."""
    start, counts, total = field + MARK, [0] * (len(BOUNDS) + 1), 0.0
    size = len(start)
    for name, n in held.items():
        if n > 0 and name.startswith(start):
            at, value = _place(name[size:])
            counts[at] += n
            total += value * n
    return FoldedHistogram(tuple(counts), total) if any(counts) else None


Value = float | FoldedHistogram
Rows = Iterable[tuple[tuple[str, ...], Value]]


class MetricFamily(msgspec.Struct, frozen=True):
    """One family of series.

    Attributes:
        unit: what its values are counted in.
        source: where they come from: ``store``, ``statistics`` or ``server``.
        read: its series in a snapshot.
        most: of series that are told as one, the greatest value counts, not their sum.
    """

    name: str
    type: Literal["gauge", "counter", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    source: str
    read: Callable[[MetricSnapshot], Rows]
    most: bool = False

    def series(self, seen: MetricSnapshot) -> Mapping[tuple[str, ...], Value]:
        """Its values by their labels; names that have no series of their own are told as ``other``."""
        found: dict[tuple[str, ...], Value] = {}
        for labels, value in self.read(seen):
            key = tuple(_shown(seen, name, text) for name, text in zip(self.labels, labels, strict=True))
            found[key] = self._joined(found[key], value) if key in found else value
        return found

    def _joined(self, one: Value, other: Value) -> Value:
        if isinstance(one, FoldedHistogram) and isinstance(other, FoldedHistogram):
            return one + other
        assert not isinstance(one, FoldedHistogram)
        assert not isinstance(other, FoldedHistogram)
        return max(one, other) if self.most else one + other


def _shown(seen: MetricSnapshot, label: str, name: str) -> str:
    shown = seen.shown.get(label)
    return name if shown is None or name in shown else OTHER


def _one(value: float) -> Rows:
    return [((), value)]


def _named(values: Mapping[str, float]) -> Rows:
    return [((name,), value) for name, value in values.items()]


# Told of each task also while they are 0: a counter that begins at 20 has not grown, as far as Prometheus knows, and a
# first burst of failures would raise no alert.
_BAD = ("failed", "crashed", "quarantined")


def _outcomes(held: Mapping[str, Held], always: tuple[str, ...] = ()) -> Rows:
    for name, counts in held.items():
        for outcome in OUTCOMES:
            if counts.get(outcome) or outcome in always:
                yield (name, outcome), counts.get(outcome, 0)


def _ticks(held: Mapping[str, Mapping[TickWord, int]]) -> Rows:
    for name, counts in held.items():
        for result, n in counts.items():
            if n:
                yield (name, result), n


def _folded(held: Mapping[str, Held], field: str) -> Rows:
    for name, counts in held.items():
        if (found := fold(counts, field)) is not None:
            yield (name,), found


def _by_kind(counts: Iterable[Mapping[str, int]]) -> Rows:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return _named(total)


def _delays(seen: MetricSnapshot) -> dict[str, float]:
    return {one.name: one.waited(seen.overview.now) or 0.0 for one in seen.overview.queues}


def _looked_at(seen: MetricSnapshot, look: CountedQueues) -> dict[str, float]:
    """Of each queue what a look found there: 0 too, since a series that comes and goes is none."""
    names = _queues({*seen.overview.names, *look.counts})
    return {name: look.of(name) if name in look.counts else 0 for name in names}


def _queues(names: Iterable[str]) -> list[str]:
    """Without those that hold what was broadcast to one worker: each start of a worker has another."""
    return [name for name in names if not name.startswith("@")]


def _lapsed(seen: MetricSnapshot) -> float:
    return max((seen.overview.now - worker.lease for worker in seen.overview.silent), default=0) / 1e6


def _overdue(seen: MetricSnapshot) -> float:
    return max(0, seen.load.now - seen.load.first_tick) / 1e6 if seen.load.first_tick else 0.0


def _lag(seen: MetricSnapshot) -> float:
    return max(0, seen.line.now - seen.line.oldest) / 1e6 if seen.line.oldest else 0.0


def _build() -> Rows:
    try:
        mine = version("headrace")
    except PackageNotFoundError:
        # A checkout on the path that was never installed.
        mine = "unknown"
    return [((mine, platform.python_version()), 1.0)]


Of = MetricFamily
FAMILIES: tuple[MetricFamily, ...] = (
    Of("headrace_jobs", "gauge", "jobs", ("state",), "Jobs in a state; of the final ones those that are kept.", "store",
       lambda s: _named(dict(s.overview.states))),
    Of("headrace_kept_bytes", "gauge", "bytes", (), "Results of finished jobs that are kept.", "store",
       lambda s: _one(s.overview.bytes)),
    Of("headrace_queue_ready", "gauge", "jobs", ("queue",), "Jobs that may start.", "store",
       lambda s: _named({q.name: q.size for q in s.overview.queues})),
    Of("headrace_queue_running", "gauge", "jobs", ("queue",),
       "Jobs that run or were sent ahead to a runner; above 1,000 in all an estimate.", "store",
       lambda s: _named(_looked_at(s, s.load.running))),
    Of("headrace_queue_due", "gauge", "jobs", ("queue",),
       "Scheduled jobs that come due within a minute; above 1,000 in all an estimate.", "store",
       lambda s: _named(_looked_at(s, s.load.due))),
    Of("headrace_queue_delay_seconds", "gauge", "seconds", ("queue",),
       "Since when the next job waits, whatever its priority, those behind limits, too; 0 while the queue is empty.",
       "store",
       lambda s: _named(_delays(s)), most=True),
    Of("headrace_queue_held", "gauge", "jobs", ("queue",),
       "Of the ready jobs those none of which may start now, since limits are closed for all of their values.", "store",
       lambda s: _named({q.name: q.held for q in s.overview.queues})),
    Of("headrace_queue_paused", "gauge", "0 or 1", ("queue",), "Whether the queue is paused.", "store",
       lambda s: _named({q.name: q.paused for q in s.overview.queues}), most=True),
    Of("headrace_queue_workers", "gauge", "workers", ("queue",), "Live workers that serve the queue.", "store",
       lambda s: _named({name: s.overview.served[name] for name in s.overview.names}), most=True),
    Of("headrace_queue_enqueued_total", "counter", "jobs", ("queue",),
       "Jobs that became ready for the first time; counted when their first start has ended.", "statistics",
       lambda s: _named({name: counts.get("enqueued", 0) for name, counts in s.queues.items()})),
    Of("headrace_queue_jobs_total", "counter", "starts", ("queue", "outcome"), "Starts that ended, by how.",
       "statistics", lambda s: _outcomes(s.queues)),
    Of("headrace_queue_wait_seconds", "histogram", "seconds", ("queue",), "From ready to started.", "statistics",
       lambda s: _folded(s.queues, "wait")),
    Of("headrace_limit_waiting", "gauge", "jobs", ("limit",), "Jobs that wait, of the first 100 limits by name.",
       "store", lambda s: _named({one.name: one.waiting for one in s.limits})),
    Of("headrace_limit_open", "gauge", "0 or 1", ("limit",), "Whether the next job may start now.", "store",
       lambda s: _named({one.name: one.opens == 0 for one in s.limits})),
    Of("headrace_limit_paused", "gauge", "0 or 1", ("limit",), "Whether the limit is paused for all its jobs.", "store",
       lambda s: _named({one.name: one.paused for one in s.limits})),
    Of("headrace_task_jobs_total", "counter", "starts", ("task", "outcome"), "Starts that ended, by how.", "statistics",
       lambda s: _outcomes(s.tasks, _BAD)),
    Of("headrace_task_run_seconds", "histogram", "seconds", ("task",), "How long the code of jobs ran.", "statistics",
       lambda s: _folded(s.tasks, "run")),
    Of("headrace_task_parked", "gauge", "jobs", ("task",), "Jobs whose task no worker of their queue knew.", "store",
       lambda s: _named(dict(s.overview.parked))),
    Of("headrace_workers", "gauge", "workers", (), "Workers whose lease holds.", "store",
       lambda s: _one(len(s.overview.live))),
    Of("headrace_workers_silent", "gauge", "workers", (),
       "Workers whose lease has ended, and whose jobs no other one has taken over yet.", "store",
       lambda s: _one(len(s.overview.silent))),
    Of("headrace_lapsed_lease_seconds", "gauge", "seconds", (), "Since when the first of these leases is over.",
       "store", lambda s: _one(_lapsed(s))),
    Of("headrace_worker_running", "gauge", "jobs", ("worker",), "Jobs that a live worker holds.", "store",
       lambda s: _named({one.place: one.running for one in s.overview.live})),
    Of("headrace_worker_busy_seconds_total", "counter", "seconds", ("worker",),
       "Time in the code of a live worker's jobs; begins anew every hour.", "statistics",
       lambda s: _named({name: counts.get("busy", 0) / 1e6 for name, counts in s.workers.items()})),
    Of("headrace_runners", "gauge", "processes", ("kind",), "Runners of live workers, by kind.", "store",
       lambda s: _by_kind(one.processes for one in s.overview.live)),
    Of("headrace_runner_slots", "gauge", "jobs", ("kind",), "Jobs that these runners can run at once.", "store",
       lambda s: _by_kind(one.sizes for one in s.overview.live)),
    Of("headrace_runners_busy", "gauge", "jobs", ("kind",), "Slots of live workers that have a job, by kind.", "store",
       lambda s: _by_kind(one.busy for one in s.overview.live)),
    Of("headrace_schedule_overdue_seconds", "gauge", "seconds", (), "Since when the next tick of a schedule is due.",
       "store", lambda s: _one(_overdue(s))),
    Of("headrace_schedule_ticks_total", "counter", "ticks", ("schedule", "result"),
       "Ticks of a schedule: ran, missed, skipped (its last job was at work), twice (it had run before).", "store",
       lambda s: _ticks(s.schedules)),
    Of("headrace_server_memory_used_bytes", "gauge", "bytes", (), "Memory that the server uses.", "server",
       lambda s: _one(s.load.memory)),
    Of("headrace_server_memory_max_bytes", "gauge", "bytes", (), "Memory that it may use; 0: without a limit.",
       "server", lambda s: _one(s.load.max_memory)),
    Of("headrace_stats_waiting", "gauge", "batches", (), "Batches of counts that wait to be counted.", "statistics",
       lambda s: _one(s.line.waiting)),
    Of("headrace_stats_lag_seconds", "gauge", "seconds", (), "Since when the oldest of them waits.", "statistics",
       lambda s: _one(_lag(s))),
    Of("headrace_stats_lost_total", "counter", "batches", (), "Batches that a full line pushed out.", "statistics",
       lambda s: _one(s.line.lost)),
    Of("headrace_build_info", "gauge", "1", ("version", "python"), "The program that answers.", "store",
       lambda _: _build()),
)  # fmt: skip
