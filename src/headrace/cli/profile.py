"""``headrace profile``: what a running worker's processes do, as a flame graph. py-spy does the looking.

Owns the way from a worker's name to its processes, and the programs that look into them: they are ended, and their
files removed, however the command ends.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.bar import Bar
from headrace.cli.exits import OperationFault, UsageFault
from headrace.cli.measures import parse_duration, several, span
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.cli.flame import Stack
    from headrace.protocol.admin import WorkerFacts
    from headrace.worker.roster import Roster

RATE = 100
# Seconds for a dispatcher to answer, and for py-spy to write what it saw.
ANSWER, WRITING = 5.0, 20.0
LOOK = 0.1
# Where code waits although py-spy may take it for busy, since it waits for the interpreter's lock on its way there.
_WAITS = (
    "Threads._work (headrace/worker/threads.py:", "Channel.receive (headrace/worker/wire.py:", "(selectors.py:",
    "Condition.wait (threading.py:", "(headrace/cache/listener.py:",
)  # fmt: skip
# Frames that lead to every other: how the worker was started, and how a runner runs a job, which kinds do differently.
_BEFORE = (
    "(headrace/cli/", "(headrace/worker/supervisor.py:", "(headrace/worker/perform.py:", "(headrace/worker/loops.py:",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at.

    Attributes:
        title: as it is named in the picture.
        pids: its processes.
        goes_on: whether to look on; None: to the end.
    """

    title: str
    pids: list[int]
    goes_on: Callable[[], bool] | None = None


def profile(
    session: Session,
    worker: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKER]",
            help="A worker's name as headrace workers list shows it, or a part; optional if there is only one.",
        ),
    ] = None,
    runner: Annotated[int | None, typer.Option("--runner", metavar="N", help="Only this runner.")] = None,
    dispatcher: Annotated[bool, typer.Option("--dispatcher", help="Its dispatcher instead of its runners.")] = False,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only the runner of this job, until the job ends.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", parser=parse_duration, metavar="TIME", help="How long to record.", show_default="10s"),
    ] = None,
    form: Annotated[
        Literal["svg", "speedscope"],
        typer.Option("--format", metavar="svg|speedscope", help="A flame graph, or a file for speedscope."),
    ] = "svg",
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write.",
            show_default="headrace-profile.svg or .speedscope.json",
        ),
    ] = None,
    idle: Annotated[bool, typer.Option("--idle", help="Also count threads that wait.")] = False,
) -> None:
    """Record what a running worker on this machine does, as a flame graph.

    py-spy (pip install 'headrace[profile]') samples the worker from outside, a hundred times a second. The worker keeps
    running and needs no preparation. Run this as the worker's user; a container also needs the capability SYS_PTRACE.
    """
    from headrace.cli import flame

    seconds = 10.0 if seconds is None else seconds
    if not 0.1 <= seconds <= 3600:
        raise UsageFault("--for takes 0.1s to 1h")
    if sum((runner is not None, dispatcher, job is not None)) > 1:
        raise UsageFault("--runner, --dispatcher and --job exclude each other: name one of them")
    target = file or Path("headrace-profile.svg" if form == "svg" else "headrace-profile.speedscope.json")
    if not target.parent.is_dir() or target.is_dir():
        raise UsageFault(f"{target} cannot be written: name a file in a directory that exists")
    spy = _spy()
    with session.view() as app:
        subject = _subject(app, worker, runner, job, dispatcher=dispatcher)
        session.output.remark(f"recording {subject.title} for {span(seconds)}; Ctrl-C ends it sooner")
        samples = _record(session, spy, subject, seconds, idle=idle)
    count = sum(samples.values())
    if not count:
        why = "nothing ran" if idle else "nothing computed; --idle counts what waits, too"
        raise OperationFault(f"no sample of {subject.title}: {why}")
    title = f"{subject.title}, {several(count, 'sample')} at {RATE} a second"
    text = flame.svg(samples, title) if form == "svg" else flame.speedscope(samples, title, RATE)
    try:
        target.write_text(text)
    except OSError as error:
        raise OperationFault(f"{target} cannot be written: {error.strerror}") from error
    session.output.done(
        f"{several(count, 'sample')} of {subject.title}: {target}",
        {"file": str(target), "format": form, "samples": count, "processes": subject.pids, "of": subject.title},
    )


