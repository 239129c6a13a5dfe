"""What pages show as numbers: how much is where now, what workers counted, and plots of that.

1. :class:`LiveFrame`: counts, queues and workers, never jobs, so its cost does not grow with the number of jobs.
2. :class:`Course` and :class:`TaskFigures`: statistics of one label over a range, and figures of each task or queue.
3. :class:`Plot`: an SVG that the server draws whole: the stylesheet has the colours, a table beside it has the numbers.
   It is stretched to its place, so it holds no text: the page has the labels, in the page's size. Pure.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec
from markupsafe import Markup, escape
from msgspec.structs import replace

from headrace.app import Headrace
from headrace.dashboard.values_shown import DASH, count, cut, duration, short
from headrace.model.limit_rules import LimitState
from headrace.model.notation import utc
from headrace.protocol import overviews
from headrace.protocol.index_pages import Slice
from headrace.protocol.index_pages import page as index_page
from headrace.protocol.keys import Keys
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import Overview, QueueFacts, WorkerFacts
from headrace.stats.reading import Bucket, series_document
from headrace.stats.resolutions import QUEUES, TASKS, WRONG, Every, histogram_of
from headrace.store.client import Client, Steps, then

LIMITS = 50  # limits that a frame tells of
MOST = 200  # tasks or queues of one table


class LiveFrame(msgspec.Struct, frozen=True):
    """How much was where at one moment.

    Attributes:
        overview: counts, queues and workers, without what workers say of their runners.
        flows: how many workflows there are, by the states ``running`` and ``failed``.
        limits: the first ``LIMITS`` by name.
        failed_flow: the workflow that was created last of those that failed; empty: there is none.
    """

    overview: Overview
    flows: Mapping[str, int]
    limits: Sequence[LimitState] = ()
    failed_flow: str = ""

    @property
    def now(self) -> int:
        """Server time of the read, microseconds."""
        return self.overview.now

    @property
    def live(self) -> list[WorkerFacts]:
        return sorted(self.overview.live, key=lambda worker: (-worker.running, worker.owner))

    @property
    def slots(self) -> int:
        return sum(worker.slots for worker in self.overview.live)

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        busy, sizes = Counter[str](), Counter[str]()
        for worker in self.overview.live:
            busy.update(worker.busy)
            sizes.update(worker.sizes)
        return {kind: (busy[kind], size) for kind, size in sizes.items()}

    @property
    def queues(self) -> list[QueueFacts]:
        return self.overview.queues

    def waited(self, queue: QueueFacts) -> float:
        """Seconds that the next job of a queue has waited; 0 for an empty one."""
        return queue.waited(self.now) or 0.0


def read_frame(keys: Keys, *, details: bool = False) -> Steps[LiveFrame]:
    calls: list[Any] = [overviews.overview(keys, details=details), read_limits(keys, limit=LIMITS)]
    calls += [index_page(keys, f"flows:|{state}", Slice(1)) for state in ("running", "failed")]
    seen, limits, running, failed = yield calls
    flows = {"running": running.count, "failed": failed.count}
    return LiveFrame(seen, flows, limits.rows, failed.rows[0][0] if failed.rows else "")


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


_ROOTS = {"tasks": TASKS, "queues": QUEUES}


async def course(app: Headrace, way: Client, span: TimeRange, kind: str = "tasks", name: str = "") -> Course:
    end = time.time()
    label = f"{_ROOTS[kind]}/{name}" if name else _ROOTS[kind]
    reading = app.stats.find(label, end - span.seconds, end, every=span.every, inclusive=True)
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
    root = app.stats.find(_ROOTS[kind], time.time() - span.seconds, every=span.edges)
    totals = await way.adrive(root.totals_below(MOST))
    found = [figures_of(name, totals[name]) for name in sorted(totals)]
    return [one for one in found if one.started]


HEIGHT = 100.0
# Buckets of one plot at least, and at most: finer ones are drawn together.
FEWEST = 10
MOST_BARS = 90
# What stands between texts while they are escaped together: no text of ours holds it.
_CELL = "\x1f"
_ROW = "\x1e"


class Series(msgspec.Struct, frozen=True):
    """One row of values, None where nothing is known; ``kind`` is its class in the stylesheet."""

    name: str
    kind: str
    values: Sequence[float | None]


class Plot(msgspec.Struct, frozen=True):
    """A plot and all that is written around it.

    Attributes:
        title, unit: what is drawn, and in what.
        svg: the drawing.
        ticks: the labels of the vertical axis, from the top down to zero.
        times: the labels of the horizontal axis.
        series: what is drawn, for the legend.
        rows: time, then the value of each series as text: the same numbers as a table.
        deploys: versions of code that started first in this range, each with its time.
        exact: False when finer buckets had expired.
        empty: whether there is nothing to draw.
    """

    title: str
    unit: str
    svg: Markup
    ticks: Sequence[str]
    times: Sequence[str]
    series: Sequence[Series]
    rows: Sequence[Sequence[str]]
    deploys: Sequence[str]
    exact: bool
    empty: bool

    @property
    def body(self) -> Markup:
        """The rows as those of a table's body: a year has hundreds, and a template would escape each of their cells."""
        text = str(escape(_ROW.join(_CELL.join(row) for row in self.rows)))
        cells = text.replace(_CELL, "</td><td>").replace(_ROW, "</td></tr><tr><td>")
        # Escaped as a whole before the tags came in.
        return Markup(f"<tr><td>{cells}</td></tr>") if self.rows else Markup()  # noqa: S704


