"""Runners come and go: how many there are, who is replaced, and when another one is asked for."""

from __future__ import annotations

import heapq

from headrace.model.options import Kind
from headrace.worker.dispatcher.assignment import Assignment
from headrace.worker.dispatcher.runner_handle import RunnerCommands, RunnerHandle, RunnerSlot
from headrace.worker.dispatcher.worker_state import NEVER, Worker
from headrace.worker.messages import Begun, Exit, Spawn, Spawned
from headrace.worker.preload.advice import Advice

# A runner that dies younger than this (seconds) without work, or in its start, is replaced only after as long again;
# after twice as long each time, at most so long.
INFANT = 1.0
LONGEST_PAUSE = 30.0


class RunnerSupply:
    """The runners that are there, and those that are to come."""

    def __init__(self, worker: Worker, assignment: Assignment, commands: RunnerCommands, advice: Advice) -> None:
        self._worker = worker
        self._timers = worker.timers
        self._assignment = assignment
        self._commands = commands
        self._advice = advice
        # When a runner of a kind is to be spawned; or, for a single, wanted again by the suspect that needs it.
        self._spawn_at: list[tuple[float, Kind, bool]] = []
        # Where the first runner has not begun.
        self._new: set[RunnerSlot] = set()
        self._registered = False

    @property
    def _working(self) -> bool:
        return self._worker.phase == "working"

    # -- how many ---------------------------------------------------------------------------------------------------

    def resize(self, kind: Kind, size: int) -> list[RunnerSlot]:
        """Have this many places for runners of a kind, and a runner in each.

        Returns:
            those that were removed; a runner in one finishes what it runs, and what it had not begun is taken back.
        """
        places = self._assignment.places(kind)
        before = places.snapshot.size
        removed = places.resize(size)
        self._new.update(places.snapshot.members[before:])
        for _ in range(before, size):
            self.spawn(kind)
        for place in removed:
            self._begun(place)
        for handle in [place.handle for place in removed if place.handle is not None]:
            self.dismiss(handle)
            self._commands.take_back(handle)
        return removed

    def renew(self, kind: Kind) -> None:
        """Replace the runner of a shared kind, whose size is given to it at its birth; it finishes what it runs."""
        for place in self._assignment.places(kind).snapshot.members:
            if (handle := place.handle) is not None and handle.open:
                self.dismiss(handle)
                self.replace(handle, 0.0, "resized")

    def spawn(self, kind: Kind) -> None:
        self._worker.actions.add(Spawn(kind, self._advice.profiles(kind)))

    def isolated(self, kind: Kind) -> RunnerHandle | None:
        """A runner for one suspect alone; None while it is being forked, or while there are enough of them."""
        if not self._working:
            return None
        handle = self._assignment.single(kind)
        if handle is None and self._assignment.wants_single(kind):
            self._assignment.coming[kind] += 1
            self.spawn(kind)
        return handle

    def respawn(self, now: float) -> None:
        if self._timers.due("tidy", now):
            self._tidy(now)
        while self._spawn_at and self._spawn_at[0][0] <= now:
            _, kind, single = heapq.heappop(self._spawn_at)
            if single:
                self._assignment.freed.add(kind)
            elif self._working:
                self.spawn(kind)
        self._timers.set("spawn", self._spawn_at[0][0] if self._spawn_at else NEVER)

    def _tidy(self, now: float) -> None:
        waiting = [
            handle
            for handle in self._assignment.handles.values()
            if handle.single and handle.ready and not handle.starts
        ]
        for handle in waiting:
            if now - handle.born >= INFANT:
                self.dismiss(handle)
        self._timers.set("tidy", min((handle.born + INFANT for handle in waiting if handle.ready), default=NEVER))

    # -- one runner -------------------------------------------------------------------------------------------------

    def up(self, event: Spawned, now: float) -> None:
        options = self._worker.options
        handle = RunnerHandle(event.runner, event.kind, event.pid, options.slots(event.kind))
        handle.born, handle.is_fork_server, handle.starting = now, event.is_fork_server, event.starting
        handle.quota = 0 if handle.is_fork_server else options.recycle_jobs
        if self._assignment.coming[handle.kind]:
            self._assignment.coming[handle.kind] -= 1
            handle.single, handle.slots = True, 1
            if not handle.starting:
                self._timers.set("tidy", min(self._timers.at("tidy"), handle.born + INFANT))
        worn = bool(options.recycle_jobs or options.recycle_memory)
        handle.wears = not handle.is_fork_server and (worn or handle.kind == "fork" or handle.single)
        self._assignment.attach(handle)
        if not handle.starting:
            self._begun(handle.place)
        self._assignment.freed.add(handle.kind)
        # Asked for when there were more places than there are now.
        surplus = handle.place is None and not handle.single
        if surplus or not self._working:
            self.dismiss(handle)

    def started(self, handle: RunnerHandle, now: float) -> None:
        handle.starting, handle.born = False, now
        if handle.place is not None:
            handle.place.failures = 0
        self._begun(handle.place)
        if handle.single:
            self._timers.set("tidy", min(self._timers.at("tidy"), now + INFANT))
        self._assignment.freed.add(handle.kind)

    def _begun(self, place: RunnerSlot | None) -> None:
        if place in self._new:
            self._new.remove(place)
            self._report_begun()

    def on_registration(self) -> None:
        self._registered = True
        self._report_begun()

    def _report_begun(self) -> None:
        """Tell the supervisor when the worker is registered and no first runner is starting any more."""
        if self._registered and not self._new:
            self._worker.actions.add(Begun())

    def dismiss(self, handle: RunnerHandle) -> None:
        handle.leaving = True
        self._assignment.reindex(handle)
        self._commands.say(handle, Exit())

    def dismiss_idle(self) -> None:
        for handle in self._assignment.handles.values():
            if not handle.starts and not handle.leaving:
                self.dismiss(handle)

    def recycle(self, handle: RunnerHandle, memory: int) -> None:
        """Replace a runner that is worn, now that a job has ended."""
        options = self._worker.options
        worn = options.recycle_jobs and handle.done >= options.recycle_jobs
        fat = options.recycle_memory and memory > options.recycle_memory
        if not (handle.open and (handle.kind == "fork" or handle.single or worn or fat)):
            return
        reason = "memory" if fat else "jobs" if worn else ""
        self.dismiss(handle)
        if self._commands.take_back(handle) and handle.serial:
            # Two jobs of a key must not run beside each other: the next runner comes when what this one runs has ended.
            handle.retiring = reason
        elif self._working:
            self.replace(handle, 0.0, reason)

    def replace_dead(self, handle: RunnerHandle, now: float, reason: str, *, ran: bool) -> None:
        """A runner was reaped.

        Args:
            reason: for people.
            ran: it died of, or with, a job.
        """
        pause = _pause_after(handle, now, ran=ran)
        if handle.single and pause:
            heapq.heappush(self._spawn_at, (now + pause, handle.kind, True))
        else:
            # A suspect that was handed back since there were enough runners for such jobs may come again.
            self._assignment.freed.add(handle.kind)
        self.replace(handle, now + pause if pause else 0.0, "" if handle.leaving else reason)

    def replace(self, handle: RunnerHandle, at: float, reason: str) -> None:
        """Free the place of a runner, and have another one fill it (at this monotonic time), unless it was removed.

        Args:
            reason: for people; empty where a runner leaves as it always does (that of a fork).
        """
        place = handle.place
        if place is not None and reason:
            place.replaced, place.reason = place.replaced + 1, reason
        self._assignment.detach(handle)
        if place is None or place.leaving or not self._working:
            return
        if at:
            heapq.heappush(self._spawn_at, (at, handle.kind, False))
        else:
            self.spawn(handle.kind)


def _pause_after(handle: RunnerHandle, now: float, *, ran: bool) -> float:
    """Seconds until another runner follows one that was reaped: it would be forked in a hot loop."""
    was_of_use = ran or handle.done or handle.leaving or not (handle.starting or now - handle.born < INFANT)
    failures = 0
    if handle.place is not None:
        failures, handle.place.failures = handle.place.failures, 0 if was_of_use else handle.place.failures + 1
    return 0.0 if was_of_use else min(INFANT * (1 << min(failures, 10)), LONGEST_PAUSE)
