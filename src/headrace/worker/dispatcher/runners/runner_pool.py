"""A dispatcher's runners: they come, are given work, are stopped for limits, die, are replaced.

Owns the seats' life and what the end of a runner means for its jobs. Decides: what runners and the supervisor are to be
sent goes out as actions, and what became of jobs is returned.
"""

from __future__ import annotations

import heapq
import logging
import signal
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from headrace.model.job import JobError
from headrace.protocol.consume import Note
from headrace.settings import AUTO, Settings, preload_names
from headrace.worker.dispatcher.dispatcher_events import (
    Actions,
    Ask,
    End,
    Give,
    Heard,
    Notify,
    RunnerDied,
    RunnerUp,
    TakeBack,
    TakenBack,
)
from headrace.worker.dispatcher.job_stats import Tally
from headrace.worker.dispatcher.runners.assignment import STALL, Handout
from headrace.worker.dispatcher.runners.runner_handle import Seat, Start
from headrace.worker.dispatcher.runners.runner_places import Place
from headrace.worker.dispatcher.runners.time_limits import Limits, Stage
from headrace.worker.dispatcher.timers import NEVER, Timers
from headrace.worker.messages import Done, Exit, Fell, FromRunner, Say, Signal, Spawn, Stop, Up
from headrace.worker.outcomes import cancelled, of_death
from headrace.worker.preload.advice import NOTHING, Advice, Learned
from headrace.worker.worker_options import WorkerOptions

# A runner that dies younger than this (seconds) without work is replaced only after as long again. One whose start
# fails, after twice as long each time, at most so long.
INFANT, LONGEST_PAUSE = 1.0, 30.0
# Seconds that a byte of arguments takes from the dispatcher into the runner's hands: large ones are no tiny jobs.
CARRY = 5e-9

_GARBLED = "its runner was killed: a job wrote into a descriptor of the runner that is not its own"


class Returned(NamedTuple):
    """What came back from a runner: starts that ended, and starts that had not begun, which may start elsewhere."""

    ends: list[End]
    back: list[Start]


_NOTHING = Returned([], [])


