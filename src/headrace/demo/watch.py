"""Follow the demo's workflow to its end, and show what it found and what it cost.

Imports the application, so it is imported when the stage is set. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import redis
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.demo.demo_tasks import Package, app, measure, together
from headrace.demo.stage import DemoError, DemoWorker
from headrace.errors import MissingExtra
from headrace.model.job import State
from headrace.model.workflow import Graph, NodeRecord
from headrace.picture import form_of, of_graph, of_nodes, render
from headrace.picture.view import collapse, together_by_map
from headrace.workflows.run import WorkflowRun

TOP = 12
# Fans that are wider than this are one box of the picture.
WIDEST = 12
# Nodes that the definition has; the others are added as it runs.
DEFINED = 5

Cost = dict[str, float]


@contextmanager
def counting_reads(url: str) -> Generator[Callable[[], int]]:
    """Ask the server how many requests it has read since it started; each question is one of them."""
    driver: Any = redis.Redis
    with driver.from_url(url, protocol=2) as client:
        yield lambda: int(client.info("stats")["total_reads_processed"])


def sketch(graph: Graph, width: int) -> str:
    """Draw the definition for a terminal, without its title."""
    return render(of_graph(graph), "text", width=width).split("\n\n", 1)[1].rstrip()


def follow(run: WorkflowRun, worker: DemoWorker, console: Console) -> list[Package]:
    """Show a bar on a terminal until the workflow has ended; return its report."""
    columns = (BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    scanned = False
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as bar:
        shown = bar.add_task("starting", total=None)
        while not (record := run.refresh()).state.final:
            worker.watch(0.1)
            if record.total > DEFINED and not scanned:
                scanned = True
                files = len(run.outputs("scan")["scan"])
                console.print(f"the scan found {files:,} source files, without tests: the run adds a job for each")
            running = app.overview().states.get(State.RUNNING, 0)
            bar.update(shown, completed=record.done, total=record.total, description=f"{running} running")
        bar.update(shown, completed=record.done, total=record.total, description="0 running")
    console.print(f"{record.done:,} of {record.total:,} jobs done")
    packages: list[Package] | None = run.outputs("report").get("report")
    if packages:
        return packages
    where = f" at {record.failed_node}" if record.failed_node else ", and has no report"
    raise DemoError(f"the workflow {record.state}{where}; the end of the worker's log:\n{worker.tail()}")


def collect(run: WorkflowRun) -> list[NodeRecord]:
    """Read all nodes. Cost: two or three round trips per 1,000."""
    page = run.nodes(limit=1000)
    found = [*page]
    while page.next is not None:
        page = run.nodes(limit=1000, after=page.next)
        found += page
    return found


def survived(nodes: Iterable[NodeRecord]) -> list[str]:
    """A sentence for each job that succeeded after a crash or a failure."""
    found: list[str] = []
    for node in nodes:
        job = node.job
        if job.state is not State.SUCCEEDED or not (job.crashes or job.failures):
            continue
        measured = job.task == measure.name and not node.facts.map
        work = f"measuring {job.result.name}" if measured else f"running {node.facts.name!r}"
        if job.crashes:
            found.append(f"a runner was killed while {work}: its job ran again and succeeded, start {job.attempt}")
        else:
            found.append(f"{work} raised: its job was retried and succeeded, start {job.attempt}")
    return found


def bill(nodes: Sequence[NodeRecord], runners: int, trips: int) -> Cost:
    """The cost of the run: its jobs, their seconds together, and round trips of the worker per job."""
    jobs = [node.job for node in nodes if not node.role]
    seconds = (max(job.finished_us for job in jobs) - min(job.started_us for job in jobs if job.started_us)) / 1e6
    return {
        "nodes": len(nodes),
        "jobs": len(jobs),
        "defined": DEFINED,
        "runners": runners,
        "seconds": seconds,
        "rate": len(jobs) / seconds,
        "trips": trips / len(jobs),
        "crashes": sum(job.crashes for job in jobs),
        "retries": sum(job.failures for job in jobs),
        "lost": sum(job.state is not State.SUCCEEDED for job in jobs),
    }


def findings(packages: Sequence[Package]) -> Table:
    """The largest packages, the rest in one row, and the sum of all."""
    rows = [*packages[:TOP]]
    if rest := packages[TOP:]:
        rows.append(together(f"{len(rest)} more", rest))
    table = _table("What the library holds")
    for name in ("package", "files", "lines", "functions"):
        table.add_column(name, justify="left" if name == "package" else "right", no_wrap=True)
    table.add_column("longest function", overflow="ellipsis")
    for package in (*rows, together("all", packages)):
        counts = (f"{count:,}" for count in (package.files, package.lines, package.functions))
        # The cell is cut where the terminal ends; a column that must not wrap would be cut at no edge.
        longest = Text(f"{package.length:>4} {package.longest}", no_wrap=True, overflow="ellipsis")
        table.add_row(package.name, *counts, longest)
    return table


def costs(cost: Cost) -> Table:
    table = _table("What the run cost", show_header=False)
    for name, value, text in (
        ("jobs", "{jobs:,}", "{lost} lost; {defined} were defined, the others added as it ran"),
        ("time", "{seconds:.1f} s", "{rate:,.0f} jobs/s over {runners} runners"),
        ("round trips", "{trips:.2f}", "per job: one settles many jobs and claims the next"),
        ("crashes survived", "{crashes}", "runners were killed; their jobs ran again"),
        ("retries", "{retries}", "starts after an exception"),
    ):
        table.add_row(name, value.format(**cost), text.format(**cost))
    return table


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_header=show_header, title=title, title_justify="left",
        title_style="bold", padding=(0, 1, 0, 0),
    )  # fmt: skip


def draw(path: Path | None, title: str, nodes: Sequence[NodeRecord]) -> tuple[str | None, str]:
    """Write the picture of a run; return its path and a line about it."""
    if path is None:
        return None, "No picture of the run: the current directory cannot be written; name a file with --picture."
    view, why = collapse(together_by_map(of_nodes(title, nodes)), WIDEST), ""
    try:
        text = render(view, form_of(path))
    except MissingExtra as error:
        path, text, why = path.with_suffix(".mmd"), render(view, "mermaid"), f", as Mermaid. {error}"
    path.write_text(text, encoding="utf-8")
    return str(path), f"A picture of the run: {path}{why}"


def facts(
    packages: Sequence[Package], cost: Cost, survived: Sequence[str], server: str, picture: str | None
) -> dict[str, Any]:
    return {
        "server": server,
        "cost": cost,
        "survived": survived,
        "total": asdict(together("all", packages)),
        "packages": [asdict(package) for package in packages],
        "picture": picture,
    }
