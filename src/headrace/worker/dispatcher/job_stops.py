"""Starts are stopped: for their limits, when they are cancelled, and when the worker stops. Decides; stops nothing."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from headrace.model.job import Claim
from headrace.worker.dispatcher.assignment import Assignment, Attempt, RunnerCommands, RunnerHandle
from headrace.worker.messages import Stop

Stage = Literal["soft", "again", "hard"]

# Seconds until a start that was interrupted is interrupted again.
AGAIN = 0.1
# Seconds that a runner has to write its stacks before it is killed.
SHOW = 0.1
# Why what runs is handed back when the lease ends.
FENCED = "the worker could not keep its lease"


class Deadline(msgspec.Struct, frozen=True, order=True):
    """A limit of a start: ``soft`` (interrupt the code), ``again`` (it goes on), or ``hard`` (kill the runner)."""

    when: float
    number: int
    stage: Stage


class Limits:
    """Deadlines of the starts that run. A deadline whose start has ended is forgotten when it comes."""

    def __init__(self, kill_timeout: float) -> None:
        self._heap: list[Deadline] = []
        self._kill_timeout = kill_timeout

    def begin(self, start: Attempt, now: float) -> None:
        plan, number = start.plan, start.claim.number
        if plan.timeout is not None:
            start.limited_at = now + plan.timeout
            heapq.heappush(self._heap, Deadline(start.limited_at, number, "soft"))
        hard = plan.hard_timeout
        if hard is None and plan.timeout is not None:
            hard = plan.timeout + self._kill_timeout
        if hard is not None:
            start.kill_at = now + hard
            heapq.heappush(self._heap, Deadline(start.kill_at, number, "hard"))

    def cancel(self, start: Attempt, now: float) -> None:
        kill_at = now + self._kill_timeout
        start.kill_at = min(start.kill_at or kill_at, kill_at)
        heapq.heappush(self._heap, Deadline(kill_at, start.claim.number, "hard"))

    def kill_soon(self, start: Attempt, now: float) -> None:
        heapq.heappush(self._heap, Deadline(now + SHOW, start.claim.number, "hard"))

    def remind(self, start: Attempt, now: float) -> None:
        """Interrupt the start again later: a signal just before a system call that waits does not end that call."""
        heapq.heappush(self._heap, Deadline(now + AGAIN * 2**start.reminders, start.claim.number, "again"))
        start.reminders += 1

    @property
    def next(self) -> float:
        return self._heap[0].when if self._heap else float("inf")

    @staticmethod
    def concerns(deadline: Deadline, start: Attempt) -> bool:
        """Whether a deadline is one of this start, not of one that was taken back: the job has its number again."""
        if deadline.stage == "soft":
            return start.limited_at == deadline.when
        if deadline.stage == "hard":
            return 0 < start.kill_at <= deadline.when
        return start.reminders > 0

    def due(self, now: float) -> Iterator[Deadline]:
        while self._heap and self._heap[0].when <= now:
            yield heapq.heappop(self._heap)


class JobStops:
    """Who is told to stop, and who is killed.

    Attributes:
        limits: deadlines of what runs.
        killing: why every runner is being killed; empty: it is not.
        orphaned: the supervisor died, and the runners with it.
    """

    def __init__(self, assignment: Assignment, commands: RunnerCommands, kill_timeout: float) -> None:
        self.limits = Limits(kill_timeout)
        self.killing = ""
        self.orphaned = False
        self._assignment = assignment
        self._commands = commands

    def enforce(self, now: float) -> None:
        for deadline in self.limits.due(now):
            for handle in self._assignment.handles.values():
                start = handle.starts.get(deadline.number)
                if start is not None and self.limits.concerns(deadline, start):
                    self._stop(handle, start, deadline.stage, now)

    def cancel(self, id: str, now: float) -> None:
        """Stop a job that was cancelled: before it starts if that is possible, else as a soft limit would."""
        for handle in self._assignment.handles.values():
            for start in handle.starts.values():
                if start.claim.id != id or start.stop_reason:
                    continue
                start.stop_reason = "cancel"
                if start.clocked or not self._commands.take_back(handle):
                    self.stop_cancelled(handle, start, now)

    def stop_cancelled(self, handle: RunnerHandle, start: Attempt, now: float) -> None:
        start.told = True
        self._stop(handle, start, "cancel", now)
        self.limits.cancel(start, now)

    def stop_all(self, reason: Literal["shutdown", "interrupt"], now: float) -> None:
        """Tell every job that runs that its worker stops; or raise in it: from now on its end is free of charge."""
        for handle in self._assignment.handles.values():
            for start in handle.starts.values():
                self._commands.send(handle, Stop(start.claim.number, reason))
                if reason == "interrupt":
                    start.stop_reason = start.stop_reason or "other"
                if handle.serial:
                    start.reminders = 0
                    self.limits.remind(start, now)
            if handle.starts and handle.kind != "thread":
                self._commands.signal(handle, "stop")

    def _stop(self, handle: RunnerHandle, start: Attempt, stage: Stage | Literal["cancel"], now: float) -> None:
        if stage == "hard" and not start.shown and start.stop_reason != "cancel":
            # What it writes is in the job's error.
            start.shown = True
            self._commands.signal(handle, "stacks")
            self.limits.kill_soon(start, now)
            return
        if stage == "hard":
            how = "was cancelled and did not end" if start.stop_reason == "cancel" else "ran past its hard time limit"
            start.stop_reason = start.stop_reason or "hard"
            handle.condemned = f"another job of its process {how}"
            self._commands.signal(handle, "kill")
            return
        if stage != "again":
            start.reminders = 0
            start.limited = stage == "soft"
            self._commands.send(handle, Stop(start.claim.number, stage))
        elif start.limited and not start.stop_reason:
            # A runner that was slow forgot it, since the code had not begun.
            self._commands.send(handle, Stop(start.claim.number, "soft"))
        if handle.kind != "thread":
            self._commands.signal(handle, "stop")
        if handle.serial or start.limited:
            self.limits.remind(start, now)

    def kill_all(self, why: str) -> None:
        self.killing = why
        for handle in self._assignment.handles.values():
            self._commands.signal(handle, "kill")

    def fence(self, concerns: Callable[[Claim], bool]) -> None:
        """End the runners that run a job which this concerns; what runs is handed back, and what has not begun."""
        for handle in self._assignment.handles.values():
            mine = [start for start in handle.starts.values() if concerns(start.claim)]
            if not mine or handle.condemned:
                continue
            if any(start.clocked for start in mine):
                handle.condemned = FENCED
                self._commands.signal(handle, "kill")
            elif not handle.recalling:
                self._commands.take_back(handle)