class Crew:
    """The runners of one worker.

    Attributes:
        handout: seats and costs.
        limits: deadlines of what runs.
        working: whether dead and worn runners are replaced.
        notes: what running jobs said of themselves since it was last taken, by token.
        freed: kinds of runners that got room since it was last cleared.
        tally: hears how long jobs ran; None: nobody counts.
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
            learned: what was done before the first fork.
            dice: random numbers from 0 to 1, for the jitter of retries.
        """
        self.settings = settings
        self.options = options
        self.place = place
        self.handout = Handout(settings.prefetch_seconds)
        self.limits = Limits(settings.kill_timeout)
        self.working = True
        self.notes: dict[int, Note] = {}
        self.freed: set[str] = set()
        self.tally = tally
        self.advice = Advice(learned, enabled=settings.startup_profiling, auto=AUTO in preload_names(settings.preload))
        self._actions = actions
        self._timers = timers
        self._dice = dice
        self._dying: dict[int, Seat] = {}
        # When a runner of a kind is to be spawned; or, for a single, wanted again by the suspect that needs it.
        self._spawn_at: list[tuple[float, str, bool]] = []
        self._killing = False

    @property
    def running(self) -> int:
        """Jobs on runners, dying ones included."""
        return self.handout.running + sum(len(seat.starts) for seat in self._dying.values())

    @property
    def present(self) -> bool:
        """Whether a runner is there that was not reaped."""
        return bool(self.handout.seats or self._dying)

    # -- work -------------------------------------------------------------------------------------------------------

    def give(self, starts: list[Start], now: float) -> None:
        """Send booked starts to their runners, one message each."""
        batches: dict[int, list[Start]] = {}
        for start in starts:
            batches.setdefault(start.seat.number, []).append(start)
        for number, batch in batches.items():
            claims = [start.claim for start in batch] if len(batch) > 1 else [batch[0].claim]
            self._actions.add(Give(number, claims))
            first = batch[0]
            plan, alone = first.plan, len(batch) == 1 == len(first.seat.starts)
            if not alone or plan.timeout is not None or plan.hard_timeout is not None or not first.seat.counted:
                self._start_clocks(first.seat, batch, now)
            else:
                # Most idle runners get one job without limits.
                first.seat.current = first.claim.token

    def _start_clocks(self, seat: Seat, batch: list[Start], now: float) -> None:
        """Limits run for each job where all run at once, for the first where they wait in line."""
        if not seat.counted:
            for start in batch:
                self.limits.begin(start, now)
            return
        first = next(iter(seat.starts.values()), None)
        if first is not None and first.claim.token != seat.current:
            seat.current = first.claim.token
            self.limits.begin(first, now)

    def _say(self, seat: Seat, message: Stop | Exit) -> None:
        if not seat.gone:
            self._actions.add(Notify(seat.number, message))

    def recall_stalled(self, now: float) -> None:
        """Take back what waits behind a slow job."""
        soonest = NEVER
        for seat in self.handout.seats.values():
            if not seat.ticketed or len(seat.starts) <= 1:
                continue
            if now >= seat.look_at:
                stalled = self.handout.stalled(seat, now)
                seat.look_at = now + STALL if stalled else seat.progress + STALL + 1e-6
                if stalled:
                    # The first stays, begun or not: large arguments take longer than a stall to arrive, and a runner
                    # from which all was taken back would be idle, be given the same again, and never begin.
                    self._take_back(seat, but=1)
            soonest = min(soonest, seat.look_at)
        self._timers.set("stall", soonest)

    def recall_all(self) -> None:
        for seat in self.handout.seats.values():
            self._take_back(seat)

    def _take_back(self, seat: Seat, *, but: int = 0) -> bool:
        """Ask for what it has not begun; whether there may be any."""
        if not seat.counted or len(seat.starts) <= but:
            return False
        seat.recalling = True
        self._actions.add(TakeBack(seat.number, len(seat.starts) - but))
        return True

    def taken_back(self, event: TakenBack, now: float) -> Returned:
        """A runner tells what it had not begun."""
        seat = self.handout.seats.get(event.runner)
        if seat is None:
            return _NOTHING
        returned = self._hand_back(seat, seat.take_back(event.count))
        for start in seat.starts.values():
            if start.doom == "cancel" and not start.told:
                self._stop_cancelled(seat, start, now)
        if seat.retiring is not None:
            reason, seat.retiring = seat.retiring, None
            if self.working and not seat.starts:
                self._replace(seat, 0.0, reason)
        return returned

    def _hand_back(self, seat: Seat, back: list[Start]) -> Returned:
        for start in back:
            self.handout.release(seat, start)
        if back:
            self.handout.weigh(seat)
        ends = [
            End(start.claim, "cancelled", cancelled(start.claim), start.plan.failure_ttl)
            for start in back
            if start.doom == "cancel"
        ]
        return Returned(ends, [start for start in back if start.doom != "cancel"])

    def heard(self, event: Heard, now: float) -> list[End]:
        """A runner sent messages."""
        seat = self.handout.seats.get(event.runner)
        if seat is None:
            return []
        ends = self._read(seat, event.messages, now)
        if seat.starts:
            self._start_clocks(seat, [], now)
        return ends

    def _read(self, seat: Seat, messages: list[FromRunner], now: float) -> list[End]:
        ends: list[End] = []
        for message in messages:
            if isinstance(message, Done):
                if (end := self._done(seat, message)) is not None:
                    ends.append(end)
            elif isinstance(message, Say):
                self._said(seat, message)
            elif isinstance(message, Fell):
                seat.fell = message
            elif isinstance(message, Exit):
                seat.leaving = True
            elif isinstance(message, Up):
                self._started(seat, now)
            elif (start := seat.starts.get(message.token)) is not None:
                self.advice.heard(start.claim.task, seat.kind, message)
        if ends:
            seat.progress = now
            self.freed.add(seat.kind)
        self.handout.weigh(seat)
        return ends

    def _done(self, seat: Seat, done: Done) -> End | None:
        # Each line is paid for by every job.
        start = seat.starts.pop(done.token, None)
        if start is None:
            return None
        claim = start.claim
        seat.done += 1
        if seat.ticketed:
            self.handout.measure(claim.task, done.cost / 1e6 + len(claim.args) * CARRY)
        self.handout.release(seat, start)
        if self.advice.rows:
            self.advice.ended(claim.task)
        if done.memory and self.tally is not None:
            self.tally.grew(done.memory)
        if seat.wears:
            self._recycle(seat, done.memory)
        return End(claim, done.kind, done.data, done.amount, done.cost)

    def _started(self, seat: Seat, now: float) -> None:
        """A runner has started, and takes jobs from now on."""
        seat.starting, seat.born = False, now
        if seat.place is not None:
            seat.place.failures = 0
        if seat.single:
            self._timers.set("tidy", min(self._timers.at("tidy"), now + INFANT))
        self.freed.add(seat.kind)

    def _said(self, seat: Seat, say: Say) -> None:
        start = seat.starts.get(say.token)
        if start is None:
            return
        old = self.notes.get(say.token) or Note(start.claim.id, say.token)
        share, text = (old.progress, old.text) if say.progress is None else (say.progress, say.text)
        lines, swallowed = (old.lines + say.lines)[-1000:], say.swallowed or old.swallowed
        self.notes[say.token] = Note(start.claim.id, say.token, share, text, lines, swallowed)

    # -- runners come and go ----------------------------------------------------------------------------------------

    def resize(self, kind: str, size: int) -> list[Place]:
        """Have so many places for runners of a kind, and a runner in each.

        Returns:
            those that were removed; a runner in one finishes what it runs, and what it had not begun is taken back.
        """
        places = self.handout.places(kind)
        before = places.snapshot.size
        removed = places.resize(size)
        for _ in range(before, size):
            self.spawn(kind)
        for seat in [place.seat for place in removed if place.seat is not None]:
            self.dismiss(seat)
            self._take_back(seat)
        return removed

    def renew(self, kind: str) -> None:
        """Replace the runner of a shared kind, whose size is given to it at its birth; it finishes what it runs."""
        for place in self.handout.places(kind).snapshot.members:
            if (seat := place.seat) is not None and seat.open:
                self.dismiss(seat)
                self._replace(seat, 0.0, "resized")

    def spawn(self, kind: str) -> None:
        """Ask the supervisor for a runner."""
        self._actions.add(Ask(Spawn(kind, self.advice.profiles(kind))))

    def isolated(self, kind: str) -> Seat | None:
        """A runner for one suspect alone; None while it is being forked, or while there are enough of them."""
        if not self.working:
            return None
        seat = self.handout.single(kind)
        if seat is None and self.handout.wants_single(kind):
            self.handout.coming[kind] += 1
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
        waiting = [seat for seat in self.handout.seats.values() if seat.single and seat.ready and not seat.starts]
        for seat in waiting:
            if now - seat.born >= INFANT:
                self.dismiss(seat)
        self._timers.set("tidy", min((seat.born + INFANT for seat in waiting if seat.ready), default=NEVER))

    def up(self, event: RunnerUp, now: float) -> None:
        """A runner is there."""
        seat = Seat(event.runner, event.kind, event.pid, self.options.slots(event.kind))
        seat.born, seat.forker, seat.starting = now, event.forker, event.starting
        seat.quota = 0 if seat.forker else self.options.recycle_jobs
        if self.handout.coming[seat.kind]:
            self.handout.coming[seat.kind] -= 1
            seat.single, seat.slots = True, 1
            if not seat.starting:
                self._timers.set("tidy", min(self._timers.at("tidy"), seat.born + INFANT))
        worn = bool(self.options.recycle_jobs or self.options.recycle_memory)
        seat.wears = not seat.forker and (worn or seat.kind == "fork" or seat.single)
        self.handout.sit(seat)
        self.freed.add(seat.kind)
        # Asked for when there were more places than there are now.
        surplus = seat.place is None and not seat.single
        if surplus or not self.working:
            self.dismiss(seat)

    def dismiss(self, seat: Seat) -> None:
        """Let a runner leave when what it holds is done."""
        seat.leaving = True
        self.handout.weigh(seat)
        self._say(seat, Exit())

    def dismiss_idle(self) -> None:
        for seat in self.handout.seats.values():
            if not seat.starts and not seat.leaving:
                self.dismiss(seat)

    def _recycle(self, seat: Seat, memory: int) -> None:
        options = self.options
        worn = options.recycle_jobs and seat.done >= options.recycle_jobs
        fat = options.recycle_memory and memory > options.recycle_memory
        if seat.open and (seat.kind == "fork" or seat.single or worn or fat):
            self._retire(seat, "memory" if fat else "jobs" if worn else "")

    def _retire(self, seat: Seat, reason: str) -> None:
        """Have a runner leave and another one fill its place, at once unless it runs one job at a time and still does.

        Two jobs of a key must not run beside each other: then the next one comes when that has ended.
        """
        self.dismiss(seat)
        if self._take_back(seat):
            seat.retiring = reason
        elif self.working:
            self._replace(seat, 0.0, reason)

    def closed(self, runner: int, *, garbled: bool) -> None:
        """Its socket closed: it died or is leaving. The supervisor tells how; what lives on deaf and mute is killed.

        Args:
            garbled: it sent what is no message: a job wrote into its socket.
        """
        seat = self.handout.seats.pop(runner, None)
        if seat is None:
            return
        if garbled:
            text = "runner %d wrote what is no message into its socket: it is killed and replaced"
            self._actions.log(logging.ERROR, text, seat.pid)
            seat.garbled = True
        self._dying[runner] = seat
        seat.gone = True
        self.handout.weigh(seat)
        if garbled or seat.starts or not seat.leaving:
            self._signal(seat, "kill")

    def died(self, event: RunnerDied, now: float) -> Returned:
        """A runner was reaped: its last words count, its unstarted jobs come back, the running one ended somehow."""
        seat = self._dying.pop(event.runner, None) or self.handout.seats.pop(event.runner, None)
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
        pause = 0.0 if running else _pause_after(seat, now)
        if seat.single and pause:
            heapq.heappush(self._spawn_at, (now + pause, seat.kind, True))
        else:
            # A suspect that was handed back since there were enough runners for such jobs may come again.
            self.freed.add(seat.kind)
        self._replace(seat, now + pause if pause else 0.0, "" if seat.leaving else _how(event))
        returned = self._hand_back(seat, back)
        return Returned(ends + returned.ends, returned.back)

    def _replace(self, seat: Seat, at: float, reason: str) -> None:
        """Free the place of a runner, and have another one fill it (at this monotonic time), unless it was removed.

        Args:
            reason: for people; empty where a runner leaves as it always does (that of a fork).
        """
        place = seat.place
        if place is not None and reason:
            place.replaced, place.reason = place.replaced + 1, reason
        self.handout.rise(seat)
        if place is None or place.leaving or not self.working:
            return
        if at:
            heapq.heappush(self._spawn_at, (at, seat.kind, False))
        else:
            self.spawn(seat.kind)

    def _broken(self, start: Start, seat: Seat, died: RunnerDied) -> End:
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
            worker=self.place,
        )
        doom = start.doom or ("other" if seat.condemned or self._killing else "")
        return End(claim, *of_death(plan, claim, doom, error, self._dice()))

    # -- limits and cancellations -----------------------------------------------------------------------------------

    def enforce(self, now: float) -> None:
        """Stop what ran past a limit."""
        for deadline in self.limits.due(now):
            for seat in self.handout.seats.values():
                if (start := seat.starts.get(deadline.token)) is not None:
                    self._stop(seat, start, deadline.stage, now)

    def cancel(self, id: str, now: float) -> None:
        """Stop a job that was cancelled: before it starts if that is possible, else as a soft limit would."""
        for seat in self.handout.seats.values():
            for start in seat.starts.values():
                if start.claim.id != id or start.doom:
                    continue
                start.doom = "cancel"
                if start.claim.token == seat.current or not self._take_back(seat):
                    self._stop_cancelled(seat, start, now)

    def _stop_cancelled(self, seat: Seat, start: Start, now: float) -> None:
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
        for seat in self.handout.seats.values():
            for start in seat.starts.values():
                self._say(seat, Stop(start.claim.token, reason))
                if reason == "interrupt":
                    start.doom = start.doom or "other"
                if seat.counted:
                    start.reminders = 0
                    self.limits.remind(start, now)
            if seat.starts and seat.kind != "thread":
                self._signal(seat, "stop")

    def _stop(self, seat: Seat, start: Start, stage: Stage | Literal["cancel"], now: float) -> None:
        if stage == "hard":
            start.doom = start.doom or "hard"
            seat.condemned = True
            self._signal(seat, "kill")
            return
        if stage != "again":
            start.reminders = 0
            start.limited = stage == "soft"
            self._say(seat, Stop(start.claim.token, stage))
        elif start.limited and not start.doom:
            # A runner that was slow forgot it, since the code had not begun.
            self._say(seat, Stop(start.claim.token, "soft"))
        if seat.kind != "thread":
            self._signal(seat, "stop")
        if seat.counted or start.limited:
            self.limits.remind(start, now)

    def _signal(self, seat: Seat, what: str) -> None:
        self._actions.add(Ask(Signal(seat.number, what)))

    def kill_all(self) -> None:
        """End every runner; what runs is handed back."""
        self._killing = True
        for seat in self.handout.seats.values():
            self._signal(seat, "kill")

    def kill_busy(self) -> None:
        """End the runners that run something; what runs is handed back."""
        for seat in self.handout.seats.values():
            if seat.starts:
                seat.condemned = True
                self._signal(seat, "kill")


def _pause_after(seat: Seat, now: float) -> float:
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


def _how(died: RunnerDied) -> str:
    if died.signal:
        name = signal.Signals(died.signal).name if died.signal in set(signal.Signals) else f"signal {died.signal}"
        return f"its process was ended by {name}"
    return f"its process left with exit code {died.code}"
