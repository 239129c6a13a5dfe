"""What Prometheus is told of jobs, queues and workers; :mod:`headrace.stats.prometheus` is the server.

The table of the metrics: name, type, unit, labels, meaning and source of each family; and their one reading.

The exporter, ``docs/observability.md`` and the data files of alert rules and of the board are checked against it.
"""

from __future__ import annotations

import copy
import json
import platform
import re
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from headrace.errors import HeadraceError
from headrace.model import activity
from headrace.model.limit_rules import LimitState
from headrace.protocol import overviews
from headrace.protocol import stats_calls as protocol
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import CountedQueues, Overview, StoreLoad, store_load
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Held, Line
from headrace.protocol.ticks import TickWord, count_ticks
from headrace.stats.resolutions import MARK, OUTCOMES, QUEUES, TASKS, WORKERS, middle_of, workers_layout
from headrace.stats.stats import Stats
from headrace.store.client import Client

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Fields that change when anything is counted under a task or a queue.
CHANGES = ("started", "enqueued")


class _KnownLabel(NamedTuple):
    held: Held
    settled: bool

    def changed(self, now: Held) -> bool:
        return any(self.held.get(field, 0) != now.get(field, 0) for field in CHANGES)


class LabelMemory:
    """Labels as they were read last; of those that a reading no longer asks for nothing is kept."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownLabel] = {}

    def changed(self, names: Sequence[str], now: Sequence[Held]) -> list[str]:
        """Those that must be read. One that has just changed is read again: its other counters may be on their way."""
        found: list[str] = []
        for name, counts in zip(names, now, strict=True):
            known = self._known.get(name)
            if known is None or not known.settled or known.changed(counts):
                found.append(name)
        return found

    def learn(self, names: Sequence[str], read_names: Sequence[str], read_counts: Sequence[Held]) -> list[Held]:
        new = dict(zip(read_names, read_counts, strict=True))
        known: dict[str, _KnownLabel] = {}
        for name in names:
            before = self._known.get(name)
            if name in new:
                known[name] = _KnownLabel(new[name], before is not None and not before.changed(new[name]))
            elif before is not None:
                known[name] = before
        self._known = known
        return [known[name].held for name in names]


# Queues, tasks and workers that have series of their own; the rest of each is summed.
MOST = 500
# Tasks, and queues, that a reading chooses among: those that were counted last.
LOOK = 1000
OTHER = "other"
# Buckets that one script reads.
PIECE = 100
# Microseconds ahead within which a scheduled job counts as due.
SOON = 60_000_000
# Limits that have series: each costs the server a dozen commands.
LIMITS = 100


class MetricSnapshot(msgspec.Struct, frozen=True):
    """What is told at one moment.

    Attributes:
        overview: counts by state, queues and workers.
        load: what runs and comes due, and the server's memory.
        line: statistics that wait to be counted.
        tasks, queues: what was counted of each since the beginning of the coarsest bucket (a month, as a rule).
        workers: what was counted of each live one within this hour.
        schedules: what became of the ticks of each, ever; the first 500 by name.
        limits: the first ``LIMITS`` by name.
        shown: queues, tasks and workers that have series of their own, by the name of their label.
        away: how many shards did not answer, and are in no figure.
    """

    overview: Overview
    load: StoreLoad
    line: Line
    tasks: Mapping[str, Held]
    queues: Mapping[str, Held]
    workers: Mapping[str, Held]
    schedules: Mapping[str, Mapping[TickWord, int]]
    limits: Sequence[LimitState]
    shown: Mapping[str, frozenset[str]]
    away: int


def read_snapshot(client: Client, stats: Stats, now: float, memory: LabelMemory) -> MetricSnapshot:
    """Read one. ``client``: to the server of the jobs; that of the statistics may be another. ``now``: seconds since
    1970. ``memory``: of the readings before this one. Cost: three round trips, however many labels there are; one more
    where statistics have a server of their own, one less where nothing was counted since the last.
    """
    keys, level = client.keys, stats.layout.levels[-1]
    jobs: list[Any] = [
        overviews.overview(keys, details=False), store_load(keys, soon=SOON), count_ticks(keys, MOST),
        read_limits(keys, limit=LIMITS),
    ]  # fmt: skip
    counted: list[Any] = [
        protocol.children(stats.client.keys, TASKS, limit=LOOK),
        protocol.children(stats.client.keys, QUEUES, limit=LOOK),
        protocol.peek(stats.client.keys),
    ]
    if stats.client is client:
        seen, load, schedules, limits, tasks, queues, line = client.store.run_all(jobs + counted)
    else:
        seen, load, schedules, limits = client.store.run_all(jobs)
        tasks, queues, line = stats.client.store.run_all(counted)
    live = sorted(seen.live, key=lambda one: -one.running)
    places = [worker.place for worker in live[:MOST]]
    date, hour = (cut.date(int(now)) for cut in (level.cut, workers_layout(stats.layout).levels[-1].cut))
    totals = [f"{date}:{TASKS}", f"{date}:{QUEUES}"]
    labels = totals + [f"{date}:{TASKS}/{name}" for name in tasks] + [f"{date}:{QUEUES}/{name}" for name in queues]
    held, workers = _read_all(stats.client, memory, labels, [f"{hour}:{WORKERS}/{name}" for name in places])
    whole_tasks, whole_queues, held = held[0], held[1], held[2:]
    tasks_held = _bounded(dict(zip(tasks, held, strict=False)), whole_tasks, seen.parked)
    sizes = dict.fromkeys(seen.names, 0) | {queue.name: queue.size for queue in seen.queues}
    queues_held = _bounded(dict(zip(queues, held[len(tasks) :], strict=True)), whole_queues, sizes)
    shown = {"task": tasks_held[0], "queue": queues_held[0], "worker": frozenset(places)}
    return MetricSnapshot(
        seen, load, stats.behind(line), tasks_held[1], queues_held[1], dict(zip(places, workers, strict=True)),
        schedules, limits.rows, shown, len(client.left_out),
    )  # fmt: skip


def _read_all(
    client: Client, memory: LabelMemory, labels: Sequence[str], small: Sequence[str]
) -> tuple[list[Held], list[Held]]:
    """What the buckets of labels hold, and those of few counters. Cost: two round trips, one if no label changed."""
    looks, others = _pieces(client, labels, MOST, CHANGES), _pieces(client, small, PIECE)
    found: list[list[Held]] = client.store.run_all(looks + others) if looks + others else []
    changed = memory.changed(labels, [one for part in found[: len(looks)] for one in part])
    read: list[list[Held]] = client.store.run_all(_pieces(client, changed, PIECE)) if changed else []
    held = memory.learn(labels, changed, [one for part in read for one in part])
    return held, [one for part in found[len(looks) :] for one in part]


def _pieces(client: Client, names: Sequence[str], size: int, fields: Sequence[str] = ()) -> list[Call[list[Held]]]:
    return [protocol.read(client.keys, names[n : n + size], fields) for n in range(0, len(names), size)]


def _bounded(held: dict[str, Held], whole: Held, waiting: Mapping[str, int]) -> tuple[frozenset[str], dict[str, Held]]:
    """The names that are used most with their counts, the rest as other; ``waiting``, jobs by name, counts as use."""

    def used(name: str) -> int:
        return held.get(name, {}).get("started", 0) + waiting.get(name, 0)

    names = sorted({*held, *waiting}, key=lambda name: (-used(name), name))
    shown = frozenset(names[:MOST])
    kept = {name: counts for name, counts in held.items() if name in shown and counts}
    if len(held) >= MOST:
        rest = Counter(whole)
        for counts in kept.values():
            rest.subtract(counts)
        kept[OTHER] = dict(Counter(kept.get(OTHER, {})) + +rest)
    return shown, kept


class SharedReading:
    """A reading that all who ask within a second share; while one reads, the others wait for it, also where it fails:
    those who ask a server that is silent would wait one after the other, and come faster than they go.
    """

    def __init__(self, read: Callable[[], MetricSnapshot], clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._last: MetricSnapshot | None = None
        self._at = 0.0
        self._failure: HeadraceError | None = None

    def get(self) -> MetricSnapshot:
        known = self._failure
        with self._lock:
            if self._failure is not None and self._failure is not known:
                raise copy.copy(self._failure)
            if self._last is None or not 0 <= self._clock() - self._at < 1:
                try:
                    self._last = self._read()
                except HeadraceError as error:
                    self._failure = error
                    raise
                self._at = self._clock()
            return self._last


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
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return FoldedHistogram(counts, self.total + other.total)

    def buckets(self) -> Iterator[tuple[str, int]]:
        return zip(_EDGES, accumulate(self.counts), strict=True)


@lru_cache(8192)
def _place(number: str) -> tuple[int, float]:
    value = middle_of(number)
    return bisect_left(BOUNDS, value), value


def fold(held: Held, field: str) -> FoldedHistogram | None:
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


def _looked_at(seen: MetricSnapshot, look: CountedQueues) -> dict[str, float]:
    """Of each queue what a look found there: 0 too, since a series that comes and goes is none."""
    names = (name for name in {*seen.overview.names, *look.counts} if not name.startswith("@"))
    return {name: look.of(name) if name in look.counts else 0 for name in names}


def _since(now: int, moments: Iterable[int]) -> Rows:
    """Seconds since the first of some moments; 0 where there is none."""
    return _one(max((now - one for one in moments if one), default=0) / 1e6)


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
       lambda s: _named({q.name: q.waited(s.overview.now) or 0.0 for q in s.overview.queues}), most=True),
    Of("headrace_queue_held", "gauge", "jobs", ("queue",),
       "Ready jobs that cannot start now, since limits are closed for all of their values.", "store",
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
       "store", lambda s: _since(s.overview.now, (one.lease for one in s.overview.silent))),
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
       "store", lambda s: _since(s.load.now, [min(s.load.first_tick, s.load.now)])),
    Of("headrace_schedule_ticks_total", "counter", "ticks", ("schedule", "result"),
       "Ticks of a schedule: ran, missed, skipped (its last job was at work), twice (it had run before).", "store",
       lambda s: _ticks(s.schedules)),
    Of("headrace_server_memory_used_bytes", "gauge", "bytes", (), "Memory that the server uses.", "server",
       lambda s: _one(s.load.memory)),
    Of("headrace_server_memory_max_bytes", "gauge", "bytes", (), "Memory that it may use; 0: without a limit.",
       "server", lambda s: _one(s.load.max_memory)),
    Of("headrace_shards_away", "gauge", "shards", (), "Shards that did not answer: no other figure counts their jobs.",
       "store", lambda s: _one(s.away)),
    Of("headrace_stats_waiting", "gauge", "batches", (), "Batches of counts that wait to be counted.", "statistics",
       lambda s: _one(s.line.waiting)),
    Of("headrace_stats_lag_seconds", "gauge", "seconds", (), "Since when the oldest of them waits.", "statistics",
       lambda s: _since(s.line.now, [min(s.line.oldest, s.line.now)])),
    Of("headrace_stats_lost_total", "counter", "batches", (), "Batches that a full line pushed out.", "statistics",
       lambda s: _one(s.line.lost)),
    Of("headrace_build_info", "gauge", "1", ("version", "python"), "The program that answers.", "store",
       lambda _: _build()),
)  # fmt: skip


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


_FILES = Path(__file__).parent


def rules_document(dashboard: str = "") -> dict[str, Any]:
    """The rules as Prometheus reads them from a file; alerts link to ``dashboard``, where it is. JSON is YAML, too."""
    text = (_FILES / "alert_rules.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(re.sub(r"<([A-Z_]+)>", lambda name: f"{getattr(activity, name[1]):g}", text))
    for rule in document["groups"][0]["rules"]:
        page = rule["annotations"].pop("dashboard")
        if dashboard:
            rule["annotations"]["dashboard"] = quote(dashboard.rstrip("/"), safe=":/") + page
    return document


def board() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((_FILES / "board.json").read_text("utf-8"))
    return document
