"""The run of ``headrace demo``: a workflow on a private server and a worker of its own, what it found and its cost."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec
import redis
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace import embedded
from headrace.errors import HeadraceError, MissingExtra, OptionsError
from headrace.model.job import State
from headrace.model.workflow import Graph, NodeRecord
from headrace.picture import form_of, of_graph, of_nodes, render
from headrace.picture.view import collapse, together_by_map
from headrace.worker.health_stamps import forget_dead
from headrace.workflows.run import WorkflowRun

if TYPE_CHECKING:
    from headrace.demo import Package

PICTURE = Path("headrace-demo.svg")
STOPPING = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Packages that are shown; fans that are wider are one box of the picture; nodes that the definition has.
TOP = WIDEST = 12
DEFINED = 5


class DemoError(HeadraceError):
    """The demo cannot go on."""


class DemoWorker:
    """A real ``headrace worker`` in a session of its own: Ctrl-C reaches the demo alone, which ends the worker."""

    def __init__(self, directory: Path, processes: int) -> None:
        self._log = directory / "worker.log"
        command = [sys.executable, "-m", "headrace", "worker", "headrace.demo:app", "--processes", str(processes)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.pid = self._process.pid

    def watch(self, seconds: float) -> None:
        """Wait; raise DemoError with the last lines of the log if the worker ended meanwhile."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            raise DemoError(f"the demo's worker ended with exit code {code}; the end of its log:\n{self.tail()}")

    def stop(self) -> None:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(STOPPING)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            # The dispatcher outlives its supervisor for a moment, and would bring back the server to hand in outcomes.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            forget_dead()

    def tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-15:]) or "    (nothing)"


class Stage(NamedTuple):
    """The server, by its version and URL; ``worker`` starts a worker of this many process runners."""

    server: str
    url: str
    worker: Callable[[int], DemoWorker]


@contextmanager
def staged() -> Generator[Stage]:
    """Set the stage, and clear it whatever happens: no process, socket or file of it stays. It replaces the user's
    settings in this process, so that no job of the demo gets into a real queue.
    """
    with ExitStack() as end:

        def worker(processes: int) -> DemoWorker:
            started = DemoWorker(directory, processes)
            end.callback(started.stop)
            return started

        try:
            for number in _SIGNALS:
                end.callback(signal.signal, number, signal.getsignal(number))
            directory = Path(tempfile.mkdtemp(prefix="headrace-demo-")).resolve()
            end.callback(_remove, directory)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, _leave)
            for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
                del os.environ[name]
            os.environ["HEADRACE_DIR"] = str(directory)
            end.callback(embedded.stop, directory)
            server = end.enter_context(embedded.attach(directory, idle_timeout=0))
            yield Stage(embedded.status(directory).version or "a private server", server.url, worker)
        finally:
            # A second Ctrl-C must not leave half of the stage behind; what remains to be done is bounded.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _remove(directory: Path) -> None:
    address = embedded.status(directory).socket
    if address is not None and address.parent != directory:
        # With a long TMPDIR the socket has a directory of its own.
        with suppress(OSError):
            address.unlink(missing_ok=True)
            address.parent.rmdir()
    shutil.rmtree(directory, ignore_errors=True)


