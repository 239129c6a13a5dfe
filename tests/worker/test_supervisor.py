"""The supervisor's own work: it hears each signal, and waits for runners without being busy."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import OptionsError
from headrace.worker import child_process
from headrace.worker.child_process import Terminal, in_child
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.runner_processes import Child, DispatcherProcess, RunnerProcesses
from headrace.worker.supervisor import Supervisor
from headrace.worker.worker_options import WorkerOptions


def test_a_stop_behind_a_thousand_other_signals_is_heard() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTTIN, signal.SIGTERM)}
    child_process.listen(before)
    try:
        for _ in range(1000):
            signal.raise_signal(signal.SIGTTIN)
        signal.raise_signal(signal.SIGTERM)
        assert child_process.taken_signals() == {signal.SIGTTIN: 1000, signal.SIGTERM: 1}
        assert not child_process.taken_signals()
    finally:
        child_process.listen_no_more()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_it_waits_for_runners_that_outlast_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, wait = list[int](), os.waitpid

    def waitpid(pid: int, flags: int) -> Any:
        looks.append(pid)
        return wait(pid, flags)

    read, write = os.pipe()
    with selectors.DefaultSelector() as selector, subprocess.Popen(["sleep", "60"], process_group=0) as runner:
        # A signal that nothing reads any more.
        selector.register(read, selectors.EVENT_READ)
        os.write(write, b"!")
        runners = RunnerProcesses(Headrace(), "", selector, DispatcherProcess(selector, print), list)
        runners._children[runner.pid] = Child(1, "thread", runner.pid, False)
        monkeypatch.setattr(os, "waitpid", waitpid)
        runners.stop(0.1)
        monkeypatch.undo()
    # At most each hundredth of a second, and once when it is killed.
    assert len(looks) <= 11
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("phase", ["works", "stops"])
def test_a_dispatcher_that_does_not_move_is_killed_where_its_worker_is_to_end(phase: str) -> None:
    stamps, terminal = HealthStamps(), Terminal(present=False, ignored=False)
    supervisor = Supervisor(Headrace(lease=15), WorkerOptions(), None, None, stamps, terminal)
    with subprocess.Popen(["sleep", "60"]) as dispatcher:
        supervisor._dispatcher.pid = dispatcher.pid
        if phase == "stops":
            supervisor.asked_to_stop()
        supervisor._end_silent(29.0)
        assert dispatcher.poll() is None
        supervisor._end_silent(30.0)
        if phase == "works":
            dispatcher.terminate()
    stamps.end()
    assert dispatcher.returncode == -(signal.SIGTERM if phase == "works" else signal.SIGKILL)


def test_what_a_child_found_or_raised_is_the_parents() -> None:
    def fails() -> None:
        raise OptionsError("no such thing")

    own = os.getpid()
    assert in_child(os.getppid) == own
    with pytest.raises(OptionsError, match="no such thing"):
        in_child(fails)


def test_a_child_that_ends_without_an_answer_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="signal 9"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
