"""What awaits the coroutine of one job, step by step, and how a stop gets into it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from headrace.context import CurrentJob, StopReason
from headrace.errors import Interrupt
from headrace.worker.runner import interrupts
from headrace.worker.runner.interrupts import MainGate

# What asyncio and libraries do for a cancelled coroutine (stop the others of a group, give a connection back) must be
# done for a stopped one too, and they know it by its class.
SIGNALS: dict[str, type[Interrupt]] = {
    reason: type(signal.__name__, (signal, asyncio.CancelledError), {"__module__": signal.__module__})
    for reason, signal in interrupts.SIGNALS.items()
}


class Drive(Generator[Any, Any, Any]):
    """Awaits the coroutine of one job, with the gate open for each of its steps.

    It turns the cancellation by which a stop wakes the coroutine into the stop's own signal.

    Attributes:
        task: asyncio's task that awaits this.
    """

    task: asyncio.Task[Any]

    def __init__(self, gate: MainGate) -> None:
        self._gate = gate
        # What is to be raised at the next step; and whether a shutdown began before the job did.
        self._reason: StopReason = ""
        self._warned = False
        self._job: CurrentJob | None = None
        self._asked = False

    def __call__(self, job: CurrentJob, coroutine: Coroutine[Any, Any, Any]) -> Drive:
        self._job = job
        self._coroutine: Any = coroutine
        if self._warned:
            job.begin_stop("shutdown")
        return self

    def __await__(self) -> Drive:
        return self

    def stop(self, reason: StopReason) -> None:
        """Raise in the coroutine at its next step, and see to it that this comes soon; of a shutdown only tell it."""
        if reason == "shutdown":
            self._warned = True
            if self._job is not None:
                self._job.begin_stop(reason)
        elif self._job is None:
            # A limit is meant for code that runs.
            if reason != "soft":
                self._reason = reason
        elif not self._reason and not told(self._job, reason):
            self._reason = reason
            self._asked = self.task.cancel()

    def __next__(self) -> Any:
        # That of the class above would be the first line of each traceback of a job.
        return self.send(None)

    def send(self, value: Any) -> Any:
        if not self._reason:
            return self._step(self._coroutine.send, value)
        # Not begun yet; or what it waited for swallowed the cancellation.
        return self._interrupt()

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:  # noqa: ARG002 - the form of a generator
        error = kind if isinstance(kind, BaseException) else value if value is not None else kind()
        if self._reason and isinstance(error, asyncio.CancelledError):
            return self._interrupt()
        return self._step(self._coroutine.throw, error)

    def close(self) -> None:
        self._coroutine.close()

    def _interrupt(self) -> Any:
        reason, self._reason = self._reason, ""
        assert self._job is not None
        if self._asked:
            # The cancellation ends here: time-outs and groups that the coroutine opens to clean up must not see it.
            self._asked = False
            self.task.uncancel()
        self._job.begin_stop(reason)
        return self._step(self._coroutine.throw, SIGNALS[reason]())

    def _step(self, step: Callable[[Any], Any], value: Any) -> Any:
        assert self._job is not None
        try:
            try:
                self._gate.open(self._job)
                return step(value)
            finally:
                self._gate.close()
        except Interrupt as signal:
            self._gate.close()
            if self._coroutine.cr_frame is None:
                raise
            # It came before or after the coroutine's own code, which waits and must learn of it.
            late = signal
        return self._step(self._coroutine.throw, late)


def told(job: CurrentJob, reason: StopReason) -> bool:
    """Whether this is a limit of which the job heard: the dispatcher repeats it, and the code may be cleaning up."""
    return reason == "soft" and job.stopped_by not in ("", "shutdown")