def main(*, processes: int, limit: int | None, picture: Path | None, json: bool) -> int:
    """Run the demo; it needs no server and leaves nothing behind but a picture, also when it is interrupted. Returns 0
    when every job succeeded, else 1. ``limit``, ``picture``: as the command has them.
    """
    place = place_of(picture)
    console = Console(quiet=json, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 100
    with staged() as stage:
        # Imported only now: the application reads the settings that the stage has just made.
        from headrace.demo import app, survey

        driver: Any = redis.Redis
        with app, driver.from_url(stage.url, protocol=2) as client:
            console.print(f"A survey of Python {platform.python_version()}'s own library, as a workflow:\n")
            console.print(sketch(survey.graph(limit), console.width) + "\n", soft_wrap=True)
            run = survey.create(limit)
            run.start()
            # Each request of this process is one read of the server, the questions included.
            before = _reads(client) - app.store.round_trips
            worker = stage.worker(processes)
            runners = f"{processes} process runner{'s' * (processes != 1)}"
            console.print(f"{stage.server} in a temporary directory; worker {worker.pid} with {runners}")
            packages = _follow(run, worker, console)
            trips = _reads(client) - 1 - app.store.round_trips - before
            nodes = _collect(run)
            survived, cost = _survived(nodes), _bill(nodes, processes, trips)
    for text in survived:
        console.print(text, style="yellow", soft_wrap=True)
    for table in (_findings(packages), _costs(cost)):
        console.print()
        console.print(table)
    drawn, line = draw(place, f"{run.definition} {run.id}", nodes)
    console.print(line, soft_wrap=True)
    if json:
        found = {"server": stage.server, "cost": cost, "survived": survived, "total": _sum("all", packages)}
        document = found | {"packages": packages, "picture": drawn}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    return 1 if cost["lost"] else 0


def place_of(asked: Path | None) -> Path | None:
    """Choose the picture's path before anything runs; None: none was asked for, and the default cannot be written."""
    path = asked or PICTURE
    form_of(path)
    if not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK):
        return path
    if asked is None:
        return None
    raise OptionsError(f"the picture cannot be written to {path}: name another file with --picture")


def _reads(client: Any) -> int:
    return int(client.info("stats")["total_reads_processed"])


def sketch(graph: Graph, width: int) -> str:
    """Draw the definition for a terminal, without its title."""
    return render(of_graph(graph), "text", width=width).split("\n\n", 1)[1].rstrip()


def _follow(run: WorkflowRun, worker: DemoWorker, console: Console) -> list[Package]:
    """Show a bar on a terminal until the workflow has ended; return its report."""
    from headrace.demo import app

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


def _collect(run: WorkflowRun) -> list[NodeRecord]:
    page = run.nodes(limit=1000)
    found = [*page]
    while page.next is not None:
        page = run.nodes(limit=1000, after=page.next)
        found += page
    return found


def _survived(nodes: Iterable[NodeRecord]) -> list[str]:
    """A sentence for each job that succeeded after a crash or a failure."""
    found: list[str] = []
    for node in nodes:
        job = node.job
        if job.state is not State.SUCCEEDED or not (job.crashes or job.failures):
            continue
        measured = job.task == "demo.measure" and not node.facts.map
        work = f"measuring {job.result.name}" if measured else f"running {node.facts.name!r}"
        if job.crashes:
            found.append(f"a runner was killed while {work}: its job ran again and succeeded, start {job.attempt}")
        else:
            found.append(f"{work} raised: its job was retried and succeeded, start {job.attempt}")
    return found


def _bill(nodes: Sequence[NodeRecord], runners: int, trips: int) -> dict[str, float]:
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


def _sum(name: str, packages: Sequence[Package]) -> Package:
    from headrace.demo import together

    return together(name, packages)


def _findings(packages: Sequence[Package]) -> Table:
    """The largest packages, the rest in one row, and the sum of all."""
    rows = [*packages[:TOP]]
    if rest := packages[TOP:]:
        rows.append(_sum(f"{len(rest)} more", rest))
    table = _table("What the library holds")
    for name in ("package", "files", "lines", "functions"):
        table.add_column(name, justify="left" if name == "package" else "right", no_wrap=True)
    table.add_column("longest function", overflow="ellipsis")
    for package in (*rows, _sum("all", packages)):
        counts = (f"{count:,}" for count in (package.files, package.lines, package.functions))
        # The cell is cut where the terminal ends; a column that must not wrap would be cut at no edge.
        longest = Text(f"{package.length:>4} {package.longest}", no_wrap=True, overflow="ellipsis")
        table.add_row(package.name, *counts, longest)
    return table


def _costs(cost: dict[str, float]) -> Table:
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
