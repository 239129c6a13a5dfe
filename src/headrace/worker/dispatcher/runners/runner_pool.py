"""A dispatcher's runners: they come, are given work, are stopped for limits, die, are replaced.

Owns the seats' life and what the end of a runner means for its jobs. Decides: what runners and the supervisor are to be
sent goes out as actions, and what became of jobs is returned.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import NamedTuple

import msgspec

from headrace.model.ended import Cancelled
from headrace.model.job import Claim, JobError
from headrace.protocol.consume import Note
from headrace.settings import AUTO, Settings, preload_names
from headrace.worker.dispatcher.dispatcher_events import (
    Actions,
    End,
    Give,
    Heard,
    RunnerDied,
    TakenBack,
)
from headrace.worker.dispatcher.ends.job_stats import Tally
from headrace.worker.dispatcher.runners.assignment import STALL, Assignment
from headrace.worker.dispatcher.runners.job_stops import JobStops
from headrace.worker.dispatcher.runners.runner_commands import RunnerCommands
from headrace.worker.dispatcher.runners.runner_handle import Attempt, RunnerHandle
from headrace.worker.dispatcher.runners.runner_supply import RunnerSupply
from headrace.worker.dispatcher.timers import NEVER, Timers
from headrace.worker.messages import ChildCrashed, Done, Exit, FromRunner, JobProgress, Up
from headrace.worker.outcomes import cancelled, of_death
from headrace.worker.preload.advice import NOTHING, Advice, Learned
from headrace.worker.worker_options import WorkerOptions

# Seconds that a byte of arguments takes from the dispatcher into the runner's hands: large ones are no tiny jobs.
CARRY = 5e-9

_GARBLED = "its runner was killed: a job wrote into a descriptor of the runner that is not its own"


class Returned(NamedTuple):
    """What came back from a runner: starts that ended, and starts that had not begun, which may start elsewhere."""

    ends: list[End]
    back: list[Attempt]


_NOTHING = Returned([], [])
# A comprehension would be one more call on the way of each job.
_claim_of: Callable[[Attempt], Claim] = attrgetter("claim")


class RunnerPool:
    """The runners of one worker, and what they hold.

    Attributes:
        assignment: seats and costs.
        supply: who comes and goes.
        stops: who is stopped.
        notes: what running jobs said of themselves since it was last taken, by token.
        advice: hears what runners do again that others did.
    """

    def __init__(
        self,
        settings: Settings,
        options: WorkerOptions,
        place: str,
        actions: Actions,
        timers: Timers,
        dice: Callable[[], float],
        tally: Tally | None = None,
        learned: Learned = NOTHING,
    ) -> None:
        """Make one without runners.

        Args:
            dice: random numbers from 0 to 1, for the jitter of retries.
            tally: hears how long jobs ran; None: nothing is counted.
            learned: what was done before the first fork.
        """
        self.assignment = Assignment(settings.prefetch_seconds)
        self.notes: dict[int, Note] = {}
        self.advice = Advice(learned, enabled=settings.startup_profiling, auto=AUTO in preload_names(settings.preload))
        commands = self._commands = RunnerCommands(actions)
        self.stops = JobStops(self.assignment, commands, settings.kill_timeout)
        self.supply = RunnerSupply(options, self.assignment, commands, actions, timers, self.advice)
        self._place = place
        self._actions = actions
        self._timers = timers
        self._dice = dice
        self._tally = tally
        self._dying: dict[int, RunnerHandle] = {}

    @property
    def running(self) -> int:
        """Jobs on runners, dying ones included."""
        return self.assignment.running + sum(len(seat.starts) for seat in self._dying.values())

    @property
    def present(self) -> bool:
        """Whether a runner is there that was not reaped."""
        return bool(self.assignment.seats or self._dying)

    # -- work -------------------------------------------------------------------------------------------------------

    def give(self, starts: list[Attempt], now: float) -> None:
        """Send booked starts to their runners, one message each."""
        batches: dict[int, list[Attempt]] = {}
        for start in starts:
            batches.setdefault(start.seat.number, []).append(start)
        for number, batch in batches.items():
            self._actions.add(Give(number, list(map(_claim_of, batch))))
            self._start_clocks(batch[0].seat, batch, now)

    def _start_clocks(self, seat: RunnerHandle, batch: list[Attempt], now: float) -> None:
        """Limits run for each job where all run at once, for the first where they wait in line."""
        if not seat.counted:
            for start in batch:
                self.stops.limits.begin(start, now)
            return
        first = next(iter(seat.starts.values()), None)
        if first is not None and first.claim.token != seat.current:
            seat.current = first.claim.token
            self.stops.limits.begin(first, now)

    def recall_stalled(self, now: float) -> None:
        """Take back what waits behind a slow job."""
        soonest = NEVER
        for seat in self.assignment.seats.values():
            if not seat.ticketed or len(seat.starts) <= 1:
                continue
            if now >= seat.look_at:
                stalled = self.assignment.stalled(seat, now)
                seat.look_at = now + STALL if stalled else seat.progress + STALL + 1e-6
                if stalled:
                    # The first stays, begun or not: large arguments take longer than a stall to arrive, and a runner
                    # from which all was taken back would be idle, be given the same again, and never begin.
                    self._commands.take_back(seat, but=1)
            soonest = min(soonest, seat.look_at)
        self._timers.set("stall", soonest)

    def recall(self, tasks: Collection[str] = ()) -> None:
        for seat in self.assignment.seats.values():
            if not tasks or any(start.claim.task in tasks for start in seat.starts.values()):
                self._commands.take_back(seat)

    def taken_back(self, event: TakenBack, now: float) -> Returned:
        """A runner tells what it had not begun."""
        seat = self.assignment.seats.get(event.runner)
        if seat is None:
            return _NOTHING
        returned = self._hand_back(seat, seat.take_back(event.count))
        for start in seat.starts.values():
            if start.doom == "cancel" and not start.told:
                self.stops.stop_cancelled(seat, start, now)
        if seat.retiring is not None:
            reason, seat.retiring = seat.retiring, None
            if self.supply.working and not seat.starts:
                self.supply.replace(seat, 0.0, reason)
        return returned

    def _hand_back(self, seat: RunnerHandle, back: list[Attempt]) -> Returned:
        for start in back:
            self.assignment.release(seat, start)
        if back:
            self.assignment.weigh(seat)
        ends = [
            End(start.claim, Cancelled(cancelled(start.claim), start.plan.failure_ttl))
            for start in back
            if start.doom == "cancel"
        ]
        return Returned(ends, [start for start in back if start.doom != "cancel"])

    def heard(self, event: Heard, now: float) -> list[End]:
        """A runner sent messages."""
        seat = self.assignment.seats.get(event.runner)
        if seat is None:
            return []
        ends = self._read(seat, event.messages, now)
        if seat.starts:
            self._start_clocks(seat, [], now)
        return ends

    def _read(self, seat: RunnerHandle, messages: list[FromRunner], now: float) -> list[End]:
        ends: list[End] = []
        for message in messages:
            if isinstance(message, Done):
                if (end := self._done(seat, message)) is not None:
                    ends.append(end)
            elif isinstance(message, JobProgress):
                self._said(seat, message)
            elif isinstance(message, ChildCrashed):
                seat.fell = message
            elif isinstance(message, Exit):
                seat.leaving = True
            elif isinstance(message, Up):
                self.supply.started(seat, now)
            elif (start := seat.starts.get(message.token)) is not None:
                self.advice.heard(start.claim.task, seat.kind, message)
        if ends:
            seat.progress = now
            self.supply.freed.add(seat.kind)
        self.assignment.weigh(seat)
        return ends

    def _done(self, seat: RunnerHandle, done: Done) -> End | None:
        # Each line is paid for by every job.
        start = seat.starts.pop(done.token, None)
        if start is None:
            return None
        claim = start.claim
        seat.done += 1
        if seat.ticketed:
            self.assignment.measure(claim.task, done.cost / 1e6 + len(claim.args) * CARRY)
        self.assignment.release(seat, start)
        if self.advice.rows:
            self.advice.ended(claim.task)
        if done.memory and self._tally is not None:
            self._tally.grew(done.memory)
        if seat.wears:
            self.supply.recycle(seat, done.memory)
        return End(claim, done.ended, done.cost)

    def _said(self, seat: RunnerHandle, say: JobProgress) -> None:
        start = seat.starts.get(say.token)
        if start is None:
            return
        old = self.notes.get(say.token) or Note(start.claim.id, say.token)
        share, text = (old.progress, old.text) if say.progress is None else (say.progress, say.text)
        lines, swallowed = (old.lines + say.lines)[-1000:], say.swallowed or old.swallowed
        self.notes[say.token] = Note(start.claim.id, say.token, share, text, lines, swallowed, old.spent + say.spent)

    # -- runners end ------------------------------------------------------------------------------------------------

    def closed(self, runner: int, *, garbled: bool) -> None:
        """Its socket closed: it died or is leaving. The supervisor tells how; what lives on deaf and mute is killed.

        Args:
            garbled: it sent what is no message: a job wrote into its socket.
        """
        seat = self.assignment.seats.pop(runner, None)
        if seat is None:
            return
        if garbled:
            text = "runner %d wrote what is no message into its socket: it is killed and replaced"
            self._actions.log(logging.ERROR, text, seat.pid)
            seat.garbled = True
        self._dying[runner] = seat
        seat.gone = True
        self.assignment.weigh(seat)
        if garbled or seat.starts or not seat.leaving:
            self._commands.signal(seat, "kill")

    def died(self, event: RunnerDied, now: float) -> Returned:
        """A runner was reaped: its last words count, its unstarted jobs come back, the running one ended somehow."""
        seat = self._dying.pop(event.runner, None) or self.assignment.seats.pop(event.runner, None)
        if seat is None:
            return _NOTHING
        ends = self._read(seat, event.heard, now)
        seat.gone = True
        if seat.fell is not None:
            event = msgspec.structs.replace(
                event, signal=seat.fell.signal, code=seat.fell.code, memory=seat.fell.memory
            )
        back, running = seat.take_back(event.unstarted), list(seat.starts.values())
        seat.starts.clear()
        ends += [self._broken(start, seat, event) for start in running]
        self.supply.replace_dead(seat, now, _how(event), ran=bool(running))
        returned = self._hand_back(seat, back)
        return Returned(ends + returned.ends, returned.back)

    def _broken(self, start: Attempt, seat: RunnerHandle, died: RunnerDied) -> End:
        """Decide what the death of its runner means for one start."""
        claim, plan = start.claim, start.plan
        error = JobError(
            type="Crashed",
            message=_GARBLED if seat.garbled else _how(died),
            attempt=claim.attempt,
            signal=died.signal or None,
            exit_code=None if died.signal else died.code,
            peak_memory=died.memory,
            stderr=died.stderr.decode("utf-8", "replace"),
            worker=self._place,
        )
        doom = start.doom or ("other" if seat.condemned or self.stops.killing else "")
        return End(claim, of_death(plan, claim, doom, error, self._dice()))


def _how(died: RunnerDied) -> str:
    if died.signal:
        name = signal.Signals(died.signal).name if died.signal in set(signal.Signals) else f"signal {died.signal}"
        return f"its process was ended by {name}"
    return f"its process left with exit code {died.code}"
