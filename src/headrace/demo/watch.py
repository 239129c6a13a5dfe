"""Follow the demo's workflow to its end, and report what it found and what it cost.

1. :class:`StageProgress` and :func:`collect`: read the story of its nodes from the store as any program would, in
   bounded pages.
2. :func:`findings`, :func:`costs` and :func:`facts`: tables for people and facts for programs.

Imports the application, so it is imported when the stage is set. Starts nothing and prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from headrace.demo import demo_tasks
from headrace.demo.demo_tasks import Package, measure, together
from headrace.model.job import State
from headrace.model.schedule_record import TickRecord
from headrace.model.workflow import NodeRecord, WorkflowState
from headrace.workflows.run import WorkflowRun

# Nodes that one look reads, as long as they have not all ended.
PAGE = 100


class StageProgress:
    """What is known of the run so far.

    Attributes:
        defined: nodes of the definition; all others were added by the run.
        state: of the workflow, a moment ago; so are the others.
        done: nodes that had ended.
        total: nodes that there were.
        running: jobs that ran.
        files: how many files the scan found; 0: it had not ended.
    """

    def __init__(self, run: WorkflowRun, defined: int) -> None:
        self.defined = defined
        self.state = WorkflowState.PENDING
        self.done = self.total = self.running = self.files = 0
        self._run = run
        self._cursor: str | None = None
        self._told: set[int] = set()

    def look(self) -> list[str]:
        """Learn what happened since the last look; a sentence for each job that survived something.

        Cost: four round trips, and two more for each 100 nodes that ended.
        """
        # Read before the nodes are: what ends in between is found by their pages, or by the next look.
        record = self._run.refresh()
        self.running = demo_tasks.app.overview().states.get(State.RUNNING, 0)
        news = list(self._survivors())
        self.state, self.done, self.total = record.state, record.done, record.total
        return news

    def _survivors(self) -> Iterator[str]:
        """Of the nodes that were added; the first ones of them that have not ended are where the next look begins."""
        if self._cursor is None:
            first = self._run.nodes(limit=self.defined)
            scanned = first[0].job
            if scanned.state is not State.SUCCEEDED or first.next is None:
                return
            self.files = len(scanned.result)
            self._cursor = first.next
        while True:
            page = self._run.nodes(limit=PAGE, after=self._cursor)
            for node in page:
                if node.job.state is State.SUCCEEDED and node.number not in self._told:
                    self._told.add(node.number)
                    if text := survived(node):
                        yield text
            if page.next is None or not all(node.job.state.final for node in page):
                return
            self._cursor = page.next


def collect(run: WorkflowRun) -> list[NodeRecord]:
    """All nodes. Cost: two or three round trips per 1,000."""
    found: list[NodeRecord] = []
    cursor: str | None = None
    while True:
        page = run.nodes(limit=1000, after=cursor)
        found += page
        if page.next is None:
            return found
        cursor = page.next


def survived(node: NodeRecord) -> str:
    """What went wrong with a job that succeeded all the same; empty when nothing did."""
    job = node.job
    if job.crashes:
        return f"a runner was killed while {_work(node)}: its job ran again and succeeded, start {job.attempt}"
    if job.failures:
        return f"{_work(node)} raised: its job was retried and succeeded, start {job.attempt}"
    return ""


def _work(node: NodeRecord) -> str:
    """What the job did, by its file if it has one."""
    job = node.job
    if job.task != demo_tasks.measure.name or node.facts.map:
        return f"running {node.facts.name!r}"
    return f"measuring {job.result.name}"


TOP = 12


class Cost(msgspec.Struct, frozen=True):
    """What the run cost. Seconds, unless the name says milliseconds.

    Attributes:
        nodes: of the workflow: jobs, and joins, which wait for what was added and run nothing.
        jobs: of the workflow, one per file and a few more; what is said of jobs below is about all of them.
        defined: nodes that were stored at first; the run added the others.
        stored_in: for creating and starting the workflow.
        seconds: from the first start to the last end.
        trips: the worker's requests to the server, per job.
        wait_p50, wait_p99: of the files' jobs, from the moment they all lined up to the last start.
        idle_p50_ms, idle_p99_ms: from ``enqueue()`` being called to the job's first line, with an idle worker.
        busy: share of the runners' time that went into parsing.
        crashes: runners that were killed and whose jobs ran again.
        retries: starts after an exception.
        lost: jobs that did not succeed.
        ticks, ticked: of the schedule, and those that made a job; ``late_ms``: how much after its time at most.
    """

    nodes: int
    jobs: int
    defined: int
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
    ticks: int
    ticked: int
    late_ms: float


def bill(
    nodes: Sequence[NodeRecord], packages: Sequence[Package], idle: Sequence[float], ticks: Sequence[TickRecord], *,
    defined: int, runners: int, stored_in: float, trips: int,
) -> Cost:  # fmt: skip
    """What the run cost, from what was measured."""
    jobs = [node.job for node in nodes if not node.role]
    measuring = [node for node in nodes if node.job.task == measure.name]
    # Files line up together, when the node that fans out over them has ended.
    lined_up = next(node.job.finished_us for node in measuring if node.facts.map)
    seconds = (max(job.finished_us for job in jobs) - min(job.started_us for job in jobs if job.started_us)) / 1e6
    waits = [(node.job.started_us - lined_up) / 1e6 for node in measuring if not node.facts.map and node.job.started_us]
    return Cost(
        nodes=len(nodes),
        jobs=len(jobs),
        defined=defined,
        runners=runners,
        stored_in=stored_in,
        seconds=seconds,
        rate=len(jobs) / seconds,
        trips=trips / len(jobs),
        wait_p50=percentile(waits, 50),
        wait_p99=percentile(waits, 99),
        idle_samples=len(idle),
        idle_p50_ms=percentile(idle, 50) * 1000,
        idle_p99_ms=percentile(idle, 99) * 1000,
        busy=sum(package.seconds for package in packages) / (seconds * runners),
        crashes=sum(job.crashes for job in jobs),
        retries=sum(job.failures for job in jobs),
        lost=sum(job.state is not State.SUCCEEDED for job in jobs),
        ticks=sum(tick.count for tick in ticks),
        ticked=sum(tick.what == "ran" for tick in ticks),
        late_ms=max((tick.at - tick.tick for tick in ticks), default=0) / 1000,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` percent do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share / 100) - 1)]


def findings(packages: Sequence[Package]) -> Table:
    """The largest packages, the rest in one row, and the sum of all."""
    table = _table("What the library holds")
    rows = [_row(package) for package in packages[:TOP]]
    if rest := packages[TOP:]:
        rows.append(_row(together(f"{len(rest)} more", rest)))
    total = _row(together("all", packages))
    for number, name in enumerate(("package", "files", "lines", "functions", "classes")):
        width = max(len(name), *(len(row[number]) for row in (*rows, total)))
        # Of all columns only the last may be cut on a narrow terminal.
        table.add_column(name, justify="right" if number else "left", no_wrap=True, min_width=width)
    table.add_column("longest function", overflow="ellipsis")
    for row in rows:
        table.add_row(*map(_cell, row))
    table.add_section()
    table.add_row(*map(_cell, total), style="bold")
    return table


def _cell(text: str) -> Text:
    # Said of each text: a column that must not wrap is not made narrower either, and the terminal's edge cuts it.
    return Text(text, no_wrap=True, overflow="ellipsis")


def costs(cost: Cost) -> Table:
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


def facts(
    packages: Sequence[Package], cost: Cost, survived: Sequence[str], server: str, picture: str | None
) -> dict[str, Any]:
    total = together("all", packages)
    return {
        "server": server,
        "cost": msgspec.structs.asdict(cost),
        "survived": list(survived),
        "total": _counts(total),
        "packages": [_counts(package) for package in packages],
        "refused": total.refused,
        "picture": picture,
    }


def _counts(package: Package) -> dict[str, Any]:
    return {name: value for name, value in asdict(package).items() if name != "refused"}


def _row(package: Package) -> tuple[str, ...]:
    counts = (package.files, package.lines, package.functions, package.classes)
    longest = f"{package.length:>4} {package.longest}" if package.length else ""
    return (package.name, *(f"{count:,}" for count in counts), longest)


def _lines(cost: Cost) -> list[tuple[str, str, str]]:
    return [
        ("jobs", f"{cost.jobs:,}", f"{cost.lost} lost; {cost.defined} were defined, the others added as it ran"),
        ("time", f"{cost.seconds:.1f} s", f"{cost.rate:,.0f} jobs/s over {cost.runners} runners"),
        ("runners busy", f"{cost.busy:.0%}", "of their time went into parsing"),
        ("round trips", f"{cost.trips:.2f}", "per job: one settles a job and claims the next"),
        ("wait in line", f"{cost.wait_p50:.1f} s", f"p50; p99 {cost.wait_p99:.1f} s; all files lined up at once"),
        ("idle latency", f"{cost.idle_p50_ms:.2f} ms", f"p50; p99 {cost.idle_p99_ms:.2f} ms; enqueue() to first line"),
        ("crashes survived", str(cost.crashes), "runners were killed; their jobs ran again"),
        ("retries", str(cost.retries), "starts after an exception"),
        (
            "schedule",
            f"{cost.ticked} of {cost.ticks}",
            f"ticks, one a second, made jobs; at most {cost.late_ms:.0f} ms late",
        ),
    ]
