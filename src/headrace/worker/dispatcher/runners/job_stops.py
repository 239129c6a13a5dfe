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
        killing: every runner is being killed.
    """

    def __init__(self, assignment: Assignment, commands: RunnerCommands, kill_timeout: float) -> None:
        self.limits = Limits(kill_timeout)
        self.killing = False
        self._assignment = assignment
        self._commands = commands

    def enforce(self, now: float) -> None:
        """Stop what ran past a limit."""
        for deadline in self.limits.due(now):
            for seat in self._assignment.seats.values():
                if (start := seat.starts.get(deadline.token)) is not None:
                    self._stop(seat, start, deadline.stage, now)

    def cancel(self, id: str, now: float) -> None:
        """Stop a job that was cancelled: before it starts if that is possible, else as a soft limit would."""
        for seat in self._assignment.seats.values():
            for start in seat.starts.values():
                if start.claim.id != id or start.doom:
                    continue
                start.doom = "cancel"
                if start.claim.token == seat.current or not self._commands.take_back(seat):
                    self.stop_cancelled(seat, start, now)

    def stop_cancelled(self, seat: RunnerHandle, start: Attempt, now: float) -> None:
        """Stop a start that was cancelled and runs."""
        start.told = True
        self._stop(seat, start, "cancel", now)
        self.limits.cancel(start, now)

    def shut_down(self, now: float) -> None:
        """Notify every job that runs that its worker stops."""
        self._stop_all("shutdown", now)

    def interrupt(self, now: float) -> None:
        """Raise ``JobInterrupted`` in every job that runs; from now on its end by whatever cause is free of charge."""
        self._stop_all("interrupt", now)

    def _stop_all(self, reason: Literal["shutdown", "interrupt"], now: float) -> None:
        for seat in self._assignment.seats.values():
            for start in seat.starts.values():
                self._commands.say(seat, Stop(start.claim.token, reason))
                if reason == "interrupt":
                    start.doom = start.doom or "other"
                if seat.counted:
                    start.reminders = 0
                    self.limits.remind(start, now)
            if seat.starts and seat.kind != "thread":
                self._commands.signal(seat, "stop")

    def _stop(self, seat: RunnerHandle, start: Attempt, stage: Stage | Literal["cancel"], now: float) -> None:
        if stage == "hard":
            start.doom = start.doom or "hard"
            seat.condemned = True
            self._commands.signal(seat, "kill")
            return
        if stage != "again":
            start.reminders = 0
            start.limited = stage == "soft"
            self._commands.say(seat, Stop(start.claim.token, stage))
        elif start.limited and not start.doom:
            # A runner that was slow forgot it, since the code had not begun.
            self._commands.say(seat, Stop(start.claim.token, "soft"))
        if seat.kind != "thread":
            self._commands.signal(seat, "stop")
        if seat.counted or start.limited:
            self.limits.remind(start, now)

    def kill_all(self) -> None:
        """End every runner; what runs is handed back."""
        self.killing = True
        for seat in self._assignment.seats.values():
            self._commands.signal(seat, "kill")

    def kill_busy(self) -> None:
        """End the runners that run something; what runs is handed back."""
        for seat in self._assignment.seats.values():
            if seat.starts:
                seat.condemned = True
                self._commands.signal(seat, "kill")
