"""How counts are shown to people and programs. Prints what it is given."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.exit_codes import OperationFault
from headrace.cli.plot import number, plot, spark
from headrace.cli.session import Session
from headrace.cli.units import span
from headrace.stats.series_document import PERCENTS, series_document

if TYPE_CHECKING:
    from headrace.stats import Bucket, Reading, Stats
    from headrace.stats.resolutions import Layout

# Buckets of a series that is chosen for people: they fit into a line.
FEW = 60
# Labels below the one that is shown.
CHILDREN = 50
# Fields of each of them.
FIELDS = 3
# Names that a wrong one is compared with.
NAMES = 1000
WATCH = 2.0


@dataclass(frozen=True, slots=True)
class ShownCounts:
    """How it is to be shown: seconds back, the resolution, the field of a plot, and whether again and again."""

    since: float
    every: str | None
    plot: str | None
    watch: bool


def show_counts(session: Session, label: str, shown: ShownCounts, name: str | None = None) -> None:
    """Show a label; with ``name`` what workers counted of the task, queue or worker that is called so."""
    with session.view(stats=True) as headrace:
        if name is not None:
            label = _of_jobs(headrace.stats, label, name)
        while True:
            seen = _look(headrace.stats, label, shown.since, shown.every)
            if shown.watch and sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            _tell(session, seen, shown.plot)
            if not shown.watch:
                return
            sys.stdout.flush()
            time.sleep(WATCH)


def _of_jobs(stats: Stats, kind: str, name: str) -> str:
    """The label of what workers counted.

    Raises:
        OperationFault: nothing was ever counted of that task, queue or worker; names those that are like it.
    """
    from headrace.stats.engine_labels import QUEUES, TASKS, WORKERS

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


@dataclass(frozen=True, slots=True)
class _Seen:
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
    below = [
        child
        for child in reading.children(limit=CHILDREN + 1)
        if any(level.cut.name == reading.query.every for level in child.query.kept.levels)
    ]
    shown = [reading, *below[:CHILDREN]]
    ask(stats.way, shown, shown)
    return _one(reading, since, [_one(child, since, []) for child in below[:CHILDREN]], len(below) > CHILDREN)


def _one(reading: Reading, since: float, below: list[_Seen], more: bool = False) -> _Seen:
    return _Seen(reading.label, reading.query.every, since, reading.series(), reading.total(), below, more)


def _fitting(layout: Layout, since: float) -> str:
    """The finest resolution of which the range has few buckets."""
    for level in layout.levels:
        step = level.cut.step or level.cut.months * 2_629_746
        if since / step <= FEW and since <= level.keep:
            return level.cut.name
    return layout.levels[-1].cut.name


def _tell(session: Session, seen: _Seen, field: str | None) -> None:
    output = session.output
    if output.json:
        for one in (seen, *seen.below):
            output.document(series_document(one.label, one.every, one.total, one.series))
        return
    if field is not None:
        _draw(session, seen, field)
        return
    if not seen.total.exact:
        output.remark(f"the counts begin at {seen.total.start:%Y-%m-%d %H:%M} UTC: finer ones have expired")
    if not seen.total.counts and not seen.total.histograms and not seen.below:
        output.remark(f"there are no counts under {seen.label or 'any label'} in the last {span(seen.seconds)}")
        return
    heads: tuple[str, ...]
    if seen.total.counts:
        heads = (seen.label or "(no label)", ">total", ">per second", f"by {seen.every}")
        output.table(heads, [_count(seen, name) for name in sorted(seen.total.counts)], keep=(heads[3],))
    if seen.total.histograms:
        heads = (seen.label or "(no label)", ">count", ">mean", *(f">p{p}" for p in PERCENTS), f"p50 by {seen.every}")
        output.table(heads, [_observed(seen, name) for name in sorted(seen.total.histograms)], keep=(heads[-1],))
    if seen.below:
        heads = ("label", "field", ">total", ">per second", f"by {seen.every}")
        output.table(heads, list(_children(seen)), keep=(heads[4],))
    if seen.more:
        output.remark(f"there are more labels below: these are the {CHILDREN} that were counted last")


def _count(seen: _Seen, name: str) -> tuple[object, ...]:
    n = seen.total.counts[name]
    return (
        _named(seen, name),
        f"{n:,}",
        number(n / seen.seconds),
        spark([bucket.counts.get(name, 0) for bucket in seen.series]),
    )


def _named(seen: _Seen, field: str) -> str:
    """A field with its unit, where that is known."""
    unit = _unit(seen, field)
    return f"{field} ({unit})" if unit else field


def _unit(seen: _Seen, field: str) -> str:
    from headrace.stats.engine_labels import unit_of

    return unit_of(seen.label, field)


def _observed(seen: _Seen, name: str) -> tuple[object, ...]:
    whole = seen.total.histograms[name]
    course = spark([bucket.percentile(name, 50) for bucket in seen.series])
    return (
        _named(seen, name),
        f"{whole.count:,}",
        number(whole.mean),
        *(number(whole.percentile(p)) for p in PERCENTS),
        course,
    )


def _children(seen: _Seen) -> Iterator[tuple[object, ...]]:
    """The first fields of each label below; what is grouped in them is for a closer look."""
    for child in seen.below:
        for name in sorted(name for name in child.total.counts if "/" not in name)[:FIELDS]:
            yield child.label, *_count(child, name)
        for name in sorted(name for name in child.total.histograms if "/" not in name)[:FIELDS]:
            _, count, _, *percents, course = _observed(child, name)
            yield child.label, f"p50 of {_named(child, name)}", count, percents[0], course


def _draw(session: Session, seen: _Seen, field: str) -> None:
    output = session.output
    width = min(100, output.console().width)
    if not seen.series:
        raise OperationFault(f"counts of {seen.label or 'the root'} from this time have expired")
    left, right = (f"{at.astimezone():%Y-%m-%d %H:%M}" for at in (seen.series[0].start, seen.series[-1].start))
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
