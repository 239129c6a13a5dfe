"""``headrace workers``, ``health`` (``probe.py`` answers for it) and ``profile``, which records one by py-spy."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import several, span, to_json
from headrace.cli.session import OperationFault, Session, UsageFault
from headrace.model.notation import duration, size
from headrace.model.options import KINDS, TaskKind

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.cli.output import Output
    from headrace.protocol.overviews import RunnerFacts, WorkerFacts

app = group("List, show, resize, quiet and stop the live workers.")

Name = Annotated[str, argument("NAME", "The worker's name or its beginning, HOST:PID, or the process id.")]


@command(app, "list")
def list_(session: Session) -> None:
    """List the workers: where they are, what they serve and run, and when their lease ends."""
    from headrace.admin.documents import worker_document

    with session.view() as app:
        seen = app.overview()
    rows = [
        (w.owner, w.metadata.get("queues", "-"), w.metadata.get("runners", "-"), _running(w), _left(w, seen.now))
        for w in sorted(seen.workers, key=lambda worker: worker.owner)
    ]
    session.output.listing(
        (worker_document(worker, seen.now) for worker in seen.workers),
        ("worker", "queues", "runners", ">running", ">lease left"), rows, keep=("worker", "running", "lease left"),
        empty="no worker serves this server: start one with headrace worker module:app",
    )  # fmt: skip


@command(app, "startup")
def startup(
    session: Session, name: Annotated[str | None, argument("[NAME]", "The beginning of a worker's name.")] = None
) -> None:
    """Show the set-up that runners repeat after each fork, its cost, and what to preload.

    Workers report it with each renewal of their lease: the last seconds may be missing.
    """
    with session.view() as app:
        workers = app.overview().workers
    output, chosen = session.output, [one for one in workers if name is None or one.owner.startswith(name)]
    if not chosen:
        raise OperationFault(
            "no worker serves this server: start one with headrace worker module:app"
            if name is None
            else f"no worker is called {name}: headrace workers list has the names; the beginning of one is enough"
        )
    profiles = {
        one.owner: _read(one.metadata.get("startup_profile", "")) for one in sorted(chosen, key=lambda one: one.owner)
    }
    if output.documents({"worker": owner, **profile} for owner, profile in profiles.items()):
        return
    _table(output, profiles)
    if wanted := _all(profiles, "preload"):
        output.line(f"preload={to_json(wanted)}")
    if maybe := _all(profiles, "maybe"):
        output.line(f"may be set-up: {', '.join(maybe)}")


@command(app, "show")
def show(session: Session, name: Name) -> None:
    """Show the runners of one worker: their jobs, waiting jobs, memory, last replacement.

    The state is that of the worker's last heartbeat, some seconds ago. It shows at most 64 runners.
    """
    from headrace.admin.documents import runner_document, worker_document

    with session.view() as app:
        worker, now = app.workers.get(name), app.overview().now
    if session.output.json:
        session.output.document(
            worker_document(worker, now) | {"runner_facts": [runner_document(one, now) for one in worker.runners]}
        )
        return
    rows = [
        (
            one.kind, str(one.place) if one.place >= 0 else "leaves", str(one.pid), one.job or "-", one.task or "-",
            span(max(0, now - one.since) / 1e6) if one.since else "-", f"{max(0, one.holds - 1) + one.waiting:,}",
            f"{one.done:,}", size(one.memory) if one.memory else "-",
            f"{one.replaced:,}, last: {one.reason}" if one.replaced else "-",
        )
        for one in worker.runners
    ]  # fmt: skip
    columns = ("kind", "place", "pid", "job", "task", ">for", ">backlog", ">done", ">memory", "replaced")
    session.output.table(columns, rows, keep=("pid", "job", "for", "backlog", "done", "memory"), spare="task")
    if not worker.runners:
        session.output.remark(f"{worker.owner} has not reported its runners yet: its next heartbeat does")


@command(app, "stacks")
def stacks(
    session: Session, name: Name, job: Annotated[str | None, option("--job ID", "Only the runner of this job.")] = None
) -> None:
    """Show the Python stacks of a worker's runners at this moment, innermost call first.

    It interrupts nothing. While C code holds the interpreter's lock, it shows the main thread's stack: that of the job
    in a process or fork runner. Of coroutines only the one that runs has a stack.
    """
    with session.acting("stacks", "workers", name, view=True) as (app, act):
        found = [one for one in app.workers.stacks(name) if job in (None, one.job)]
        act.reply = f"looked at {several(len(found), 'runner')}"
    if session.output.documents(found):
        return
    for one in found:
        place = f"{one.kind} {one.place}" if one.place >= 0 else f"{one.kind}, leaving"
        session.output.line(f"{place}, pid {one.pid}: {f'{one.task} {one.job}' if one.job else 'idle'}")
        session.output.line((one.text or "  (it did not answer)") + "\n")


@command(app, "scale")
def scale(
    session: Session,
    name: Name,
    count: Annotated[int, argument("N", "Processes, forks, threads or coroutines.")],
    kind: Annotated[
        TaskKind | None, option("--kind KIND", f"Kind of runner: {', '.join(KINDS)}.", "the first it has")
    ] = None,
) -> None:
    """Resize a live worker to N jobs at once, until it ends. Runners that it removes finish their jobs.

    The signals TTIN and TTOU, sent to the worker's process, add and remove one.
    """
    with session.acting("scale", "workers", name, view=True) as (app, act):
        worker = app.workers.scale(name, count, kind)
        told = kind or next(kind for kind in KINDS if kind in worker.sizes)
        act.done(f"told {worker.owner}: {count} at once, of kind {told}", worker=worker.owner, kind=told, size=count)


@command(app, "stop")
def stop(session: Session, name: Name) -> None:
    """Have a live worker claim no more and end, as at a first TERM. Its jobs may finish within its shutdown timeout."""
    with session.acting("stop", "workers", name, view=True) as (app, act):
        worker = app.workers.stop(name)
        act.done(f"told {worker.owner} to stop", worker=worker.owner)


@command(app, "quiet")
def quiet(session: Session, name: Name) -> None:
    """Have a live worker claim no more, finish its jobs and stay until it is stopped, so that you can look at it."""
    with session.acting("quiet", "workers", name, view=True) as (app, act):
        worker = app.workers.quiet(name)
        act.done(f"told {worker.owner} to claim no more", worker=worker.owner)


def _running(worker: WorkerFacts) -> str:
    return f"{worker.running:,}" + (", quiet" if worker.quiet else ", draining" if worker.draining else "")


def _left(worker: WorkerFacts, now: int) -> str:
    left = (worker.lease - now) / 1e6
    return span(left) if left > 0 else "over"


def health(
    session: Session,
    worker: Annotated[
        int | None, argument("[PID]", "Process id of one worker. Default: all of this user.", min=1)
    ] = None,
    ready: Annotated[bool, option("--ready", "Also check that it takes jobs.")] = False,
    app: Annotated[str | None, option("--app MODULE:APP", "Only workers that were started with this name.")] = None,
    url: Annotated[str | None, option("--url URL", "Only workers of this server; without user and password.")] = None,
) -> int:
    """Check whether the workers of this user on this machine live; for probes.

    The exit code is 1 if one does not, or if none runs. It imports no application and asks no server. A server that is
    away leaves a worker healthy, but not ready.
    """
    from headrace.cli.probe import probe

    return probe(worker, ready=ready, json=session.output.json, app=app, url=url)


RATE = 100
ANSWER = 5.0  # seconds for a dispatcher to answer
# What py-spy says when it may not look: the last, of a process with children.
_REFUSED = ("permission", "not permitted", "no python processes found")


class Subject(NamedTuple):
    """The process to record, its children included, and what the user is told about it."""

    title: str
    pid: int


def profile(
    session: Session,
    worker: Annotated[
        str | None,
        argument(
            "[WORKER]",
            "The worker's name or its beginning, HOST:PID, or the process id; optional if there is only one.",
        ),
    ] = None,
    runner: Annotated[
        int | None, option("--runner N", "Only this runner: the place or pid in headrace workers show.")
    ] = None,
    dispatcher: Annotated[bool, option("--dispatcher", "Only its dispatcher.")] = False,
    job: Annotated[str | None, option("--job ID", "Only the runner of this job.")] = None,
    seconds: Annotated[float | None, option("--for TIME", "How long to record.", "10s")] = None,
    form: Annotated[
        Literal["svg", "speedscope"], option("--format svg|speedscope", "A flame graph, or a file for speedscope.")
    ] = "svg",
    file: Annotated[
        Path | None, option("--out -o FILE", "The file to write.", "headrace-profile.svg or .speedscope.json")
    ] = None,
    idle: Annotated[bool, option("--idle", "Also count threads that wait.")] = False,
) -> None:
    """Record what a running worker on this machine does, as a flame graph.

    py-spy (pip install 'headrace[profile]') samples the worker from outside, a hundred times a second. The worker keeps
    running and needs no preparation. Run this as the worker's user; a container also needs the capability SYS_PTRACE.
    """
    seconds = 10.0 if seconds is None else seconds
    if not 1 <= seconds <= 3600:
        raise UsageFault("--for takes 1s to 1h")
    if sum((runner is not None, dispatcher, job is not None)) > 1:
        raise UsageFault("--runner, --dispatcher and --job exclude each other: name one of them")
    target = file or Path("headrace-profile.svg" if form == "svg" else "headrace-profile.speedscope.json")
    if not target.parent.is_dir() or target.is_dir():
        raise UsageFault(f"{target} cannot be written: name a file in a directory that exists")
    spy = [_spy(), "record", "--format", "flamegraph" if form == "svg" else form, *(["--idle"] if idle else [])]
    spy += ["--subprocesses", "--rate", str(RATE), "--duration", f"{seconds:.0f}"]
    with session.view() as app, tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        subject = _subject(app, worker, runner, job, dispatcher=dispatcher)
        session.output.remark(f"recording {subject.title} for {span(seconds)}; Ctrl-C ends it sooner")
        recorded = Path(directory, target.name)
        samples = _record([*spy, "--output", str(recorded)], subject)
        if not samples:
            why = "nothing ran" if idle else "no thread computed; --idle counts waiting threads, too"
            raise OperationFault(f"no sample of {subject.title}: {why}")
        try:
            shutil.copyfile(recorded, target)
        except OSError as error:
            raise OperationFault(f"{target} cannot be written: {error.strerror}") from error
    session.output.done(
        f"{samples:,} samples of {subject.title}: {target}",
        {"file": str(target), "format": form, "samples": samples, "processes": [subject.pid], "of": subject.title},
    )


# -- which process --------------------------------------------------------------------------------------------------


def _subject(app: Headrace, worker: str | None, runner: int | None, job: str | None, *, dispatcher: bool) -> Subject:
    if job is not None:
        return _of_job(app, worker, job)
    facts = _worker(app, worker)
    if dispatcher:
        return Subject(f"the dispatcher of {facts.owner}", int(facts.metadata["dispatcher"]))
    if runner is None:
        return Subject(facts.owner, int(facts.metadata["place"].rpartition(":")[2]))
    runners = _told(app, facts, "", lambda now: now.lease > facts.lease).runners
    found = [one for one in runners if one.pid == runner] or [one for one in runners if one.place == runner]
    if len(found) != 1:
        rows = ", ".join(f"{one.kind} {one.place} (pid {one.pid})" for one in found or runners) or "none"
        which = f"several runners {runner}" if found else f"no runner {runner}; there are"
        raise OperationFault(f"{facts.owner} has {which}: {rows}")
    return Subject(f"runner {runner} ({found[0].kind}) of {facts.owner}", _leader(found[0].pid))


def _leader(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        raise OperationFault(f"process {pid} ended before it could be recorded; try again") from None


def _of_job(app: Headrace, worker: str | None, id: str) -> Subject:
    record = app.jobs.get(id).refresh()
    if record.state != "running":
        raise OperationFault(f"the job {id} does not run: it is {record.state}")
    facts = _worker(app, record.owner)
    if worker is not None and _worker(app, worker).owner != facts.owner:
        raise UsageFault(f"the job {id} runs on {facts.owner}: leave the worker's name out")

    def runs() -> bool:
        now = app.jobs.get(id).refresh()
        return now.state == "running" and now.started_us == record.started_us

    def of(seen: WorkerFacts) -> RunnerFacts | None:
        return next((one for one in seen.runners if one.job == id), None)

    found = of(_told(app, facts, id, lambda now: of(now) is not None or not runs()))
    if found is None:
        raise OperationFault(f"the job {id} has just ended: {facts.owner} runs it no more")
    return Subject(f"the job {id} ({record.task})", found.pid)


def _worker(app: Headrace, name: str | None) -> WorkerFacts:
    """The worker of a name, also one whose lease is over, as of one that hangs. Raises NotFound, OperationFault."""
    from headrace.admin.workers import last_known

    found = _only_worker(app) if name is None else last_known(app.overview(), name)
    host = found.metadata.get("place", "").rpartition(":")[0]
    if host != socket.gethostname():
        raise OperationFault(
            f"{found.owner} runs on {host}, and this is {socket.gethostname()}: profile it there, in its container if "
            f"it has one: only its own machine can look into its processes"
        )
    return found


def _only_worker(app: Headrace) -> WorkerFacts:
    seen = app.overview()
    found = seen.live or seen.workers
    if not found:
        raise OperationFault("no worker serves this server: start one with headrace worker module:app")
    if len(found) > 1:
        raise OperationFault(f"which worker? name one of {', '.join(sorted(one.owner for one in found))}")
    return found[0]


def _told(app: Headrace, worker: WorkerFacts, job: str, enough: Callable[[WorkerFacts], bool]) -> WorkerFacts:
    from headrace.protocol import operations

    end = time.monotonic() + ANSWER
    word: str = app.client.run(operations.command(app.client.keys, worker.owner, f"show:{job}"))
    while word == "told" and time.monotonic() < end:
        for one in app.overview().workers:
            if one.owner == worker.owner and enough(one):
                return one
        time.sleep(0.02)
    raise OperationFault(f"{worker.owner} does not answer: headrace workers list shows whether it still lives")


# -- py-spy ---------------------------------------------------------------------------------------------------------


def _spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise OperationFault("py-spy is not installed here: pip install 'headrace[profile]'")
    return found


def _record(spy: list[str], subject: Subject) -> int:
    argv = [*spy, "--pid", str(subject.pid)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        # A Ctrl-C reaches py-spy, too, which then writes what it has.
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
        code, text = process.wait(), os.pread(said.fileno(), 1 << 20, 0).decode("utf-8", "replace")
    counted = re.search(r"Samples: (\d+)", text)
    if counted or "No stack counts found" in text:
        return int(counted[1]) if counted else 0
    raise OperationFault(_why(subject.pid, code, text.strip()))


def _why(pid: int, code: int, said: str) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"process {pid} ended before it could be looked into; try again"
    except PermissionError:
        pass
    if any(words in said.lower() for words in _REFUSED):
        return (
            f"the system does not let this user look into process {pid}: run this as root (sudo), or where the worker "
            f"runs in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
        )
    return f"py-spy could not look into process {pid}: {said.splitlines()[0] if said else f'exit code {code}'}"


def _read(text: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"tasks": [], "preload": [], "maybe": []}
    try:
        return empty | msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return empty


def _table(output: Output, profiles: dict[str, dict[str, Any]]) -> None:
    tasks = [row for profile in profiles.values() for row in profile["tasks"]]
    rows = [
        (
            f"{row['jobs']:,}",
            row["kind"],
            row["task"] or "(each new runner)",
            duration(row["lost_each"] * 1e6),
            duration(row["lost"] * 1e6),
            ", ".join(f"{what} {duration(cost * 1e6)}" for what, cost in list(row["to"].items())[:5]),
        )
        for row in sorted(tasks, key=lambda row: -row["lost"])
    ]
    if rows:
        output.table((">jobs", "kind", "task", ">lost each", ">in all", "to what"), rows)
    else:
        output.remark(f"{several(len(profiles), 'worker')}: no runner repeats set-up that is worth a preload")


def _all(profiles: dict[str, dict[str, Any]], what: str) -> list[str]:
    return list(dict.fromkeys(name for profile in profiles.values() for name in profile[what]))
