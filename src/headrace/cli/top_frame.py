"""What ``headrace top`` shows: one read of counts, queues, tasks and workers, never of jobs that wait."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.model.notation import iso
from headrace.protocol import overviews
from headrace.protocol.overviews import Overview
from headrace.stats.labels import TASKS, WRONG
from headrace.stats.reading import Bucket
from headrace.store.client import Steps, single, together

# Seconds back for what tasks did, and for the courses.
RECENT = 600
COURSE = 1800
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
        return {**msgspec.to_builtins(self), "now": iso(self.now)}


def read_top(app: Headrace) -> TopFrame:
    """One look.

    Cost: one round trip; one more where statistics have a server of their own.
    """
    way, stats, now = app.client, app.stats, time.time()
    finest = stats.layout.levels[0].cut.name
    course = stats.find(TASKS, now - COURSE, every=finest)
    tasks = stats.find(TASKS, now - RECENT, every=finest).totals_below(MOST)
    look: Steps[Any] = single(overviews.overview(way.keys))
    counted: Steps[Any] = together([course.learn_series(), tasks])
    if stats.way is way:
        seen, (_, totals) = way.drive(together([look, counted]))
    else:
        seen, (_, totals) = way.drive(look), stats.way.drive(counted)
    return _frame_of(seen, course.series(), totals)


def _frame_of(seen: Overview, course: Sequence[Bucket], totals: Mapping[str, Bucket]) -> TopFrame:
    whole = course[-2] if len(course) > 1 else None
    rate = whole["started"] / (whole.end - whole.start).total_seconds() if whole else 0.0
    rows = [_task(name, bucket) for name, bucket in totals.items()]
    return TopFrame(
        seen.now,
        dict(seen.states),
        _queues(seen),
        sorted((row for row in rows if row.started), key=lambda row: -row.busy),
        _workers(seen),
        _runs(seen),
        rate,
        [bucket["started"] for bucket in course],
        [sum(bucket[field] for field in WRONG) for bucket in course],
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
