"""Time limits of code that runs in the test's own thread, where no process can be killed.

Owns a thread for the length of a start that has limits, and in the main thread the handler of SIGUSR1.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from headrace.context import CurrentJob
from headrace.errors import SoftTimeLimit
from headrace.tasks.task import RunPlan
from headrace.testing.faults import RunnerKilled
from headrace.worker.runner.thread_kind import ThreadGate

# Seconds between two tries to end code that goes on after its hard limit.
AGAIN = 0.1


class LimitGate:
    """The gate of one start (see :class:`headrace.worker.runner.interrupts.Gate`) that also keeps its limits.

    In the main thread a signal interrupts the code wherever it is, calls that wait included. In any other thread the
    soft limit is raised at the next step of Python code, and the hard one only counts.

    Attributes:
        late: the start has run past its hard limit.
    """

    def __init__(self, plan: RunPlan | None) -> None:
        self.late = False
        self._plan = plan
        self._job: CurrentJob | None = None
        self._main = threading.current_thread() is threading.main_thread()
        self._thread_gate = ThreadGate({})
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._before: Any = None
        self._soft = False

    def open(self, job: CurrentJob) -> None:
        """User code begins, and its time."""
        self._job = job
        if self._plan is None or not (self._plan.timeout or self._plan.hard_timeout):
            return
        if self._main:
            self._before = signal.signal(signal.SIGUSR1, self._interrupt)
        else:
            self._thread_gate.attach()
            self._thread_gate.open(job)
        args = (self._plan.timeout, self._plan.hard_timeout, job.token)
        self._watcher = threading.Thread(target=self._watch, args=args, name="limits of a drained job", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """User code ended: nothing is raised any more when this has returned."""
        self._job = None
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._over.set()
        # No signal is on its way after this, so that the handler before ours may come back.
        watcher.join()
        if self._main:
            signal.signal(signal.SIGUSR1, self._before)
        else:
            self._thread_gate.close()

    def _watch(self, soft: float | None, hard: float | None, token: int) -> None:
        if soft:
            if self._over.wait(soft):
                return
            self._soft = True
            self._strike(token)
        if hard:
            if self._over.wait(max(0.0, hard - (soft or 0.0))):
                return
            self.late = True
            self._strike(token)
            while not self._over.wait(AGAIN):
                self._strike(token)

    def _strike(self, token: int) -> None:
        if not self._main:
            self._thread_gate.stop(token, "soft")
        elif (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, signal.SIGUSR1)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        job = self._job
        if job is None:
            return
        if self.late:
            raise RunnerKilled
        if self._soft:
            self._soft = False
            job.begin_stop("soft")
            raise SoftTimeLimit