def drawn(course: Course) -> tuple[Sequence[Bucket], str]:
    """The buckets of a plot from the first datum on, some together where they would be slivers; and how long one is."""
    buckets, every = course.buckets, course.span.every
    first = next((n for n, one in enumerate(buckets) if one.histograms or any(one.counts.values())), 0)
    buckets = buckets[max(0, min(first, len(buckets) - FEWEST)) :]
    step = math.ceil(len(buckets) / MOST_BARS)
    if step <= 1:
        return buckets, f"a {every}"
    ends = range(len(buckets), 0, -step)
    return [together(buckets[max(0, end - step) : end]) for end in ends][::-1], f"in {step} {every}s"


def throughput(course: Course) -> Plot:
    buckets, each = drawn(course)
    failed = [float(summed(one, WRONG)) for one in buckets]
    done = [float(summed(one, ("succeeded",))) for one in buckets]
    series = [Series("failed", "failed", failed), Series("succeeded", "succeeded", done)]
    top = _round_up(max(map(sum, zip(failed, done, strict=True))))
    return _plot("Throughput", f"jobs {each}", course, buckets, series, top, bars, count, short)


def waits(course: Course, field: str = "wait", title: str = "Wait before a start") -> Plot:
    buckets, _ = drawn(course)
    found = [one.histogram(field) for one in buckets]
    series = [
        Series("p95", "most", [one.percentile(95) if one.count else None for one in found]),
        Series("p50", "half", [one.percentile(50) if one.count else None for one in found]),
    ]
    longest = max(value or 0.0 for value in series[0].values)
    top = next((float(step) for step in _STEPS if step >= longest), math.ceil(longest / 14400) * 14400.0)
    return _plot(title, "seconds", course, buckets, series, top, lines, duration, duration)


def backlog(course: Course, sampled: Course) -> Plot:
    """Ready jobs in the mean of the samples of each bucket. ``sampled``: of all queues, whose buckets count samples."""
    ready = {one.start: one["ready"] for one in course.buckets}
    both = [
        replace(one, counts={"ready": ready.get(one.start, 0), "samples": one["samples"]}, histograms={})
        for one in sampled.buckets
    ]
    buckets, _ = drawn(replace(sampled, buckets=both))
    series = [
        Series("ready", "waiting", [one["ready"] / one["samples"] if one["samples"] else None for one in buckets])
    ]
    top = _round_up(max(value or 0.0 for value in series[0].values))
    return _plot("Backlog", "ready jobs", course, buckets, series, top, lines, short, short)


Draw = Callable[[Sequence[Series], float], list[str]]
Say = Callable[[float], str]


