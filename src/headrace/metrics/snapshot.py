"""One reading of all metrics: in three round trips, of a bounded number of queues, tasks and workers.

1. :class:`LabelMemory`: earlier readings. A label whose counts did not change is not read again. A label holds some
   hundred counters, most of them buckets of histograms, and two of them are enough to see a change: each end of a start
   adds to ``started``, each new job to ``enqueued``.
2. :class:`MetricSnapshot` and :func:`read_snapshot`: the reading.
3. :class:`SharedReading`: one reading for all scrapes that come at the same time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.model.limit_rules import LimitState
from headrace.model.schedule_record import TickWord
from headrace.protocol import overviews
from headrace.protocol import stats_calls as protocol
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import Overview, StoreLoad, store_load
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Held, Line
from headrace.protocol.ticks import count_ticks
from headrace.stats.labels import QUEUES, TASKS, WORKERS, workers_layout
from headrace.stats.stats import Stats
from headrace.store.client import Client

# Fields that change when anything is counted under a task or a queue.
CHANGES = ("started", "enqueued")


class _KnownLabel(NamedTuple):
    """What a label held, and whether it was read again since it changed last."""

    held: Held
    settled: bool

    def changed(self, now: Held) -> bool:
        return any(self.held.get(field, 0) != now.get(field, 0) for field in CHANGES)


class LabelMemory:
    """Labels as they were read last; of those that a reading no longer asks for nothing is kept."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownLabel] = {}

    def changed(self, names: Sequence[str], now: Sequence[Held]) -> list[str]:
        """Those that must be read.

        One that has just changed is read once more: its other counters may have been on their way.

        Args:
            now: what ``CHANGES`` of each are.
        """
        found: list[str] = []
        for name, counts in zip(names, now, strict=True):
            known = self._known.get(name)
            if known is None or not known.settled or known.changed(counts):
                found.append(name)
        return found

    def learn(self, names: Sequence[str], read: Sequence[str], held: Sequence[Held]) -> list[Held]:
        """What each of all names holds.

        Args:
            read: those that were read, and ``held``, what they hold.
        """
        new = dict(zip(read, held, strict=True))
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


def read_snapshot(way: Client, stats: Stats, now: float, memory: LabelMemory) -> MetricSnapshot:
    """Read one.

    Args:
        way: to the server of the jobs; that of the statistics may be another.
        now: seconds since 1970.
        memory: of the readings before this one.

    Cost: three round trips, however many labels there are; one more where statistics have a server of their own, one
    less where nothing was counted since the last.
    """
    keys, level = way.keys, stats.layout.levels[-1]
    jobs: list[Any] = [
        overviews.overview(keys, details=False), store_load(keys, soon=SOON), count_ticks(keys, MOST),
        read_limits(keys, limit=LIMITS),
    ]  # fmt: skip
    counted: list[Any] = [
        protocol.children(stats.way.keys, TASKS, limit=LOOK),
        protocol.children(stats.way.keys, QUEUES, limit=LOOK),
        protocol.peek(stats.way.keys),
    ]
    if stats.way is way:
        seen, load, schedules, limits, tasks, queues, line = way.store.run_all(jobs + counted)
    else:
        seen, load, schedules, limits = way.store.run_all(jobs)
        tasks, queues, line = stats.way.store.run_all(counted)
    live = sorted(seen.live, key=lambda one: -one.running)
    places = [worker.place for worker in live[:MOST]]
    date, hour = (cut.date(int(now)) for cut in (level.cut, workers_layout(stats.layout).levels[-1].cut))
    totals = [f"{date}:{TASKS}", f"{date}:{QUEUES}"]
    labels = totals + [f"{date}:{TASKS}/{name}" for name in tasks] + [f"{date}:{QUEUES}/{name}" for name in queues]
    held, workers = _read_all(stats.way, memory, labels, [f"{hour}:{WORKERS}/{name}" for name in places])
    whole_tasks, whole_queues, held = held[0], held[1], held[2:]
    tasks_held = _bounded(dict(zip(tasks, held, strict=False)), whole_tasks, seen.parked)
    sizes = {queue.name: queue.size for queue in seen.queues}
    queues_held = _bounded(
        dict(zip(queues, held[len(tasks) :], strict=True)), whole_queues, {**dict.fromkeys(seen.names, 0), **sizes}
    )
    return MetricSnapshot(
        seen,
        load,
        stats.behind(line),
        tasks_held[1],
        queues_held[1],
        dict(zip(places, workers, strict=True)),
        schedules,
        limits.rows,
        {"task": tasks_held[0], "queue": queues_held[0], "worker": frozenset(places)},
    )


def _read_all(
    way: Client, memory: LabelMemory, labels: Sequence[str], small: Sequence[str]
) -> tuple[list[Held], list[Held]]:
    """What the buckets of labels hold, and those of few counters. Cost: two round trips, one if no label changed."""
    looks, others = _pieces(way, labels, MOST, CHANGES), _pieces(way, small, PIECE)
    found: list[list[Held]] = way.store.run_all(looks + others) if looks + others else []
    changed = memory.changed(labels, [one for part in found[: len(looks)] for one in part])
    read: list[list[Held]] = way.store.run_all(_pieces(way, changed, PIECE)) if changed else []
    held = memory.learn(labels, changed, [one for part in read for one in part])
    return held, [one for part in found[len(looks) :] for one in part]


def _pieces(way: Client, names: Sequence[str], size: int, fields: Sequence[str] = ()) -> list[Call[list[Held]]]:
    """Reads of so many buckets each: others are served in between."""
    return [protocol.read(way.keys, names[n : n + size], fields) for n in range(0, len(names), size)]


def _bounded(held: dict[str, Held], whole: Held, waiting: Mapping[str, int]) -> tuple[frozenset[str], dict[str, Held]]:
    """The names that are used most, and what was counted of each; what is left of the whole is counted as other.

    Args:
        waiting: jobs that wait, by name, which count as used, too.
    """

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
    """A reading that all who ask within a second share; while one reads, the others wait for it."""

    def __init__(self, read: Callable[[], MetricSnapshot], clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._last: MetricSnapshot | None = None
        self._at = 0.0

    def get(self) -> MetricSnapshot:
        with self._lock:
            if self._last is None or not 0 <= self._clock() - self._at < 1:
                self._last = self._read()
                self._at = self._clock()
            return self._last
