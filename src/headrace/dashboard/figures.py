"""What workers counted, ready to be drawn: courses over time, and totals by task. Reads statistics, draws nothing.

What needs a person, worst first, each with the page that answers. Decides; reads nothing.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from headrace.admin.event_log import AlarmRecord
from headrace.app import Headrace
from headrace.dashboard.live_frame import LiveFrame
from headrace.dashboard.values_shown import count, cut, duration, jobs_wait, percent, plural, quoted
from headrace.model.activity import EventRecord
from headrace.model.environment import Sight, judged
from headrace.model.notation import size
from headrace.model.server_facts import ServerFacts
from headrace.stats.histogram import histogram_of
from headrace.stats.labels import QUEUES, TASKS, WRONG
from headrace.stats.reading import Bucket, Reading, series_document
from headrace.stats.resolutions import Every
from headrace.store.client import Client, Steps

# Tasks or queues of one table.
MOST = 200


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
        name,
        bucket["started"],
        bucket["succeeded"],
        summed(bucket, WRONG),
        bucket["retried"],
        (run.percentile(50), run.percentile(95)),
        (wait.percentile(50), wait.percentile(95)),
        run.mean * run.count,
        run.mean,
    )


class Course(msgspec.Struct, frozen=True):
    """How one label went over a range: its buckets in the order of time, their sum, and the figures of that."""

    span: TimeRange
    label: str
    buckets: Sequence[Bucket]
    whole: Bucket
    total: TaskFigures

    @property
    def document(self) -> dict[str, Any]:
        return series_document(self.label, self.span.every, self.whole, self.buckets)

    @property
    def minutes(self) -> float:
        return self.span.seconds / 60


def _label(kind: str, name: str) -> str:
    root = QUEUES if kind == "queues" else TASKS
    return f"{root}/{name}" if name else root


def _course(reading: Reading) -> Steps[list[Bucket]]:
    yield from reading.learn_series()
    return reading.series()


async def course(app: Headrace, way: Client, span: TimeRange, kind: str = "tasks", name: str = "") -> Course:
    end = time.time()
    reading = app.stats.find(_label(kind, name), end - span.seconds, end, every=span.every, inclusive=True)
    buckets = await way.adrive(_course(reading))
    whole = _sum(buckets)
    return Course(span, reading.label, buckets, whole, figures_of(name, whole))


def _sum(buckets: Sequence[Bucket]) -> Bucket:
    counts: Counter[str] = Counter()
    found: defaultdict[str, Counter[float]] = defaultdict(Counter)
    for bucket in buckets:
        counts.update(bucket.counts)
        for field, values in bucket.histograms.items():
            found[field].update(values.counts)
    histograms = {field: histogram_of(sums) for field, sums in found.items()}
    return Bucket(buckets[0].start, buckets[-1].end, counts, histograms, all(one.exact for one in buckets))


async def table(app: Headrace, way: Client, span: TimeRange, kind: str = "tasks") -> list[TaskFigures]:
    """Figures of each task, or queue, that was counted within a range; at most ``MOST``, those counted last. Cost: one
    round trip.
    """
    root = app.stats.find(_label(kind, ""), time.time() - span.seconds, every=span.edges)
    totals = await way.adrive(root.totals_below(MOST))
    found = [figures_of(name, totals[name]) for name in sorted(totals)]
    return [one for one in found if one.started]


# Seconds after which a wait is long, and the share of failures, with their least number, that is high.
LONG_WAIT = 60.0
HIGH_SHARE = 0.05
FEW = 10
# Shares of the store's memory limit.
FULL = 0.8
ALMOST = 0.95
# Microseconds after which an alarm that no worker looked at is no news.
LOOKED = 600_000_000
# Microseconds for which the death of a worker is news.
NEWS = 3_600_000_000
# Names that one kind of trouble lists.
MAX_PER_KIND = 5

Level = Literal["bad", "warn"]


class Need(msgspec.Struct, frozen=True):
    """One thing to look at.

    Attributes:
        level: ``bad``: work stands still or is lost to its users; ``warn``: it may become so.
        title: what is the matter.
        detail: what follows from it, or what helps.
        link: the page that answers, below the dashboard's root.
    """

    level: Level
    title: str
    detail: str
    link: str


def needs(
    frame: LiveFrame,
    tasks: list[TaskFigures],
    server: ServerFacts | None = None,
    lost: int = 0,
    alarms: Sequence[AlarmRecord] = (),
    died: Sequence[EventRecord] = (),
) -> list[Need]:
    """All of them, the bad ones first; of these first what harms most: a store that takes nothing stops everybody.
    ``server``: what the store's server says of itself; None: nothing. ``lost``: batches of statistics that found no
    room. ``alarms``: those that are raised. ``died``: workers that were lost of late, the newest first.
    """
    found = [
        *_of_store(server),
        *_of_workers(frame),
        *_of_queues(frame),
        *_of_limits(frame),
        *_of_tasks(frame, tasks),
        *_of_alarms(frame, alarms),
        *_of_ends(frame),
        *_of_deaths(frame, died),
    ]
    if lost:
        words = "Figures of that time are too low: the line of statistics was full."
        found.append(Need("warn", f"{plural(lost, 'batch', 'batches')} of statistics lost", words, "/statistics"))
    return sorted(found, key=lambda need: need.level != "bad")


def _of_alarms(frame: LiveFrame, alarms: Sequence[AlarmRecord]) -> Iterator[Need]:
    for one in [one for one in alarms if frame.now - one.looked_us < LOOKED][:MAX_PER_KIND]:
        since = duration((frame.now - one.state.raised_us) / 1e6)
        words = f"{one.state.words}: it was {one.state.shown} when the alarm was raised, {since} ago."
        yield Need("bad", f"Alarm: {cut(one.name, 60)}", words, "/activity?show=alarms")


def _of_workers(frame: LiveFrame) -> Iterator[Need]:
    waiting = frame.overview.states.get("ready", 0)
    held = sum(worker.running for worker in frame.overview.silent)
    if (waiting or held) and not frame.live:
        words = jobs_wait(waiting) if waiting else f"{plural(held, 'job')} of a silent worker wait to be taken over"
        yield Need("bad", "No worker is running", f"{words}. Start one: headrace worker MODULE:APP", "/workers")
    for worker in frame.overview.silent[:MAX_PER_KIND]:
        if worker.running and frame.live:
            words = f"It holds {plural(worker.running, 'job')}, which another worker takes over."
            yield Need("bad", f"Worker {worker.place} fell silent", words, "/workers")


def _of_deaths(frame: LiveFrame, died: Sequence[EventRecord]) -> Iterator[Need]:
    news = [one for one in died if frame.now - one.at_us < NEWS]
    if not news:
        return
    first = news[0]
    name, ago = cut(first.facts.get("place", "?"), 60), duration((frame.now - first.at_us) / 1e6)
    words = f"{first.facts.get('why', 'it is gone')}, {ago} ago. What it ran went back to its queues."
    title = f"Worker {name} died" if len(news) == 1 else f"{len(news)} workers died, the last one was {name}"
    yield Need("warn", title, f"{words[:1].upper()}{words[1:]}", "/activity?show=workers")


def _of_queues(frame: LiveFrame) -> Iterator[Need]:
    served, live = frame.overview.served, bool(frame.live)
    for queue in sorted((one for one in frame.queues if one.size), key=lambda one: -one.size)[: 10 * MAX_PER_KIND]:
        link, name, waits = f"/queues/{quoted(queue.name)}", cut(queue.name, 48), frame.waited(queue)
        if queue.paused:
            yield Need("warn", f"Queue {name} is paused", f"{jobs_wait(queue.size)} until it is resumed.", link)
        elif live and not served[queue.name]:
            words = f"{jobs_wait(queue.size)}. Start one with --queues {name}"
            yield Need("bad", f"No worker serves queue {name}", words, link)
        elif waits > LONG_WAIT and live:
            held = f", {count(queue.held)} of them behind closed limits" if queue.held else ""
            words = f"Its next job has waited for {duration(waits)}, and {count(queue.size)} are ready{held}."
            yield Need("warn", f"Queue {name} is slow", words, link)


def _of_limits(frame: LiveFrame) -> Iterator[Need]:
    for one in [one for one in frame.limits if one.paused and one.waiting][:MAX_PER_KIND]:
        words = f"{jobs_wait(one.waiting)} until it is resumed."
        yield Need("warn", f"Limit {cut(one.name, 48)} is paused", words, f"/limits/{quoted(one.name)}")


def _of_tasks(frame: LiveFrame, tasks: list[TaskFigures]) -> Iterator[Need]:
    for name, number in sorted(frame.overview.parked.items(), key=lambda item: -item[1])[:MAX_PER_KIND]:
        if number:
            words = f"{plural(number, 'job')} of it {'is' if number == 1 else 'are'} parked until one does."
            link = f"/jobs?state=parked&task={quoted(name)}"
            yield Need("bad", f"No worker knows the task {cut(name, 60)}", words, link)
    failing = [one for one in tasks if one.failed >= FEW and one.share > HIGH_SHARE]
    for one in sorted(failing, key=lambda one: -one.failed)[:MAX_PER_KIND]:
        words = f"{plural(one.failed, 'start')} failed for good or crashed."
        yield Need("bad", f"{percent(one.share)} of {one.name} fail", words, f"/causes?task={quoted(one.name)}")


def _of_ends(frame: LiveFrame) -> Iterator[Need]:
    lost = frame.overview.states.get("quarantined", 0)
    if lost:
        title = f"{plural(lost, 'job')} {'is' if lost == 1 else 'are'} quarantined"
        words = "A job that crashes too often, or that cannot be read, ends so."
        yield Need("bad", title, words, "/jobs?state=quarantined")
    flows = frame.flows.get("failed", 0)
    if flows:
        words = "Retry the failed jobs of one to go on from there."
        yield Need("warn", f"{plural(flows, 'workflow')} failed", words, "/workflows?state=failed")


def want_of_room(server: ServerFacts | None) -> Need | None:
    """A server that is full, or almost; None where it has room, has no limit or says nothing. The two are one: a server
    that refused a call has often room for a smaller one a second later, and nothing in its facts tells whether the next
    call fits.
    """
    if server is None or server.full <= FULL:
        return None
    words = f"{size(server.memory)} of {size(server.memory_limit)}. When it is full, nothing can be enqueued."
    level: Level = "bad" if server.full > ALMOST else "warn"
    return Need(level, f"The store uses {percent(server.full)} of its memory", words, "/store")


def _of_store(server: ServerFacts | None) -> Iterator[Need]:
    if server is None:
        return
    if need := want_of_room(server):
        yield need
    # The rows of the doctor that a worker reports, too.
    for one in judged(Sight(server.told), worker=True):
        level: Level = "bad" if one.severity == "error" else "warn"
        title = f"{one.meaning[:1].upper()}{one.meaning[1:]}"
        yield Need(level, title, f"{', '.join(one.evidence)}: {one.command}", "/store")