def _plot(
    title: str, unit: str, course: Course, buckets: Sequence[Bucket], series: list[Series], top: float, draw: Draw,
    say: Say, tick: Say,
) -> Plot:  # fmt: skip
    labels = [_label(bucket.start, course.span) for bucket in buckets]
    rows = [
        [label, *(DASH if one.values[n] is None else say(one.values[n] or 0.0) for one in series)]
        for n, label in enumerate(labels)
    ]
    hints = [
        f"{row[0]}: " + ", ".join(f"{text} {one.name}" for one, text in zip(series, row[1:], strict=True))
        for row in rows
    ]
    began = [(name, utc(at)) for name, at in course.deploys.items()]
    marks = [
        (n, name) for n, one in enumerate(buckets) for name, at in began if at is not None and one.start <= at < one.end
    ]
    for n, name in marks:
        hints[n] += f", first start of {name}"
    times = [labels[n] for n in sorted({0, len(labels) // 2, len(labels) - 1})]
    exact = all(bucket.exact for bucket in buckets)
    # A mean of 0 was measured; a sum of 0 was not.
    empty = not any(value or (value is not None and draw is lines) for one in series for value in one.values)
    ticks = [tick(top), tick(top / 2), "0"]
    parts = [f'<path class="mark" d="M{n}.5 0V100"/>' for n, _ in marks]
    svg = _svg(draw.__name__, draw(series, top) + parts, hints)
    deploys = [f"{cut(name, 20)} {labels[n]}" for n, name in marks]
    return Plot(title, unit, svg, ticks, times, series, rows[::-1], deploys, exact, empty)


def _label(at: datetime, span: TimeRange) -> str:
    return f"{at:%H:%M}" if span.seconds <= 86400 else f"{at:%d %b %H:%M}" if span.every == "hour" else f"{at:%d %b %Y}"


def bars(series: Sequence[Series], top: float) -> list[str]:
    paths: dict[str, list[str]] = {one.kind: [] for one in series}
    last = len(series[0].values) - 1
    for n in range(last + 1):
        y = HEIGHT
        for one in series:
            high = (one.values[n] or 0.0) / top * HEIGHT
            if high <= 0:
                continue
            # A single failure among thousands must not vanish.
            high = max(high, 1.5)
            bottom, y = y, max(0.0, y - high)
            # The last bucket is unfinished, and lighter.
            kind = f"{one.kind} unfinished" if n == last else one.kind
            paths.setdefault(kind, []).append(f"M{n}.1 {_short(y)}h.8V{_short(bottom)}h-.8")
    return [f'<path class="{kind}" d="{"".join(path)}"/>' for kind, path in paths.items() if path]


def _short(height: float) -> str:
    return f"{round(height, 1):g}"


def lines(series: Sequence[Series], top: float) -> list[str]:
    parts: list[str] = []
    for one in series:
        for known, piece in groupby(enumerate(one.values), lambda place: place[1] is not None):
            if not known:
                continue
            points = [(n + 0.5, HEIGHT - min((value or 0.0) / top, 1.0) * HEIGHT) for n, value in piece]
            if len(points) == 1:
                points = [(points[0][0] - 0.3, points[0][1]), (points[0][0] + 0.3, points[0][1])]
            path = " ".join(f"{x:g} {_short(y)}" for x, y in points)
            area = f"M{points[0][0]:g} {HEIGHT:g} L{path} L{points[-1][0]:g} {HEIGHT:g}z"
            parts += [f'<path class="area {one.kind}" d="{area}"/>', f'<path class="line {one.kind}" d="M{path}"/>']
    return parts


def _svg(kind: str, parts: Sequence[str], hints: Sequence[str]) -> Markup:
    hits = "".join(
        f'<rect x="{n}" width="1" height="100"><title>{hint}</title></rect>'
        for n, hint in enumerate(str(escape(_CELL.join(hints))).split(_CELL))
        if hint
    )
    grid = '<path class="rule" d="M0 50H{0}M0 .5H{0}M0 100H{0}"/>'.format(len(hints))
    # Numbers, our own class names, and hints that are escaped.
    drawing = Markup(grid + "".join(parts) + (f'<g class="hit">{hits}</g>' if hits else ""))  # noqa: S704
    head = Markup('<svg class="{}" viewBox="0 0 {} 100" preserveAspectRatio="none" aria-hidden="true">').format(
        kind, len(hints)
    )
    return head + drawing + Markup("</svg>")


def _round_up(value: float) -> float:
    if value <= 4:
        return 2.0 if value <= 2 else 4.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 5, 6, 8, 10) if step * size >= value)


_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200)
