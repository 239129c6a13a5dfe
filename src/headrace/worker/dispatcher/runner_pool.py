"""A dispatcher's runners: they come, are given work, are stopped for limits, die, are replaced.

Decides: what runners and the supervisor are to be sent goes out as actions, and what became of jobs is returned.
"""

from __future__ import annotations

import heapq
import logging
import signal
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from headrace.model.ended import Cancelled
from headrace.model.hidden_values import hidden_in
from headrace.model.job import Claim, JobError
from headrace.model.options import FORKING, Kind
from headrace.protocol.consume import Note
from headrace.worker import messages
from headrace.worker.dispatcher.assignment import (
    CALM,
    LEAST_AHEAD,
    MOST_AHEAD,
    STALL,
    Assignment,
    Attempt,
    RunnerCommands,
    RunnerHandle,
    RunnerSlot,
)
from headrace.worker.dispatcher.dispatcher_events import End, Give, Heard, RunnerDied, TakenBack
from headrace.worker.dispatcher.job_stops import FENCED, JobStops
from headrace.worker.dispatcher.worker_state import NEVER, Worker, desk_of
from headrace.worker.messages import Done
from headrace.worker.startup_profiler import Advice

# A runner that dies younger than this (seconds) without work, or in its start, is replaced only after as long again;
# after twice as long each time, at most so long.
INFANT = 1.0
LONGEST_PAUSE = 30.0


class RunnerSupply:
    def __init__(self, worker: Worker, assignment: Assignment, commands: RunnerCommands, advice: Advice) -> None:
        self._worker, self._timers = worker, worker.timers
        self._assignment, self._commands, self._advice = assignment, commands, advice
        # When a runner of a kind is to be spawned; or, for a single, wanted again by the suspect that needs it.
        self._spawn_at: list[tuple[float, Kind, bool]] = []
        # Where the first runner has not begun.
        self._new: set[RunnerSlot] = set()
        self._registered = False

    @property
    def _working(self) -> bool:
        return self._worker.phase == "working"

    def resize(self, kind: Kind, size: int) -> list[RunnerSlot]:
        """Have this many places for runners of a kind; returns those removed, whose runners finish what they run."""
        places = self._assignment.places(kind)
        before = places.snapshot.size
        removed = places.resize(size)
        self._new.update(places.snapshot.members[before:])
        for _ in range(before, size):
            self.spawn(kind)
        for place in removed:
            self._begun(place)
            if place.handle is not None:
                self.dismiss(place.handle)
                self._commands.take_back(place.handle)
        return removed

    def renew(self, kind: Kind) -> None:
        """Replace the runner of a shared kind, whose size is given to it at its birth; it finishes what it runs."""
        for place in self._assignment.places(kind).snapshot.members:
            if (handle := place.handle) is not None and handle.open:
                self.dismiss(handle)
                self.replace(handle, 0.0, "resized")

    def spawn(self, kind: Kind) -> None:
        self._worker.actions.add(messages.Spawn(kind, self._advice.profiles(kind)))

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
            singles = [one for one in self._assignment.handles.values() if one.single and one.ready and not one.starts]
            for handle in singles:
                if now - handle.born >= INFANT:
                    self.dismiss(handle)
            self._timers.set("tidy", min((one.born + INFANT for one in singles if one.ready), default=NEVER))
        while self._spawn_at and self._spawn_at[0][0] <= now:
            _, kind, single = heapq.heappop(self._spawn_at)
            if single:
                self._assignment.freed.add(kind)
            elif self._working:
                self.spawn(kind)
        self._timers.set("spawn", self._spawn_at[0][0] if self._spawn_at else NEVER)

    def up(self, event: messages.Spawned, now: float) -> None:
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
        handle.wears = not handle.is_fork_server and (worn or handle.kind in FORKING or handle.single)
        self._assignment.attach(handle)
        if not handle.starting:
            self._begun(handle.place)
        self._assignment.freed.add(handle.kind)
        # One without a place was asked for when there were more than there are now.
        if not (handle.place or handle.single) or not self._working:
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
        if self._registered and not self._new:
            self._worker.actions.add(messages.Begun())

    def dismiss(self, handle: RunnerHandle) -> None:
        handle.leaving = True
        self._assignment.reindex(handle)
        self._commands.send(handle, messages.Exit())

    def dismiss_idle(self) -> None:
        for handle in self._assignment.handles.values():
            if not handle.starts and not handle.leaving:
                self.dismiss(handle)

    def recycle(self, handle: RunnerHandle, memory: int) -> None:
        options = self._worker.options
        worn = options.recycle_jobs and handle.done >= options.recycle_jobs
        fat = options.recycle_memory and memory > options.recycle_memory
        if not (handle.open and (handle.kind in FORKING or handle.single or worn or fat)):
            return
        reason = "memory" if fat else "jobs" if worn else ""
        self.dismiss(handle)
        if self._commands.take_back(handle) and handle.serial:
            # Two jobs of a key must not run beside each other: the next runner comes when what this one runs has ended.
            handle.retiring = reason
        elif self._working:
            self.replace(handle, 0.0, reason)

    def replace_dead(self, handle: RunnerHandle, now: float, reason: str, *, ran: bool) -> None:
        """A runner was reaped; ``ran``: it died of, or with, a job. One of no use would be forked in a hot loop."""
        was_of_use = ran or handle.done or handle.leaving or not (handle.starting or now - handle.born < INFANT)
        failures = 0
        if handle.place is not None:
            failures, handle.place.failures = handle.place.failures, 0 if was_of_use else handle.place.failures + 1
        pause = 0.0 if was_of_use else min(INFANT * (1 << min(failures, 10)), LONGEST_PAUSE)
        if handle.single and pause:
            heapq.heappush(self._spawn_at, (now + pause, handle.kind, True))
        else:
            # A suspect that was handed back since there were enough runners for such jobs may come again.
            self._assignment.freed.add(handle.kind)
        self.replace(handle, now + pause if pause else 0.0, "" if handle.leaving else reason)

    def replace(self, handle: RunnerHandle, at: float, reason: str) -> None:
        """Free the place of a runner for another one at this time. Without a reason it leaves as forks always do."""
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


