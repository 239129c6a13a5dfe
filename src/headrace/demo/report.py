"""The demo's findings and its bill, as tables for people and as facts for programs. Pure but for Rich's tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from headrace.demo.tasks import Measured
from headrace.job import Record

TOP = 12


@dataclass(frozen=True, slots=True)
class Package:
    """One directory of the library; ``single files`` are the modules that are in none."""

    name: str
    files: int
    lines: int
    functions: int
    classes: int
    imports: int
    longest: str
    length: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What the run cost. Seconds, unless the name says milliseconds.

    Attributes:
        stored_in: for one call of ``enqueue_many``.
        seconds: from the first start to the last end.
        trips: the worker's requests to the server, per job.
        wait_p50, wait_p99: from the enqueue to the last start; all jobs are enqueued at once, so it is a line's length.
        idle_p50_ms, idle_p99_ms: from ``enqueue()`` being called to the job's first line, with an idle worker.
        busy: share of the runners' time that went into parsing.
        crashes: runners that were killed and whose jobs ran again.
        retries: starts after an exception.
        lost: jobs that did not succeed.
    """

    jobs: int
    runners: int
    stored_in: float
    seconds: float
    rate: float
    trips: float
    wait_p50: float
    wait_p99: float
    idle_samples: int
    idle_p50_ms: float
    idle_p99_ms: float
    busy: float
    crashes: int
    retries: int
    lost: int


def packages(found: Iterable[Measured]) -> list[Package]:
    """Measurements added up by directory, the most lines first."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for one in found:
        groups[_package(one)].append(one)
    return sorted((_add(name, group) for name, group in groups.items()), key=lambda package: -package.lines)


def bill(
    records: Sequence[Record], found: Iterable[Measured], idle: Sequence[float], *, jobs: int, runners: int,
    stored_in: float, trips: int,
) -> Cost:  # fmt: skip
    """What the run cost, from what was measured."""
    seconds = (max(r.finished for r in records) - min(r.started for r in records)) / 1e6
    waits = [(r.started - r.created) / 1e6 for r in records]
    return Cost(
        jobs=jobs,
        runners=runners,
        stored_in=stored_in,
        seconds=seconds,
        rate=len(records) / seconds,
        trips=trips / len(records),
        wait_p50=percentile(waits, 50),
        wait_p99=percentile(waits, 99),
        idle_samples=len(idle),
        idle_p50_ms=percentile(idle, 50) * 1000,
        idle_p99_ms=percentile(idle, 99) * 1000,
        busy=sum(one.seconds for one in found) / (seconds * runners),
        crashes=sum(r.crashes for r in records),
        retries=sum(r.failures for r in records),
        lost=jobs - len(records),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` percent do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share / 100) - 1)]


def findings(found: Sequence[Measured]) -> Table:
    """The largest packages, the rest in one row, and the sum of all."""
    table = _table("What the library holds")
    listed = packages(found)
    rows = [_row(package) for package in listed[:TOP]]
    if rest := {package.name for package in listed[TOP:]}:
        rows.append(_row(_add(f"{len(rest)} more", [one for one in found if _package(one) in rest])))
    total = _row(_add("all", found))
    for number, name in enumerate(("package", "files", "lines", "functions", "classes")):
        width = max(len(name), *(len(row[number]) for row in (*rows, total)))
        # Of all columns only the last may be cut on a narrow terminal.
        table.add_column(name, justify="right" if number else "left", no_wrap=True, min_width=width)
    table.add_column("longest function", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    table.add_section()
    table.add_row(*map(Text, total), style="bold")
    return table


def costs(cost: Cost) -> Table:
    """The bill, a line each."""
    table = _table("What the run cost", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column()
    for row in _lines(cost):
        table.add_row(*map(Text, row))
    return table


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_header=show_header, title=title, title_justify="left",
        title_style="bold", padding=(0, 1, 0, 0),
    )  # fmt: skip


def facts(found: Sequence[Measured], cost: Cost, survived: Sequence[str], server: str) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "server": server,
        "cost": asdict(cost),
        "survived": list(survived),
        "total": asdict(_add("all", found)),
        "packages": [asdict(package) for package in packages(found)],
        "refused": {one.path: one.refused for one in found if one.refused},
    }


def _package(one: Measured) -> str:
    head, slash, _ = one.path.partition("/")
    return head if slash else "single files"


def _add(name: str, group: Sequence[Measured]) -> Package:
    longest = max(group, key=lambda one: one.length)
    where = longest.path.rpartition("/")[2].removesuffix(".py")
    return Package(
        name,
        len(group),
        sum(one.lines for one in group),
        sum(one.functions for one in group),
        sum(one.classes for one in group),
        sum(one.imports for one in group),
        f"{where}.{longest.longest}" if longest.longest else "",
        longest.length,
    )


def _row(package: Package) -> tuple[str, ...]:
    counts = (package.files, package.lines, package.functions, package.classes)
    longest = f"{package.length:>4} {package.longest}" if package.length else ""
    return (package.name, *(f"{count:,}" for count in counts), longest)


def _lines(cost: Cost) -> list[tuple[str, str, str]]:
    return [
        ("jobs", f"{cost.jobs:,}", f"stored in {cost.stored_in:.2f} s; {cost.lost} lost"),
        ("time", f"{cost.seconds:.1f} s", f"{cost.rate:,.0f} jobs/s over {cost.runners} runners"),
        ("runners busy", f"{cost.busy:.0%}", "of their time went into parsing"),
        ("round trips", f"{cost.trips:.2f}", "per job: one settles a job and claims the next"),
        ("wait in line", f"{cost.wait_p50:.1f} s", f"p50; p99 {cost.wait_p99:.1f} s; all were enqueued at once"),
        ("idle latency", f"{cost.idle_p50_ms:.2f} ms", f"p50; p99 {cost.idle_p99_ms:.2f} ms; enqueue() to first line"),
        ("crashes survived", str(cost.crashes), "runners were killed; their jobs ran again"),
        ("retries", str(cost.retries), "starts after an exception"),
    ]
