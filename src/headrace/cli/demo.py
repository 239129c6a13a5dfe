"""``headrace demo``: a workflow on a private server and a worker of its own; what it found, and what it cost."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from headrace.cli.arguments import option
from headrace.cli.output import bar_of, several
from headrace.cli.session import OperationFault, Session, UsageFault
from headrace.errors import MissingExtra
from headrace.model.job import State

if TYPE_CHECKING:
    from headrace.demo import Package
    from headrace.model.workflow import Graph, NodeRecord
    from headrace.workflows.run import WorkflowRun

PICTURE = Path("headrace-demo.svg")
STOPPING = 10.0  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Packages that are shown; fans that are wider are one box of the picture; nodes that the definition has.
TOP = WIDEST = 12
DEFINED = 5


def demo(
    session: Session,
    processes: Annotated[int, option("--processes N", "Process runners.", min=1)] = 2,
    limit: Annotated[int | None, option("--limit N", "Measure only N files, spread over all.", min=1)] = None,
    picture: Annotated[
        Path | None,
        option(
            "--picture FILE",
            "Draw the run there, as .svg, .dot, .mmd or .txt. Default: headrace-demo.svg, if it can be written.",
        ),
    ] = None,
) -> int:
    """Measure the Python standard library of this machine with a workflow of a few hundred jobs, then show its cost."""
    import redis

    place, output = place_of(picture), session.output

    def say(text: str) -> None:
        if not output.json:
            output.line(text)

    with staged() as (server, url, directory):
        # Imported only now: the application reads the settings that the stage has just made.
        from headrace.cli import job_output
        from headrace.demo import app, survey, together

        driver: Any = redis.Redis
        with app, driver.from_url(url, protocol=2) as client, DemoWorker(directory, processes) as worker:
            say(f"A survey of Python {platform.python_version()}'s own library, as a workflow:\n")
            say(sketch(survey.graph(limit), output.console().width) + "\n")
            say(f"{server} in a temporary directory; a worker with {several(processes, 'process runner')}")
            run = survey.create(limit)
            run.start()
            # Each request of this process is one read of the server, the questions included.
            before = _reads(client) - app.store.round_trips
            packages = _follow(session, run, worker, say)
            trips = _reads(client) - 1 - app.store.round_trips - before
            nodes = job_output.read(output, run, None)
    survived, cost = _survived(nodes), _cost(nodes, trips)
    drawn, line = draw(place, f"{run.definition} {run.id}", nodes)
    if output.json:
        found = {"server": server, "cost": cost, "survived": survived, "total": together("all", packages)}
        output.document(found | {"packages": packages, "picture": drawn})
    else:
        for text in survived:
            say(text)
        _tell_packages(session, packages)
        say("")
        output.facts((name.replace("_", " "), f"{value:,}") for name, value in cost.items())
        say(line)
    return 1 if cost["lost"] else 0


class DemoWorker:
    """A real ``headrace worker`` in a session of its own: Ctrl-C reaches the demo alone, which ends the worker."""

    def __init__(self, directory: Path, processes: int) -> None:
        self._log = directory / "worker.log"
        command = [sys.executable, "-m", "headrace", "worker", "headrace.demo:app", "--processes", str(processes)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def watch(self, seconds: float) -> None:
        """Wait. Raises OperationFault: the worker ended meanwhile; the text has the last lines of its log."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            raise OperationFault(f"the demo's worker ended with exit code {code}; the end of its log:\n{self.tail()}")

    def tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-15:]) or "    (nothing)"

    def __enter__(self) -> DemoWorker:
        return self

    def __exit__(self, *_: object) -> None:
        from headrace.worker.health_stamps import forget_dead

        _disregard()
        with suppress(subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(STOPPING)
        # The dispatcher outlives a killed worker for a moment, and would start the server again to settle its jobs.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        forget_dead()


@contextmanager
def staged() -> Generator[tuple[str, str, Path]]:
    """Start a private server in a new directory; yields its version, its URL and the directory. No process, socket or
    file of it stays. It replaces the user's settings in this process, so that no job gets into a real queue.
    """
    from headrace import embedded

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    directory = Path(tempfile.mkdtemp(prefix="headrace-demo-")).resolve()
    try:
        for number in _SIGNALS:
            signal.signal(number, _leave)
        for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
            del os.environ[name]
        os.environ["HEADRACE_DIR"] = str(directory)
        with embedded.attach(directory, idle_timeout=0) as server:
            yield embedded.status(directory).version or "a private server", server.url, directory
    finally:
        _disregard()
        embedded.stop(directory)
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _disregard() -> None:
    # Another Ctrl-C must not leave the worker or half of the stage behind; the rest of the work is bounded.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    # At once: the worker is ended before the stage is.
    _disregard()
    raise SystemExit(128 + number)


def place_of(asked: Path | None) -> Path | None:
    """Choose the picture's path before anything runs; None: none was asked for, and the default cannot be written."""
    from headrace.picture import form_of

    path = asked or PICTURE
    form_of(path)
    if not path.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK):
        return path
    if asked is None:
        return None
    raise UsageFault(f"the picture cannot be written to {path}: name another file with --picture")