# -- whom to look at ------------------------------------------------------------------------------------------------


def _subject(app: Headrace, worker: str | None, runner: int | None, job: str | None, *, dispatcher: bool) -> Subject:
    if job is not None:
        return _of_job(app, worker, job)
    facts = _worker(app, worker)
    roster = _roster(app, facts)
    if dispatcher:
        return Subject(f"the dispatcher of {facts.owner}", [roster.dispatcher])
    if runner is None:
        pids = [one.pid for one in roster.runners]
        if not pids:
            raise OperationFault(f"{facts.owner} has no runner now")
        return Subject(f"{several(len(pids), 'runner')} of {facts.owner}", pids)
    found = next((one for one in roster.runners if one.number == runner), None)
    if found is None:
        rows = ", ".join(f"{one.number} ({one.kind})" for one in roster.runners) or "none"
        raise OperationFault(f"{facts.owner} has no runner {runner}; there are: {rows}")
    return Subject(f"runner {runner} ({found.kind}) of {facts.owner}", [found.pid])


def _of_job(app: Headrace, worker: str | None, id: str) -> Subject:
    record = app.jobs.get(id).refresh()
    if record.state != "running":
        raise OperationFault(f"the job {id} does not run: it is {record.state}")
    facts = _worker(app, record.owner)
    if worker is not None and _worker(app, worker).owner != facts.owner:
        raise UsageFault(f"the job {id} runs on {facts.owner}: leave the worker's name out")
    roster = _roster(app, facts)
    found = next((one for one in roster.runners if id in one.jobs), None)
    if found is None:
        raise OperationFault(f"the job {id} has just ended, or has not begun yet: {facts.owner} runs it no more")

    def runs() -> bool:
        now = app.jobs.get(id).refresh()
        return now.state == "running" and now.started_us == record.started_us

    return Subject(f"the job {id} ({record.task})", [found.pid], runs)


