"""Signals to a worker at every moment of its life: what ends it ends it quietly, and nothing else ends it."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.model.job import State
from headrace.worker.child_process import HEARD, UNHEARD
from tests.deadline import eventually
from tests.system.fleet import Fleet
from tests.system.rolled import Rolled, result

pytestmark = pytest.mark.system

# The application, which says that it is being imported and goes on when it is let.
HELD = """
import pathlib, time
pathlib.Path("began").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


def _blocks(pid: int, number: int) -> bool:
    """Whether a process holds a signal back."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        mask = next(line for line in status.splitlines() if line.startswith("SigBlk"))
        return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
    return False


def _has_heard(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return all(int(line.split()[1], 16) == 0 for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))


def _has_become_the_worker(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return "headrace.cli.worker_process" in psutil.Process(pid).cmdline()
    return False


MOMENTS: dict[str, Callable[[int, Path], bool]] = {
    # Until its new interpreter lets signals in, so that a late look finds that one.
    "its options are read": lambda pid, _: _blocks(pid, signal.SIGINT) or _has_become_the_worker(pid),
    "its interpreter starts again": lambda pid, _: _has_become_the_worker(pid),
    "the application is imported": lambda _, directory: (directory / "began").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_before_it_works_ends_it_without_a_traceback(rolled: Rolled, tmp_path: Path, moment: str) -> None:
    rolled.program.own = True
    rolled.program.write("tasks", HELD + (tmp_path / "tasks.py").read_text())
    worker = rolled.start(ready=False, reload="")
    eventually(lambda: MOMENTS[moment](worker.process.pid, tmp_path), 60, every=0.0005)
    worker.process.send_signal(signal.SIGINT)
    assert (worker.ended(), worker.lines) == (130, [])


def test_an_interrupt_while_it_waits_for_its_server_ends_it_without_a_traceback(rolled: Rolled) -> None:
    rolled.program.environment["HEADRACE_URL"] = "redis://not-yet.invalid"
    worker = rolled.start(ready=False, reload="")
    worker.says("no such host")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ended() == 130
    assert len(worker.lines) == 1, worker.lines


def test_what_means_nothing_to_it_ends_no_worker_that_starts(rolled: Rolled, tmp_path: Path) -> None:
    rolled.program.own = True
    rolled.program.write("tasks", HELD + (tmp_path / "tasks.py").read_text())
    worker = rolled.start(ready=False, reload="")
    for moment in MOMENTS.values():
        eventually(lambda moment=moment: moment(worker.process.pid, tmp_path), 60, every=0.0005)
        for number in (signal.SIGHUP, *UNHEARD):
            worker.process.send_signal(number)
    (tmp_path / "go").touch()
    worker.says("serves default")
    assert result(rolled.enqueue("nap", 0)) == 1
    assert worker.stop() == 0


def test_what_means_nothing_to_it_ends_no_process_of_a_worker(fleet: Fleet, tmp_path: Path) -> None:
    """The job that ran counted a crash."""
    kinds = ("process", "thread", "async", "fork")
    worker = fleet.worker(kinds=",".join(kinds))
    jobs = [fleet.enqueue(f"{kind}.gate", str(tmp_path / "go")) for kind in kinds]
    for job in jobs:
        fleet.started(job)
    dispatcher = worker.dispatcher()
    for number in (*UNHEARD, signal.SIGPIPE):
        for pid in (worker.pid, dispatcher):
            os.kill(pid, number)
    # They reach the group of a terminal, too, as Ctrl-\\ does; the dispatcher leaves that to its supervisor.
    os.kill(dispatcher, signal.SIGQUIT)
    for pid in (fleet.ledger.starts(job.id)[0].pid for job in jobs):
        for number in set(UNHEARD) - {signal.SIGUSR1, signal.SIGUSR2}:
            os.kill(pid, number)
            # One after the other: forty at once overflow the stack that faulthandler has for them.
            eventually(functools.partial(_has_heard, pid))
    (tmp_path / "go").touch()
    assert [job.result(timeout=60) for job in jobs] == [1] * 4
    assert [job.refresh().crashes for job in jobs] == [0] * 4
    assert worker.dispatcher() == dispatcher
    worker.terminate()
    assert worker.wait() == 0


def test_what_a_job_forks_finds_the_signals_of_any_program(rolled: Rolled, tmp_path: Path) -> None:
    text = (
        "\n@app.task\ndef odd() -> str:\n    import os, signal\n    mine, theirs = os.pipe()\n"
        f"    known = {sorted(map(int, (*UNHEARD, signal.SIGQUIT)))}\n"
        "    if os.fork() == 0:\n"
        "        found = [n for n in known if signal.getsignal(n) != signal.SIG_DFL]\n"
        "        os.write(theirs, repr(found).encode())\n        os._exit(0)\n"
        "    os.wait()\n    return os.read(mine, 1000).decode()\n"
    )
    rolled.program.write("tasks", (tmp_path / "tasks.py").read_text() + text)
    # The startup profiler has a timer of its own while it watches a task's first starts.
    rolled.program.environment["HEADRACE_STARTUP_PROFILING"] = "0"
    rolled.program.own = True
    rolled.start(reload="")
    assert result(rolled.enqueue("odd")) == "[]"


def test_quit_stops_a_worker_at_once_and_charges_nothing(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker()
    job = fleet.enqueue("process.gate", str(tmp_path / "never"))
    fleet.started(job)
    os.kill(worker.pid, signal.SIGQUIT)
    assert worker.wait() == 0
    record = job.refresh()
    assert (record.state, record.interruptions, record.crashes, record.failures) == (State.READY, 1, 0, 0)


def test_quit_stops_every_worker_at_once(rolled: Rolled) -> None:
    worker = rolled.start("--shutdown-timeout", "60")
    old = rolled.enqueue("nap", 60)
    eventually(lambda: old.state is State.RUNNING, 60)
    rolled.roll(worker, 2)
    new = rolled.enqueue("nap", 60)
    eventually(lambda: new.state is State.RUNNING, 60)
    assert worker.stop(signal.SIGQUIT) == 0
    assert {job.refresh().crashes for job in (old, new)} == {0}
    assert {job.state for job in (old, new)} == {State.READY}


def test_all_signals_of_other_programs_are_known() -> None:
    """Whatever would end a process by default is heard, disregarded, or tells of a fault of the process itself."""
    faults = {"SIGKILL", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS", "SIGXCPU"}
    by_python = {"SIGPIPE", "SIGXFSZ"}
    harmless = {"SIGCONT", "SIGSTOP", "SIGTSTP", "SIGURG", "SIGWINCH"}
    named = {number for number in signal.valid_signals() if isinstance(number, signal.Signals)}
    left = {number.name for number in named} - {signal.Signals(n).name for n in (*HEARD, *UNHEARD) if n in named}
    assert left <= faults | by_python | harmless
