"""The demo as its viewer sees it: the run of its workflow from start to end, and the bill.

1. :class:`StageProgress` and :func:`collect`: follow the workflow to its end and read the story of its nodes. Reads the
   store as any program would, in bounded pages. Starts nothing and prints nothing.
2. :class:`Screen`: a live bar on a terminal, a line now and then in a pipe, nothing for a program. Owns the terminal
   while a bar is shown.
3. :func:`sketch` and :func:`draw`: the definition in the terminal, and the run as a picture. Owns that one file.
4. :class:`Stage`: a private server in a temporary directory and one worker, both gone when the demo ends. Owns the
   directory, the hold on the server and the worker's process. Prints nothing.
5. :func:`findings`, :func:`costs` and :func:`facts`: tables for people and facts for programs. Pure but for Rich's
   tables.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

import msgspec
import redis
from rich import box
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace import embedded
from headrace.demo import demo_tasks
from headrace.demo.demo_tasks import Package, measure, together
from headrace.errors import HeadraceError, MissingExtra, OptionsError
from headrace.model.job import State
from headrace.model.schedule_record import TickRecord
from headrace.model.workflow import Graph, NodeRecord, WorkflowState
from headrace.picture import form_of, of_graph, of_nodes, render
from headrace.picture.view import collapse, together_by_map
from headrace.worker.health_stamps import forget_dead
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
        self.state = record.state
        self.done = record.done
        self.total = record.total
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


# Into a pipe, a line when each such share is done.
SHARE = 0.25
PIPE_WIDTH = 100


class Screen:
    """Where the demo speaks. ``quiet``: it says nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=quiet, highlight=False, markup=False, emoji=False)
        if not self._console.is_terminal:
            self._console.width = PIPE_WIDTH

    @property
    def width(self) -> int:
        return self._console.width

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def tables(self, *tables: RenderableType) -> None:
        for table in tables:
            self._console.print()
            self._console.print(table)

    @contextmanager
    def bar(self) -> Generator[StageBar]:
        columns = (
            BarColumn(bar_width=None), TaskProgressColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )  # fmt: skip
        live = Progress(*columns, console=self._console, disable=not self._console.is_terminal, expand=True)
        with live:
            yield StageBar(self._console, live)


class StageBar:
    """Progress of the run."""

    def __init__(self, console: Console, live: Progress) -> None:
        """Use :meth:`Screen.bar`."""
        self._console = console
        self._live = live
        self._task = live.add_task("starting", total=None)
        self._began: float | None = None
        self._next = SHARE

    def show(self, done: int, total: int, running: int, news: Sequence[str]) -> None:
        """So many nodes have ended, of so many (0: nobody knows yet), so many run, and this is new."""
        for text in news:
            self._console.print(f"  {text}", style="yellow", soft_wrap=True)
        if not total:
            return
        now = time.monotonic()
        if self._began is None:
            # From here on: the worker's start is no work.
            self._began = now
        rate = done / (now - self._began) if now - self._began > 0.5 else 0.0
        speed = f"{running} running, {rate:,.0f}/s"
        self._live.update(self._task, completed=done, total=total, description=speed)
        if not self._console.is_terminal and done >= total * self._next:
            self._console.print(f"{done:,} of {total:,} jobs done, {speed}")
            while done >= total * self._next:
                self._next += SHARE


DEFAULT = Path("headrace-demo.svg")
# Boxes that one glance takes in: wider fans become one.
MOST = 12


def place(asked: Path | None) -> Path | None:
    """Where the picture goes, checked before anything has run; None: nobody asked, and here it cannot be written."""
    path = asked or DEFAULT
    form_of(path)
    if os.access(path, os.W_OK) and path.is_file():
        return path
    if not path.exists() and os.access(path.parent, os.W_OK | os.X_OK):
        return path
    if asked is None:
        return None
    raise OptionsError(f"the picture cannot be written to {path}: name another file with --picture")


def sketch(graph: Graph, width: int) -> str:
    """A definition for a terminal, without its title."""
    return render(of_graph(graph), "text", width=width).split("\n\n", 1)[1].rstrip()


def draw(path: Path, title: str, nodes: Sequence[NodeRecord]) -> tuple[Path, str]:
    """Write the picture of a run; where it is, and why not where it was to be."""
    view = collapse(together_by_map(of_nodes(title, nodes)), MOST)
    try:
        text, why = render(view, form_of(path)), ""
    except MissingExtra as error:
        path = path.with_suffix(".mmd")
        text, why = render(view, "mermaid"), str(error)
    path.write_text(text, encoding="utf-8")
    return path, why


# -- the server and the worker of the demo -----------------------------------------------------------------------------

# Patience with a worker that was told to stop; its jobs take well under a second each.
STOPPING = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoError(HeadraceError):
    """The demo cannot go on."""


class Worker:
    """A real ``headrace worker`` of the demo's application, in a session of its own.

    Of its own, so that Ctrl-C in the terminal reaches only the demo, which then ends the worker in order.
    """

    def __init__(self, processes: int, log: IO[bytes], path: Path) -> None:
        target = "headrace.demo.demo_tasks:app"
        command = [sys.executable, "-m", "headrace", "worker", target, "--processes", str(processes)]
        self._log = path
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, seconds: float) -> None:
        """Let this time pass; DemoError if the worker ended meanwhile, with the last lines of its log."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            raise DemoError(f"the demo's worker ended with exit code {code}; its last words:\n{self.tail()}")

    def stop(self) -> None:
        """End it in order, then by force."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(STOPPING)
        if self._process.poll() is None:
            # The dispatcher leaves, and runners die, with their supervisor.
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            # Its dispatcher outlives it for a moment, and would bring back the server to hand in what ran.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            forget_dead()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-15:]) or "    (nothing)"


class Stage:
    """The directory and the server; :meth:`worker` adds the worker.

    Attributes:
        server: name and version of the server.
    """

    def __init__(self, directory: Path, held: embedded.Embedded, end: ExitStack) -> None:
        """Use :func:`staged`."""
        self._directory = directory
        self._held = held
        self._end = end
        self.server = embedded.status(directory).version or "a private server"

    @contextmanager
    def reads(self) -> Generator[Callable[[], int]]:
        """A question to the server: how many requests it has read since it started. Each costs one of them."""
        driver: Any = redis.Redis
        with driver.from_url(self._held.url, protocol=2) as client:
            yield lambda: int(client.info("stats")["total_reads_processed"])

    def worker(self, processes: int) -> Worker:
        """Start the worker; it ends with the stage."""
        path = self._directory / "worker.log"
        log = self._end.enter_context(path.open("wb"))
        worker = Worker(processes, log, path)
        self._end.callback(worker.stop)
        return worker


@contextmanager
def staged() -> Generator[Stage]:
    """Set the stage, and clear it whatever happens: no process, socket or file of it stays.

    Points this process's own settings at the private server, and away from any that the user has set: the demo must
    not put a thousand jobs into somebody's real queue.
    """
    with ExitStack() as end:
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
            held = end.enter_context(embedded.attach(directory, idle_timeout=0))
            yield Stage(directory, held, end)
        finally:
            # A second Ctrl-C must not leave half of the stage behind; what remains to be done is bounded.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _remove(directory: Path) -> None:
    address = embedded.status(directory).socket
    if address is not None and address.parent != directory:
        # A long TMPDIR: the socket found no room in the directory itself, and got one of its own.
        with suppress(OSError):
            address.unlink(missing_ok=True)
            address.parent.rmdir()
    shutil.rmtree(directory, ignore_errors=True)


# -- findings and the bill ---------------------------------------------------------------------------------------------

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
