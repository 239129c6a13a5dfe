"""Whether a stop may enter user code now: never while a result is packed or sent, never in the next job.

A gate is open for one start while its code runs and fires at most once per opening: it closes itself before it raises.
So whatever code runs next, a ``finally`` of ours included, runs undisturbed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Protocol

from headrace.context import CurrentJob, StopReason
from headrace.errors import CancelRequested, Interrupt, JobInterrupted, SoftTimeLimit

SIGNALS: dict[str, type[Interrupt]] = {"soft": SoftTimeLimit, "cancel": CancelRequested, "interrupt": JobInterrupted}


def keep_stop(pending: dict[int, StopReason], number: int, reason: StopReason) -> None:
    """Keep a stop for a start that has not begun. A shutdown, which is only told to a job, replaces no other one."""
    if reason != "shutdown" or number not in pending:
        pending[number] = reason


class Gate(Protocol):
    """What the code that runs a job sees of a gate."""

    def open(self, job: CurrentJob) -> None:
        """User code of this start begins; may raise at once."""

    def close(self) -> None:
        """User code ended. A stop that was about to be raised will not be any more, once this has returned."""


class MainGate:
    """The gate of the main thread, where a Unix signal is what interrupts the code.

    The signal says only *look*: which start is meant, and why, stands in the channel, since signals carry no data and
    merge. One that comes while the gate is closed is remembered, since it may be meant for the start about to begin.

    Attributes:
        missed: a signal came while the gate was closed; set by others, it is looked at the next opening without one.
        job: whose code the main thread runs; written by the main thread only.
    """

    def __init__(
        self, look: Callable[[CurrentJob], StopReason], signals: Mapping[str, type[Interrupt]] = SIGNALS
    ) -> None:
        """``look``: reads the channel, and says why to raise in a job; empty: raise nothing."""
        self.job: CurrentJob | None = None
        self._look = look
        self._signals = signals
        self.missed = False
        self._looking = False
        self._thread = threading.main_thread().ident

    def open(self, job: CurrentJob) -> None:
        self.job = job
        if self.missed:
            self._check(job)

    def close(self) -> None:
        self.job = None

    def hold(self) -> CurrentJob | None:
        """Keep stops out while the job speaks, since half a frame would ruin the channel; :meth:`resume` ends it."""
        if threading.get_ident() != self._thread:
            return None
        job = self.job
        self.job = None
        return job

    def resume(self, held: CurrentJob | None) -> None:
        if held is not None:
            self.open(held)

    def on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the form of a handler
        job = self.job
        if job is None or self._looking:
            self.missed = True
        else:
            self._check(job)

    def _check(self, job: CurrentJob) -> None:
        # A signal may interrupt this very look: reading a channel twice at once would tear its frames.
        reason: StopReason = ""
        self._looking = self.missed = True
        while self.missed and not reason:
            self.missed = False
            reason = self._look(job)
        self._looking = False
        if reason:
            self.job = None
            job.begin_stop(reason)
            raise self._signals[reason]