# Seconds that a byte of arguments takes from the dispatcher into the runner's hands: large ones are no tiny jobs.
CARRY = 5e-9
_GARBLED = "its runner was killed: a job wrote into a descriptor of the runner that is not its own"
_ORPHANED = "the supervisor of its worker died, and all its processes were killed"


class Returned(NamedTuple):
    """What came back from a runner: starts that ended, and starts that had not begun, which may start elsewhere."""

    ends: list[End]
    back: list[Attempt]


_NOTHING = Returned([], [])
# A comprehension would be one more call for each job.
_claim_of: Callable[[Attempt], Claim] = attrgetter("claim")


class RunnerPool:
    """The runners of one worker, and what they hold.

    Attributes:
        notes: what running jobs said of themselves since it was last taken, for each shard by the start's number.
        on_spent: hears of what starts spend of limits beyond their costs, in a worker that serves several shards.
        advice: hears what runners do again that others did.
    """

    def __init__(self, worker: Worker, shards: int = 1) -> None:
        settings = worker.settings
        self.assignment = Assignment(settings.prefetch_seconds)
        self.notes: list[dict[int, Note]] = [{} for _ in range(shards)]
        self.on_spent: Callable[[int, Iterable[tuple[str, int]]], None] | None = None
        self.advice = Advice(enabled=settings.startup_profiling)
        commands = self._commands = RunnerCommands(worker.actions)
        self.stops = JobStops(self.assignment, commands, settings.kill_timeout)
        self.supply = RunnerSupply(worker, self.assignment, commands, self.advice)
        self._worker, self._actions, self._job_counts = worker, worker.actions, worker.job_counts
        self._dying: dict[int, RunnerHandle] = {}

    @property
    def running(self) -> int:
        return self.assignment.running + sum(len(handle.starts) for handle in self._dying.values())

    def runs(self, concerns: Callable[[Claim], bool]) -> bool:
        handles = [*self.assignment.handles.values(), *self._dying.values()]
        return any(concerns(start.claim) for handle in handles for start in handle.starts.values())

    @property
    def present(self) -> bool:
        return bool(self.assignment.handles or self._dying)

    def give(self, starts: list[Attempt], now: float) -> None:
        batches: dict[int, list[Attempt]] = {}
        for start in starts:
            batches.setdefault(start.handle.number, []).append(start)
        for number, batch in batches.items():
            self._actions.add(Give(number, list(map(_claim_of, batch))))
            self._start_clocks(batch[0].handle, now)

    def _start_clocks(self, handle: RunnerHandle, now: float) -> None:
        for start in islice(handle.starts.values(), handle.clocks, handle.slots):
            start.clocked = True
            handle.clocks += 1
            self.stops.limits.begin(start, now)

    def recall_stalled(self, now: float) -> None:
        soonest = NEVER
        for handle in self.assignment.handles.values():
            if not handle.ahead or len(handle.starts) <= handle.slots:
                continue
            if now >= handle.look_at:
                stalled = self.assignment.stalled(handle, now)
                handle.look_at = now + STALL if stalled else handle.progress + STALL + 1e-6
                if stalled:
                    handle.most, handle.calm_at = LEAST_AHEAD, handle.done + CALM
                    # As many stay as run at once, begun or not: large arguments take longer than a stall to arrive, and
                    # a runner from which all was taken back would be idle, be given the same again, and never begin.
                    self._commands.take_back(handle, but=handle.slots)
            soonest = min(soonest, handle.look_at)
        self._worker.timers.set("stall", soonest)

    def recall(self, concerns: Callable[[Claim], bool] | None = None) -> None:
        for handle in self.assignment.handles.values():
            if concerns is None or any(concerns(start.claim) for start in handle.starts.values()):
                self._commands.take_back(handle)

    def taken_back(self, event: TakenBack, now: float) -> Returned:
        handle = self.assignment.handles.get(event.runner)
        if handle is None:
            return _NOTHING
        returned = self._hand_back(handle, handle.take_back(event.count))
        # A job that came before this answer found no room here.
        self.assignment.freed.add(handle.kind)
        for start in handle.starts.values():
            if start.stop_reason == "cancel" and not start.told:
                self.stops.stop_cancelled(handle, start, now)
        if handle.retiring is not None:
            reason, handle.retiring = handle.retiring, None
            if self._worker.phase == "working" and not handle.starts:
                self.supply.replace(handle, 0.0, reason)
        return returned

    def _hand_back(self, handle: RunnerHandle, back: list[Attempt]) -> Returned:
        for start in back:
            self.assignment.release(handle, start)
        # Also where nothing came back: its line could not be served while it was asked.
        self.assignment.reindex(handle)
        ends = [
            End(start.claim, Cancelled(messages.cancelled(start.claim), start.plan.failure_ttl))
            for start in back
            if start.stop_reason == "cancel"
        ]
        return Returned(ends, [start for start in back if start.stop_reason != "cancel"])

    def on_messages(self, event: Heard, now: float) -> list[End]:
        handle = self.assignment.handles.get(event.runner)
        if handle is None:
            return []
        ends = self._read(handle, event.messages, now)
        if handle.starts:
            self._start_clocks(handle, now)
        return ends

    def _read(self, handle: RunnerHandle, heard: list[messages.FromRunner], now: float) -> list[End]:
        ends: list[End] = []
        share = handle.share(now, len(heard))
        for message in heard:
            if isinstance(message, Done):
                if (end := self._done(handle, message, share)) is not None:
                    ends.append(end)
            elif isinstance(message, messages.JobProgress):
                self._on_progress(handle, message)
            elif isinstance(message, messages.ChildCrashed):
                handle.fell = message
            elif isinstance(message, messages.Exit):
                handle.leaving = True
            elif isinstance(message, messages.Up):
                self.supply.started(handle, now)
            elif (start := handle.starts.get(message.number)) is not None:
                self.advice.on_found(start.claim.task, handle.kind, message)
        if ends:
            handle.progress = now
            if handle.done >= handle.calm_at:
                handle.most = MOST_AHEAD
            self.assignment.freed.add(handle.kind)
        self.assignment.reindex(handle)
        return ends

    def _done(self, handle: RunnerHandle, done: Done, share: float) -> End | None:
        # Each line is paid for by every job.
        start = handle.starts.pop(done.number, None)
        if start is None:
            return None
        claim = start.claim
        handle.done += 1
        handle.clocks -= start.clocked
        if handle.ahead and not claim.once:
            # Else claims would bring more of these than may be given to runners.
            self.assignment.measure(claim.task, min(done.cost / 1e6, share) + len(claim.args) * CARRY)
        self.assignment.release(handle, start)
        if self.advice.rows:
            self.advice.ended(claim.task)
        if done.memory and self._job_counts is not None:
            self._job_counts.grew(done.memory)
        if handle.wears:
            self.supply.recycle(handle, done.memory)
        return End(claim, done.ended, done.cost, done.memory, start.logged)

    def _on_progress(self, handle: RunnerHandle, say: messages.JobProgress) -> None:
        start = handle.starts.get(say.number)
        if start is None:
            return
        start.logged = start.logged or bool(say.lines)
        notes = self.notes[desk_of(start.claim) if len(self.notes) > 1 else 0]
        old = notes.get(say.number) or Note(start.claim.id, start.claim.token)
        said = old if say.progress is None else say
        lines, swallowed = (old.lines + say.lines)[-1000:], say.swallowed or old.swallowed
        if say.spent and self.on_spent is not None:
            self.on_spent(say.number, say.spent)
        spent = dict(old.spent)
        for limit, units in say.spent:
            spent[limit] = spent.get(limit, 0) + units
        notes[say.number] = Note(
            old.id, old.token, said.progress, said.text, lines, swallowed, tuple(spent.items()), said.data
        )

    def closed(self, runner: int, *, garbled: bool) -> None:
        """Its socket closed: it died or is leaving. The supervisor tells how; what lives on deaf and mute is killed."""
        handle = self.assignment.handles.pop(runner, None)
        if handle is None:
            return
        if garbled:
            text = "runner %d wrote what is not a message into its socket: it is killed and replaced"
            self._actions.log(logging.ERROR, text, handle.pid, code="runner.garbled")
            handle.garbled = True
        self._dying[runner] = handle
        handle.gone = True
        self.assignment.reindex(handle)
        if garbled or handle.starts or not handle.leaving:
            self._commands.signal(handle, "kill")

    def died(self, event: RunnerDied, now: float) -> Returned:
        """A runner was reaped: its last words count, its unstarted jobs come back, the running one ended somehow."""
        handle = self._dying.pop(event.runner, None) or self.assignment.handles.pop(event.runner, None)
        if handle is None:
            return _NOTHING
        ends = self._read(handle, event.heard, now)
        handle.gone = True
        if (fell := handle.fell) is not None:
            event = msgspec.structs.replace(event, signal=fell.signal, code=fell.code, memory=fell.memory)
        if handle.starting and not handle.leaving:
            self._actions.add(messages.Begun(f"{_how(event)}\n{event.stderr.decode('utf-8', 'replace')}".rstrip()))
        # What this turn gave before it heard of the death is never sent.
        unstarted = event.unstarted + self._actions.given(event.runner)
        back, running = handle.take_back(unstarted), list(handle.starts.values())
        handle.starts.clear()
        killed = FENCED if event.fenced and event.signal == signal.SIGKILL else ""
        ends += [self._broken(start, handle, event, killed) for start in running]
        self.supply.replace_dead(handle, now, _how(event), ran=bool(running))
        returned = self._hand_back(handle, back)
        return Returned(ends + returned.ends, returned.back)

    def _broken(self, start: Attempt, handle: RunnerHandle, died: RunnerDied, killed: str) -> End:
        claim, plan = start.claim, start.plan
        message = _GARBLED if handle.garbled else _ORPHANED if self.stops.orphaned else _how(died)
        error = JobError(
            type="Crashed", message=message, attempt=claim.attempt, signal=died.signal or None,
            exit_code=None if died.signal else died.code, peak_memory=died.memory or None, worker=self._worker.place,
            stderr=hidden_in(plan.secrets, claim.args, died.stderr.decode("utf-8", "replace")),
        )  # fmt: skip
        # What a shutdown had interrupted is told so, whatever then ended its runner.
        why = messages.TIME_OVER if start.stop_reason else handle.condemned or self.stops.killing or killed
        stop_reason = start.stop_reason or ("other" if why else "")
        return End(claim, messages.of_death(plan, claim, stop_reason, error, self._worker.random.random(), why))


def _how(died: RunnerDied) -> str:
    if died.signal:
        name = signal.Signals(died.signal).name if died.signal in set(signal.Signals) else f"signal {died.signal}"
        return f"its process was ended by {name}"
    return f"its process left with exit code {died.code}"
