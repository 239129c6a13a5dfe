"""What ``headrace top`` shows: one read of counts, queues, tasks and workers, never of jobs that wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.model.notation import iso
from headrace.protocol import overviews
from headrace.protocol import stats_calls as protocol
from headrace.protocol.overviews import Overview
from headrace.stats.engine_labels import TASKS, WRONG
from headrace.stats.reading import Bucket, Reading
from headrace.store.client import Steps, single, together

# Seconds back for what tasks did, and for the courses.
RECENT, COURSE = 600, 1800
# Rows of each kind.
MOST = 50


class TopQueue(msgspec.Struct, frozen=True):
    """A queue: ready jobs, seconds that the next one waits, whether it is paused, and live workers that serve it."""

    name: str
    ready: int
    delay: float
    paused: bool
    workers: int


class TopTask(msgspec.Struct, frozen=True):
    """What a task did within ten minutes: starts, failures, seconds that half and 95 of 100 took, and all together."""

    name: str
    started: int
    failed: int
    run50: float
    run95: float
    busy: float


class TopWorker(msgspec.Struct, frozen=True):
    """A live worker: where it is, jobs that it holds and runs at once, and the memory of its runners in bytes."""

    place: str
    running: int
    slots: int
    memory: int


class TopRun(msgspec.Struct, frozen=True):
    """A job that runs, of those that run longest: for how many seconds."""

    job: str
    task: str
    worker: str
    seconds: float


class TopFrame(msgspec.Struct, frozen=True):
    """One look.

    Attributes:
        now: server time, microseconds.
        states: jobs by state.
        queues: those in which the next job waits longest first.
        tasks: those that took most time first.
        workers: the busiest first.
        runs: the jobs that run longest, as of the workers' last heartbeats.
        rate: starts that ended, per second, of the last whole minute.
        ended, failed: starts that ended, and those that failed, by minute, of half an hour.
    """

    now: int
    states: dict[str, int]
    queues: list[TopQueue]
    tasks: list[TopTask]
    workers: list[TopWorker]
    runs: list[TopRun]
    rate: float
    ended: list[int]
    failed: list[int]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {**msgspec.to_builtins(self), "now": iso(self.now)}


class TopReader:
    """Reads frames; knows from each one which tasks the next must ask for."""

    def __init__(self, app: Headrace) -> None:
        self._app = app
        self._names: list[str] | None = None

    def read(self) -> TopFrame:
        """One frame.

        Cost: one round trip, two for the first; one more where statistics have a server of their own.
        """
        way, stats, keys = self._app.client, self._app.stats, self._app.client.keys
        if self._names is None:
            self._names = stats.way.run(protocol.children(stats.way.keys, TASKS, limit=MOST))
        now = time.time()
        finest = stats.layout.levels[0].cut.name
        course = stats.find(TASKS, now - COURSE, every=finest)
        tasks = [stats.find(f"{TASKS}/{name}", now - RECENT, every=finest) for name in self._names]
        counted: list[Steps[Any]] = [
            single(protocol.children(stats.way.keys, TASKS, limit=MOST)),
            course.learn_series(),
            *(task.learn_total() for task in tasks),
        ]
        if stats.way is way:
            seen, self._names, *_ = way.drive(together([single(overviews.overview(keys)), *counted]))
        else:
            seen = way.run(overviews.overview(keys))
            self._names, *_ = stats.way.drive(together(counted))
        return frame_of(seen, course, tasks)


def frame_of(seen: Overview, course: Reading, tasks: Sequence[Reading]) -> TopFrame:
    """The frame of what was read."""
    series = course.series()
    ended = [bucket["started"] for bucket in series]
    whole = series[-2] if len(series) > 1 else None
    rate = whole["started"] / (whole.end - whole.start).total_seconds() if whole else 0.0
    rows = [_task(task.label.partition("/")[2], task.total()) for task in tasks]
    return TopFrame(
        seen.now,
        dict(seen.states),
        _queues(seen),
        sorted((row for row in rows if row.started), key=lambda row: -row.busy),
        _workers(seen),
        _runs(seen),
        rate,
        ended,
        [sum(bucket[field] for field in WRONG) for bucket in series],
    )


def _queues(seen: Overview) -> list[TopQueue]:
    served = seen.served
    rows = [
        TopQueue(queue.name, queue.size, queue.waited(seen.now) or 0.0, queue.paused, served[queue.name])
        for queue in seen.queues
    ]
    return sorted(rows, key=lambda row: (-row.delay, -row.ready, row.name))[:MOST]


def _task(name: str, bucket: Bucket) -> TopTask:
    run = bucket.histogram("run")
    failed = sum(bucket[field] for field in WRONG)
    return TopTask(name, bucket["started"], failed, run.percentile(50), run.percentile(95), run.mean * run.count)


def _workers(seen: Overview) -> list[TopWorker]:
    rows = [
        TopWorker(worker.place, worker.running, worker.slots, sum(one.memory for one in worker.runners))
        for worker in seen.live
    ]
    return sorted(rows, key=lambda row: (-row.running, row.place))[:MOST]


def _runs(seen: Overview) -> list[TopRun]:
    rows = [
        TopRun(one.job, one.task, worker.place, max(0, seen.now - one.since) / 1e6)
        for worker in seen.workers
        for one in worker.runners
        if one.job and one.since
    ]
    return sorted(rows, key=lambda row: -row.seconds)[:MOST]
