"""How counts are shown to people and programs. Prints what it is given."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headrace.cli.failure import OperationFault
from headrace.cli.output import number, plot, span, spark, squeeze
from headrace.cli.session import Session
from headrace.stats.reading import PERCENTS, series_document

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.cli.output import Output
    from headrace.stats import Bucket, Reading, Stats
    from headrace.stats.resolutions import Resolutions


# Buckets of a series that is chosen for people: they fit into a line.
FEW = 60
# Labels below the one that is shown.
CHILDREN = 50
# Fields of each of them.
FIELDS = 3
# Names that a wrong one is compared with.
NAMES = 1000
WATCH = 2.0
# Characters that a course has at least, however narrow the terminal is.
NARROWEST = 10

# What is printed of a field, and its course.
_Row: TypeAlias = tuple[tuple[str, ...], Sequence[float]]


def show_counts(
    session: Session, label: str, name: str | None, since: float, *, every: str | None, plot: str | None, watch: bool
) -> None:
    """Show a label; with ``name`` what workers counted of the task, queue or worker that is called so. ``since``:
    seconds back. ``plot``: a field to draw. ``watch``: show it again and again.
    """
    with session.view(stats=True) as headrace:
        if name is not None:
            label = _of_jobs(headrace.stats, label, name)
        while True:
            seen = _look(headrace.stats, label, since, every)
            if watch and sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            _tell(session, seen, plot)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(WATCH)


def _of_jobs(stats: Stats, kind: str, name: str) -> str:
    """The label of what workers counted. Where nothing ever was, OperationFault names those that are like it."""
    from headrace.stats.resolutions import QUEUES, TASKS, WORKERS

    above = {"task": TASKS, "queue": QUEUES, "worker": WORKERS}[kind]
    if not name:
        return above
    label = stats.find(f"{above}/{name}", time.time()).label
    coarsest = stats.find(label, 0).query.kept.levels[-1]
    whole = stats.find(label, max(0, time.time() - coarsest.keep), every=coarsest.cut.name).total()
    if not whole.counts and not whole.histograms:
        below = stats.find(above, time.time()).children(limit=NAMES)
        names = [child.label.removeprefix(f"{above}/") for child in below]
        near = difflib.get_close_matches(name, names, 3) or [one for one in names if name.casefold() in one.casefold()]
        hint = f"did you mean {' or '.join(near[:3])}?" if near else f"headrace stats {kind} shows all"
        raise OperationFault(f"there are no counts of a {kind} {name!r}: {hint}")
    return label


class _Seen(msgspec.Struct, frozen=True):
    """One label: its series, their sum, the labels below, and whether there are more of these."""

    label: str
    every: str
    seconds: float
    series: list[Bucket]
    total: Bucket
    below: list[_Seen]
    more: bool


def _look(stats: Stats, label: str, since: float, every: str | None) -> _Seen:
    from headrace.stats.reading import ask

    now = time.time()
    chosen: Any = every or _fitting(stats.find(label, now).query.kept, since)
    reading = stats.find(label, now - since, every=chosen)
    # Of the labels below those that were counted last, though they come by name.
    more = len(reading.children(limit=CHILDREN + 1)) > CHILDREN
    below = [
        child
        for child in reading.children(limit=CHILDREN)
        if any(level.cut.name == reading.query.every for level in child.query.kept.levels)
    ]
    shown = [reading, *below]
    ask(stats.client, shown, shown)
    return _one(reading, since, [_one(child, since, []) for child in below], more)


def _one(reading: Reading, since: float, below: list[_Seen], more: bool = False) -> _Seen:
    return _Seen(reading.label, reading.query.every, since, reading.series(), reading.total(), below, more)


def _fitting(layout: Resolutions, since: float) -> str:
    for level in layout.levels:
        step = level.cut.step or level.cut.months * 2_629_746
        if since / step <= FEW and since <= level.keep:
            return level.cut.name
    return layout.levels[-1].cut.name


def _tell(session: Session, seen: _Seen, field: str | None) -> None:
    output = session.output
    every = (seen, *seen.below)
    if output.documents(series_document(one.label, one.every, one.total, one.series) for one in every):
        return
    if field is not None:
        _draw(session, seen, field)
        return
    if not seen.total.exact:
        output.remark(f"the counts begin at {_local(seen.total.start)}: finer ones have expired")
    if not seen.total.counts and not seen.total.histograms and not seen.below:
        output.remark(f"there are no counts under {seen.label or 'any label'} in the last {span(seen.seconds)}")
        return
    name = seen.label or "(no label)"
    if seen.total.counts:
        heads: tuple[str, ...] = (name, ">total", ">per second")
        _table(output, seen, heads, "by", [_count(seen, field) for field in sorted(seen.total.counts)])
    if seen.total.histograms:
        heads = (name, ">count", ">mean", *(f">p{p}" for p in PERCENTS))
        _table(output, seen, heads, "p50 by", [_observed(seen, field) for field in sorted(seen.total.histograms)])
    if seen.below:
        _table(output, seen, ("label", "field", ">total", ">per second"), "by", list(_children(seen)))
    if seen.more:
        output.remark(f"there are more labels below: these are the {CHILDREN} that were counted last")


def _table(output: Output, seen: _Seen, heads: tuple[str, ...], of: str, rows: list[_Row]) -> None:
    left = output.left(heads, [cells for cells, _ in rows])
    most = max((len(course) for _, course in rows), default=0)
    room = most if left is None else max(NARROWEST, left)
    # Neighbours share a character where there are more of them.
    title = f"{of} {seen.every}" if most <= room else f"{of.replace('by', 'over')} {span(seen.seconds)}"
    shown = [(*cells, spark(squeeze(course, room))) for cells, course in rows]
    output.table((*heads, title), shown, keep=(title,))


def _count(seen: _Seen, name: str) -> _Row:
    n = seen.total.counts[name]
    cells = (_named(seen, name), f"{n:,}", number(n / seen.seconds))
    return cells, [bucket.counts.get(name, 0) for bucket in seen.series]


def _named(seen: _Seen, field: str) -> str:
    from headrace.stats.resolutions import unit_of

    unit = unit_of(seen.label, field)
    return f"{field} ({unit})" if unit else field


def _observed(seen: _Seen, name: str) -> _Row:
    whole = seen.total.histograms[name]
    percents = (number(whole.percentile(p)) for p in PERCENTS)
    cells = (_named(seen, name), f"{whole.count:,}", number(whole.mean), *percents)
    return cells, [bucket.percentile(name, 50) for bucket in seen.series]


def _children(seen: _Seen) -> Iterator[_Row]:
    for child in seen.below:
        for name in sorted(name for name in child.total.counts if "/" not in name)[:FIELDS]:
            cells, course = _count(child, name)
            yield (child.label, *cells), course
        for name in sorted(name for name in child.total.histograms if "/" not in name)[:FIELDS]:
            (field, count, _, p50, *_), course = _observed(child, name)
            yield (child.label, f"p50 of {field}", count, p50), course


def _local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M %Z}"


def _draw(session: Session, seen: _Seen, field: str) -> None:
    output = session.output
    width = min(100, output.console().width)
    if not seen.series:
        raise OperationFault(f"counts of {seen.label or 'the root'} from this time have expired")
    left, right = (_local(at.start) for at in (seen.series[0], seen.series[-1]))
    if field in seen.total.histograms:
        for percent in (50, 99):
            output.heading(f"{seen.label} {_named(seen, field)}, p{percent} by {seen.every}")
            for line in plot([bucket.percentile(field, percent) for bucket in seen.series], left, right, width):
                output.line(line)
    elif field in seen.total.counts:
        output.heading(f"{seen.label} {_named(seen, field)} by {seen.every}")
        for line in plot([bucket[field] for bucket in seen.series], left, right, width):
            output.line(line)
    else:
        known = ", ".join(sorted({*seen.total.counts, *seen.total.histograms})) or "none"
        raise OperationFault(f"{seen.label or 'the root'} has no field {field!r} in this time; it has: {known}")