def _worker(app: Headrace, name: str | None) -> WorkerFacts:
    """The living worker of a name.

    Raises:
        OperationFault: there is none, several, or it is on another machine.
    """
    seen = app.overview()
    living = sorted((w for w in seen.workers if w.lease > seen.now), key=lambda one: one.owner)
    names = [one.owner for one in living]
    if not living:
        raise OperationFault("no worker serves this server: start one with headrace worker module:app")
    found = [one for one in living if name is None or name == one.owner]
    found = found or [one for one in living if name is not None and name in one.owner]
    if not found:
        close = difflib.get_close_matches(str(name), names, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
        raise OperationFault(f"there is no worker {name!r}; {hint}")
    if len(found) > 1:
        which = "which worker" if name is None else f"{name!r} may be several"
        raise OperationFault(f"{which}? name one of {', '.join(one.owner for one in found)}")
    host = found[0].facts.get("place", "").rpartition(":")[0]
    if host != socket.gethostname():
        raise OperationFault(
            f"{found[0].owner} runs on {host}, and this is {socket.gethostname()}: profile it there, for its processes "
            f"can only be looked into on their own machine (in a container: in that container)"
        )
    return found[0]


def _roster(app: Headrace, worker: WorkerFacts) -> Roster:
    """Ask a worker who its processes are.

    Raises:
        OperationFault: it is gone, or does not answer.
    """
    from headrace.protocol import admin
    from headrace.worker import roster

    word = secrets.token_hex(4)
    end = time.monotonic() + ANSWER
    app.client.run(admin.ask(app.client.keys, worker.owner, word))
    while time.monotonic() < end:
        for one in app.overview().workers:
            if one.owner == worker.owner and (told := roster.read(one.facts.get("roster", ""))) and told.word == word:
                return told
        time.sleep(0.02)
    raise OperationFault(f"{worker.owner} does not answer: headrace workers list shows whether it still lives")


# -- looking --------------------------------------------------------------------------------------------------------


def _spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise OperationFault("py-spy is not installed here, which does the looking: pip install 'headrace[profile]'")
    return found


def _record(session: Session, spy: str, subject: Subject, seconds: float, *, idle: bool) -> dict[Stack, int]:
    from headrace.cli import flame

    with tempfile.TemporaryDirectory(prefix="headrace-") as directory, contextlib.ExitStack() as stack:
        looks = [_Look(spy, pid, seconds, Path(directory), idle=idle) for pid in subject.pids]
        for look in looks:
            stack.callback(look.kill)
        with contextlib.suppress(KeyboardInterrupt):
            _wait(session, looks, seconds, subject.goes_on)
        for look in looks:
            look.stop()
        samples = flame.merge(flame.parse(look.read()) for look in looks)
    return flame.trim(samples if idle else flame.without(samples, _WAITS), _BEFORE)


def _wait(session: Session, looks: list[_Look], seconds: float, goes_on: Callable[[], bool] | None) -> None:
    until = time.monotonic() + WRITING
    while any(look.running and not look.begun for look in looks) and time.monotonic() < until:
        time.sleep(LOOK)
    began, shown, total = time.monotonic(), 0, max(1, round(seconds))
    with Bar(session.output, total, "seconds") as bar:
        while any(look.running for look in looks):
            passed = time.monotonic() - began
            bar.add(min(int(passed), total) - shown)
            shown = min(int(passed), total)
            if passed >= seconds or (goes_on is not None and not goes_on()):
                return
            time.sleep(min(LOOK, seconds - passed))


class _Look:
    """One py-spy, which looks into one process."""

    def __init__(self, spy: str, pid: int, seconds: float, directory: Path, *, idle: bool) -> None:
        self.pid = pid
        self._file, self._errors = directory / f"{pid}.txt", directory / f"{pid}.err"
        # It is told to stop; the duration is for the case that nobody is left to tell it.
        argv = [spy, "record", "--pid", str(pid), "--format", "raw", "--rate", str(RATE), "--duration"]
        argv += [str(int(seconds) + 60), "--output", str(self._file), *(["--idle"] if idle else [])]
        # A group of its own: Ctrl-C is for this command, which then tells it to write what it has.
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def begun(self) -> bool:
        """Whether it looks already: finding its way in the process took some time."""
        return b"Sampling process" in self._errors.read_bytes()

    def stop(self) -> None:
        if self.running:
            self._process.send_signal(signal.SIGINT)

    def read(self) -> str:
        """What was seen, as folded stacks.

        Raises:
            OperationFault: it could not look.
        """
        try:
            code = self._process.wait(WRITING)
        except subprocess.TimeoutExpired:
            raise OperationFault(f"py-spy wrote nothing of process {self.pid} in {WRITING:g} s") from None
        if self._file.is_file():
            return self._file.read_text(errors="replace")
        said = self._errors.read_text(errors="replace").strip()
        raise OperationFault(_why(self.pid, code, said))

    def kill(self) -> None:
        if self.running:
            self._process.kill()
        self._process.wait()


def _why(pid: int, code: int, said: str) -> str:
    if "permission" in said.lower() or "not permitted" in said.lower():
        return (
            f"the system does not let this user look into process {pid}: run this as root (sudo), or where the worker "
            f"runs in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
        )
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        last = said.splitlines()[-1] if said else f"exit code {code}"
        return f"py-spy could not look into process {pid}: {last}"
    return f"process {pid} ended before it could be looked into; try again"
