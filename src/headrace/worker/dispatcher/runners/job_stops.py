"""Starts are stopped: for their limits, when they are cancelled, and when the worker stops."""

from __future__ import annotations

from typing import Literal

from headrace.worker.dispatcher.runners.assignment import Assignment
from headrace.worker.dispatcher.runners.runner_commands import RunnerCommands
from headrace.worker.dispatcher.runners.runner_handle import Attempt, RunnerHandle
from headrace.worker.dispatcher.runners.time_limits import Limits, Stage
from headrace.worker.messages import Stop


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
        """Stop what ran past a limit."""
        for deadline in self.limits.due(now):
            for handle in self._assignment.handles.values():
                start = handle.starts.get(deadline.token)
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
                self._commands.say(handle, Stop(start.claim.token, reason))
                if reason == "interrupt":
                    start.stop_reason = start.stop_reason or "other"
                if handle.serial:
                    start.reminders = 0
                    self.limits.remind(start, now)
            if handle.starts and handle.kind != "thread":
                self._commands.signal(handle, "stop")

    def _stop(self, handle: RunnerHandle, start: Attempt, stage: Stage | Literal["cancel"], now: float) -> None:
        if stage == "hard":
            how = "was cancelled and did not end" if start.stop_reason == "cancel" else "ran past its hard time limit"
            start.stop_reason = start.stop_reason or "hard"
            handle.condemned = f"another job of its process {how}"
            self._commands.signal(handle, "kill")
            return
        if stage != "again":
            start.reminders = 0
            start.limited = stage == "soft"
            self._commands.say(handle, Stop(start.claim.token, stage))
        elif start.limited and not start.stop_reason:
            # A runner that was slow forgot it, since the code had not begun.
            self._commands.say(handle, Stop(start.claim.token, "soft"))
        if handle.kind != "thread":
            self._commands.signal(handle, "stop")
        if handle.serial or start.limited:
            self.limits.remind(start, now)

    def kill_all(self, why: str) -> None:
        """End every runner; what runs is handed back."""
        self.killing = why
        for handle in self._assignment.handles.values():
            self._commands.signal(handle, "kill")

    def kill_busy(self) -> None:
        """End the runners that run something; what runs is handed back."""
        for handle in self._assignment.handles.values():
            if handle.starts:
                handle.condemned = "the worker could not keep its lease"
                self._commands.signal(handle, "kill")