def sketch(graph: Graph, width: int) -> str:
    from headrace.picture import of_graph, render

    return render(of_graph(graph), "text", width=width).split("\n\n", 1)[1].rstrip()


def _follow(session: Session, run: WorkflowRun, worker: DemoWorker, say: Callable[[str], None]) -> list[Package]:
    scanned = False
    with bar_of(session.output, None, "jobs") as tell:
        while not (record := run.refresh()).state.final:
            worker.watch(0.1)
            if record.total > DEFINED and not scanned:
                scanned = True
                files = len(run.outputs("scan")["scan"])
                say(f"the scan found {files:,} source files, without tests: the run adds a job for each")
            tell(record.done)
    if packages := run.outputs("report").get("report"):
        return packages  # type: ignore[no-any-return]
    where = f" at {record.failed_node}" if record.failed_node else ", and has no report"
    raise OperationFault(f"the workflow {record.state}{where}; the end of the worker's log:\n{worker.tail()}")


def _survived(nodes: Iterable[NodeRecord]) -> list[str]:
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


def _reads(client: Any) -> int:
    return int(client.info("stats")["total_reads_processed"])


def _cost(nodes: Sequence[NodeRecord], trips: int) -> dict[str, float]:
    jobs = [node.job for node in nodes if not node.role]
    seconds = (max(job.finished_us for job in jobs) - min(job.started_us for job in jobs if job.started_us)) / 1e6
    return {
        "jobs": len(jobs),
        "lost": sum(job.state is not State.SUCCEEDED for job in jobs),
        "crashes": sum(job.crashes for job in jobs),
        "retries": sum(job.failures for job in jobs),
        "seconds": round(seconds, 1),
        "jobs_per_second": round(len(jobs) / seconds),
        "round_trips_per_job": round(trips / len(jobs), 2),
    }


def _tell_packages(session: Session, packages: Sequence[Package]) -> None:
    from headrace.demo import together

    rest = packages[TOP:]
    left = [together(f"{len(rest)} more", rest)] if rest else []
    rows = [
        (one.name, f"{one.files:,}", f"{one.lines:,}", f"{one.functions:,}", f"{one.length:>4} {one.longest}")
        for one in [*packages[:TOP], *left, together("all", packages)]
    ]
    columns = ("package", ">files", ">lines", ">functions", "longest function")
    session.output.table(columns, rows, keep=("package",))


def draw(path: Path | None, title: str, nodes: Sequence[NodeRecord]) -> tuple[str | None, str]:
    """Write the picture of a run; return its path and a line about it."""
    from headrace.picture import form_of, of_nodes, render
    from headrace.picture.view import collapse, together_by_map

    if path is None:
        return None, "No picture of the run: the current directory cannot be written; name a file with --picture."
    view, why = collapse(together_by_map(of_nodes(title, nodes)), WIDEST), ""
    try:
        text = render(view, form_of(path))
    except MissingExtra as error:
        path, text, why = path.with_suffix(".mmd"), render(view, "mermaid"), f", as Mermaid. {error}"
    path.write_text(text, encoding="utf-8")
    return str(path), f"A picture of the run: {path}{why}"
