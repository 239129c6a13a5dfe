"""The time of workers: ``headrace profile``, a recording by py-spy, and the report of ``headrace workers startup``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from headrace.cli.arguments import argument, option
from headrace.cli.output import late_bar, several, span, to_json
from headrace.cli.session import OperationFault, Session, UsageFault
from headrace.model.notation import duration

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.cli.output import Output
    from headrace.protocol.overviews import RunnerFacts, WorkerFacts

RATE = 100
# Seconds for a dispatcher to answer, and for py-spy to write what it recorded.
ANSWER = 5.0
WRITING = 20.0
LOOK = 0.1
# What py-spy says when it may not look: the last, of a process with children.
_REFUSED = ("permission", "not permitted", "no python processes found")


class Subject(msgspec.Struct, frozen=True):
    """The process to record, its children included.

    Attributes:
        title: what the user is told about it.
        goes_on: whether to record on; None: to the end.
    """

    title: str
    pid: int
    goes_on: Callable[[], bool] | None = None


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
    job: Annotated[str | None, option("--job ID", "Only the runner of this job, until the job ends.")] = None,
    seconds: Annotated[float | None, option("--for TIME", "How long to record.", "10s")] = None,
    form: Annotated[
        Literal["svg", "speedscope"], option("--format svg|speedscope", "A flame graph, or a file for speedscope.")
    ] = "svg",
    file: Annotated[
        Path | None,
        option("--out -o FILE", "The file to write.", "headrace-profile.svg or .speedscope.json"),
    ] = None,
    idle: Annotated[bool, option("--idle", "Also count threads that wait.")] = False,
) -> None:
    """Record what a running worker on this machine does, as a flame graph.

    py-spy (pip install 'headrace[profile]') samples the worker from outside, a hundred times a second. The worker keeps
    running and needs no preparation. Run this as the worker's user; a container also needs the capability SYS_PTRACE.
    """
    seconds = 10.0 if seconds is None else seconds
    if not 0.1 <= seconds <= 3600:
        raise UsageFault("--for takes 0.1s to 1h")
    if sum((runner is not None, dispatcher, job is not None)) > 1:
        raise UsageFault("--runner, --dispatcher and --job exclude each other: name one of them")
    target = file or Path("headrace-profile.svg" if form == "svg" else "headrace-profile.speedscope.json")
    if not target.parent.is_dir() or target.is_dir():
        raise UsageFault(f"{target} cannot be written: name a file in a directory that exists")
    spy = [_spy(), "record", "--format", "flamegraph" if form == "svg" else form, *(["--idle"] if idle else [])]
    with session.view() as app, tempfile.TemporaryDirectory(prefix="headrace-") as directory:
        subject = _subject(app, worker, runner, job, dispatcher=dispatcher)
        session.output.remark(f"recording {subject.title} for {span(seconds)}; Ctrl-C ends it sooner")
        recorded = Path(directory, target.name)
        samples = _record(session, [*spy, "--output", str(recorded)], subject, seconds)
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
    return Subject(f"the job {id} ({record.task})", found.pid, runs)


def _worker(app: Headrace, name: str | None) -> WorkerFacts:
    """The worker of a name; one whose lease is over, too, since one that hangs is what people look into. Raises
    NotFound: there is none of this name, or several. Raises OperationFault: there is none at all, several without
    a name, or it is on another machine.
    """
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


def _record(session: Session, spy: list[str], subject: Subject, seconds: float) -> int:
    # It is told to stop; the duration is for the case that no process is left to tell it.
    argv = [*spy, "--pid", str(subject.pid), "--subprocesses", "--rate", str(RATE), "--duration", f"{seconds + 60:.0f}"]
    with tempfile.TemporaryFile() as said:
        # A group of its own: Ctrl-C is for this command, which then tells py-spy to write what it has.
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)

        def told() -> str:
            return os.pread(said.fileno(), 1 << 20, 0).decode("utf-8", "replace")

        try:
            with contextlib.suppress(KeyboardInterrupt):
                _wait(session, process, lambda: "Sampling process" in told(), seconds, subject.goes_on)
            process.send_signal(signal.SIGINT)
            code = process.wait(WRITING)
        except subprocess.TimeoutExpired:
            raise OperationFault(f"py-spy wrote nothing of process {subject.pid} in {WRITING:g} s") from None
        finally:
            process.kill()
            process.wait()
        counted = re.search(r"Samples: (\d+)", text := told())
        if counted or "No stack counts found" in text:
            return int(counted[1]) if counted else 0
        raise OperationFault(_why(subject.pid, code, text.strip()))


def _wait(
    session: Session,
    process: subprocess.Popen[bytes],
    begun: Callable[[], bool],
    seconds: float,
    goes_on: Callable[[], bool] | None,
) -> None:
    until = time.monotonic() + WRITING
    while process.poll() is None and not begun() and time.monotonic() < until:
        time.sleep(LOOK)
    began, total = time.monotonic(), max(1, round(seconds))
    with late_bar(session.output, total, "seconds") as tell:
        while process.poll() is None:
            passed = time.monotonic() - began
            tell(min(int(passed), total))
            if passed >= seconds or (goes_on is not None and not goes_on()):
                return
            time.sleep(min(LOOK, seconds - passed))


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


def show(output: Output, workers: list[WorkerFacts], name: str | None) -> None:
    """Print the startup profiles of the workers whose name begins with ``name``; OperationFault if there is none."""
    chosen = [one for one in workers if name is None or one.owner.startswith(name)]
    if not chosen:
        raise OperationFault(
            "no worker serves this server: start one with headrace worker module:app"
            if name is None
            else f"no worker is called {name}: headrace workers list has the names; the beginning of one is enough"
        )
    profiles = {
        one.owner: _read(one.metadata.get("startup_profile", "")) for one in sorted(chosen, key=lambda one: one.owner)
    }
    if output.documents({"worker": owner, **_facts(profile)} for owner, profile in profiles.items()):
        return
    _table(output, profiles)
    if wanted := _all(profiles, "preload"):
        output.line(f"preload={to_json(wanted)}")
    if maybe := _all(profiles, "maybe"):
        output.line(f"may be set-up: {', '.join(maybe)}")


def _read(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _table(output: Output, profiles: dict[str, dict[str, Any]]) -> None:
    rows = [
        (
            f"{row['jobs']:,}",
            row["kind"],
            row["task"] or "(each new runner)",
            duration(row["lost"]),
            duration(row["total"]),
            ", ".join(f"{what} {duration(cost)}" for what, cost in row["what"][:5]),
        )
        for row in sorted(
            (row for profile in profiles.values() for row in profile.get("rows", ())), key=lambda r: -r["total"]
        )
    ]
    if rows:
        output.table((">jobs", "kind", "task", ">lost each", ">in all", "to what"), rows)
    else:
        output.remark(f"{several(len(profiles), 'worker')}: no runner repeats set-up that is worth a preload")


def _all(profiles: dict[str, dict[str, Any]], what: str) -> list[str]:
    return list(dict.fromkeys(name for profile in profiles.values() for name in profile.get(what, ())))


def _facts(profile: dict[str, Any]) -> dict[str, Any]:
    def seconds(costs: dict[str, int]) -> dict[str, float]:
        return {what: cost / 1e6 for what, cost in costs.items()}

    return {
        "tasks": [
            {
                "task": row["task"],
                "kind": row["kind"],
                "jobs": row["jobs"],
                "profiled": row["profiled"],
                "lost_each": row["lost"] / 1e6,
                "lost": row["total"] / 1e6,
                "to": seconds(dict(row["what"])),
            }
            for row in profile.get("rows", ())
        ],
        "preload": profile.get("preload", []),
        "maybe": profile.get("maybe", []),
        "fork_to_ready": seconds(profile.get("born", {})),
    }
