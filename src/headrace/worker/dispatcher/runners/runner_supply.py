"""Runners come and go: how many there are, who is replaced, and when another one is asked for."""

from __future__ import annotations

import heapq

from headrace.model.options import Kind
from headrace.worker.dispatcher.dispatcher_events import Actions, Ask, RunnerUp
from headrace.worker.dispatcher.runners.assignment import Assignment
from headrace.worker.dispatcher.runners.runner_commands import RunnerCommands
from headrace.worker.dispatcher.runners.runner_handle import RunnerHandle
from headrace.worker.dispatcher.runners.runner_places import Place
from headrace.worker.dispatcher.timers import NEVER, Timers
from headrace.worker.messages import Exit, Spawn
from headrace.worker.preload.advice import Advice
from headrace.worker.worker_options import WorkerOptions

# A runner that dies younger than this (seconds) without work is replaced only after as long again. One whose start
# fails, after twice as long each time, at most so long.
INFANT, LONGEST_PAUSE = 1.0, 30.0


class RunnerSupply:
    """The runners that are there, and those that are to come.

    Attributes:
        options: how many, and when they are worn; replaced when the worker is resized.
        working: whether dead and worn runners are replaced.
        freed: kinds of runners that got room since it was last cleared.
    """

    def __init__(
        self,
        options: WorkerOptions,
        assignment: Assignment,
        commands: RunnerCommands,
        actions: Actions,
        timers: Timers,
        advice: Advice,
    ) -> None:
        self.options = options
        self.working = True
        self.freed: set[Kind] = set()
        self._assignment = assignment
        self._commands = commands
        self._actions = actions
        self._timers = timers
        self._advice = advice
        # When a runner of a kind is to be spawned; or, for a single, wanted again by the suspect that needs it.
        self._spawn_at: list[tuple[float, Kind, bool]] = []

    # -- how many ---------------------------------------------------------------------------------------------------

    def resize(self, kind: Kind, size: int) -> list[Place]:
        """Have so many places for runners of a kind, and a runner in each.

        Returns:
            those that were removed; a runner in one finishes what it runs, and what it had not begun is taken back.
        """
        places = self._assignment.places(kind)
        before = places.snapshot.size
        removed = places.resize(size)
        for _ in range(before, size):
            self.spawn(kind)
        for seat in [place.seat for place in removed if place.seat is not None]:
            self.dismiss(seat)
            self._commands.take_back(seat)
        return removed

    def renew(self, kind: Kind) -> None:
        """Replace the runner of a shared kind, whose size is given to it at its birth; it finishes what it runs."""
        for place in self._assignment.places(kind).snapshot.members:
            if (seat := place.seat) is not None and seat.open:
                self.dismiss(seat)
                self.replace(seat, 0.0, "resized")

    def spawn(self, kind: Kind) -> None:
        """Ask the supervisor for a runner."""
        self._actions.add(Ask(Spawn(kind, self._advice.profiles(kind))))

    def isolated(self, kind: Kind) -> RunnerHandle | None:
        """A runner for one suspect alone; None while it is being forked, or while there are enough of them."""
        if not self.working:
            return None
        seat = self._assignment.single(kind)
        if seat is None and self._assignment.wants_single(kind):
            self._assignment.coming[kind] += 1
            self.spawn(kind)
        return seat

    def respawn(self, now: float) -> None:
        """Ask for the runners that were to be replaced later."""
        if self._timers.due("tidy", now):
            self._tidy(now)
        while self._spawn_at and self._spawn_at[0][0] <= now:
            _, kind, single = heapq.heappop(self._spawn_at)
            if single:
                self.freed.add(kind)
            elif self.working:
                self.spawn(kind)
        self._timers.set("spawn", self._spawn_at[0][0] if self._spawn_at else NEVER)

    def _tidy(self, now: float) -> None:
        """Dismiss runners whose suspect another worker took."""
        waiting = [seat for seat in self._assignment.seats.values() if seat.single and seat.ready and not seat.starts]
        for seat in waiting:
            if now - seat.born >= INFANT:
                self.dismiss(seat)
        self._timers.set("tidy", min((seat.born + INFANT for seat in waiting if seat.ready), default=NEVER))

    # -- one runner -------------------------------------------------------------------------------------------------

    def up(self, event: RunnerUp, now: float) -> None:
        """A runner is there."""
        seat = RunnerHandle(event.runner, event.kind, event.pid, self.options.slots(event.kind))
        seat.born, seat.forker, seat.starting = now, event.forker, event.starting
        seat.quota = 0 if seat.forker else self.options.recycle_jobs
        if self._assignment.coming[seat.kind]:
            self._assignment.coming[seat.kind] -= 1
            seat.single, seat.slots = True, 1
            if not seat.starting:
                self._timers.set("tidy", min(self._timers.at("tidy"), seat.born + INFANT))
        worn = bool(self.options.recycle_jobs or self.options.recycle_memory)
        seat.wears = not seat.forker and (worn or seat.kind == "fork" or seat.single)
        self._assignment.sit(seat)
        self.freed.add(seat.kind)
        # Asked for when there were more places than there are now.
        surplus = seat.place is None and not seat.single
        if surplus or not self.working:
            self.dismiss(seat)

    def started(self, seat: RunnerHandle, now: float) -> None:
        """A runner has started, and takes jobs from now on."""
        seat.starting, seat.born = False, now
        if seat.place is not None:
            seat.place.failures = 0
        if seat.single:
            self._timers.set("tidy", min(self._timers.at("tidy"), now + INFANT))
        self.freed.add(seat.kind)

    def dismiss(self, seat: RunnerHandle) -> None:
        """Let a runner leave when what it holds is done."""
        seat.leaving = True
        self._assignment.weigh(seat)
        self._commands.say(seat, Exit())

    def dismiss_idle(self) -> None:
        for seat in self._assignment.seats.values():
            if not seat.starts and not seat.leaving:
                self.dismiss(seat)

    def recycle(self, seat: RunnerHandle, memory: int) -> None:
        """Replace a runner that is worn, now that a job has ended."""
        options = self.options
        worn = options.recycle_jobs and seat.done >= options.recycle_jobs
        fat = options.recycle_memory and memory > options.recycle_memory
        if seat.open and (seat.kind == "fork" or seat.single or worn or fat):
            self._retire(seat, "memory" if fat else "jobs" if worn else "")

    def _retire(self, seat: RunnerHandle, reason: str) -> None:
        """Have a runner leave and another one fill its place, at once unless it runs one job at a time and still does.

        Two jobs of a key must not run beside each other: then the next one comes when that has ended.
        """
        self.dismiss(seat)
        if self._commands.take_back(seat):
            seat.retiring = reason
        elif self.working:
            self.replace(seat, 0.0, reason)

    def replace_dead(self, seat: RunnerHandle, now: float, reason: str, *, ran: bool) -> None:
        """A runner was reaped.

        Args:
            reason: for people.
            ran: it died of, or with, a job.
        """
        pause = 0.0 if ran else _pause_after(seat, now)
        if seat.single and pause:
            heapq.heappush(self._spawn_at, (now + pause, seat.kind, True))
        else:
            # A suspect that was handed back since there were enough runners for such jobs may come again.
            self.freed.add(seat.kind)
        self.replace(seat, now + pause if pause else 0.0, "" if seat.leaving else reason)

    def replace(self, seat: RunnerHandle, at: float, reason: str) -> None:
        """Free the place of a runner, and have another one fill it (at this monotonic time), unless it was removed.

        Args:
            reason: for people; empty where a runner leaves as it always does (that of a fork).
        """
        place = seat.place
        if place is not None and reason:
            place.replaced, place.reason = place.replaced + 1, reason
        self._assignment.rise(seat)
        if place is None or place.leaving or not self.working:
            return
        if at:
            heapq.heappush(self._spawn_at, (at, seat.kind, False))
        else:
            self.spawn(seat.kind)


def _pause_after(seat: RunnerHandle, now: float) -> float:
    """Seconds until another runner follows one that died idle: it would be forked in a hot loop."""
    if seat.done or seat.leaving:
        return 0.0
    if not seat.starting:
        return INFANT if now - seat.born < INFANT else 0.0
    failures = 0
    if seat.place is not None:
        failures = seat.place.failures
        seat.place.failures += 1
    return min(INFANT * (1 << min(failures, 10)), LONGEST_PAUSE)
