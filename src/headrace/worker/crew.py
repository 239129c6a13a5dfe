"""A dispatcher's runners: they come, are given work, are stopped for limits, die, are replaced.

Owns the seats' life and what the end of a runner means for its jobs. Talks to runners and to the supervisor, never to
the store: what becomes of a job is said through ``conclude`` and ``again``.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from typing import Literal, Protocol

from headrace.job import Claim, JobError
from headrace.protocol.consume import Note
from headrace.settings import AUTO, Settings, preload_names
from headrace.worker.exchange import Selectors
from headrace.worker.handout import Handout
from headrace.worker.limits import Limits, Stage
from headrace.worker.options import WorkerOptions
from headrace.worker.outcomes import cancelled, of_death
from headrace.worker.places import Place
from headrace.worker.seat import Seat, Start
from headrace.worker.tally import Tally
from headrace.worker.waste import Waste
from headrace.worker.wire import (
    Channel,
    Closed,
    Died,
    Done,
    Exit,
    Fell,
    FromRunner,
    FromSupervisor,
    Garbled,
    Recall,
    Say,
    Signal,
    Soon,
    Spawn,
    Spawned,
    Stop,
    ToSupervisor,
    Up,
    frame,
)

log = logging.getLogger("headrace.worker")

# A runner that dies younger than this (seconds) without work is replaced only after as long again. One whose start
# fails, after twice as long each time, at most so long.
INFANT, LONGEST_PAUSE = 1.0, 30.0
# Seconds that a byte of arguments takes from the dispatcher into the runner's hands: large ones are no tiny jobs.
CARRY = 5e-9
# Seconds that a line which a runner has begun on stderr waits for its end: what a job says must not wait for the next.
LINE_WAITS = 1.0

_SOON = frame(Soon())
_GARBLED = "its runner was killed: a job wrote into a descriptor of the runner that is not its own"


class Conclude(Protocol):
    """Says how a start ended; ``kind``, ``data`` and ``amount`` as in :class:`headrace.job.Outcome`.

    ``cost``: microseconds that its code ran, where that is known.
    """

    def __call__(self, claim: Claim, kind: str, data: bytes = b"", amount: int = 0, cost: int = 0) -> None: ...


class Crew:
    """The runners of one worker.

    Attributes:
        handout: seats and costs.
        limits: deadlines of what runs.
        working: whether dead and worn runners are replaced.
        notes: what running jobs said of themselves since it was last taken, by token.
        freed: kinds of runners that got room since it was last cleared.
        tally: hears how long jobs ran; None: nobody counts.
        waste: hears what runners do again that others did.
    """

    def __init__(
        self,
        settings: Settings,
        options: WorkerOptions,
        place: str,
        control: Channel[FromSupervisor],
        watched: Selectors,
        conclude: Conclude,
        again: Callable[[list[Start]], None],
    ) -> None:
        self.settings = settings
        self.options = options
        self.place = place
        self.handout = Handout(settings.prefetch_seconds)
        self.limits = Limits(settings.kill_timeout)
        self.working = True
        self.notes: dict[int, Note] = {}
        self.freed: set[str] = set()
        self.tally: Tally | None = None
        self.waste = Waste(enabled=settings.startup_profiling, auto=AUTO in preload_names(settings.preload))
        self._control = control
        self._watched = watched
        self._conclude = conclude
        self._again = again
        self._dying: dict[int, Seat] = {}
        # When a runner of a kind is to be spawned; or, for a single, wanted again by the suspect that needs it.
        self._spawn_at: list[tuple[float, str, bool]] = []
        self._tidy_at = float("inf")
        # When lines of stderr are passed on although they have not ended.
        self._lines_at = float("inf")
        self._killing = False

    @property
    def running(self) -> int:
        """Jobs on runners, dying ones included."""
        return self.handout.running + sum(len(seat.starts) for seat in self._dying.values())

    @property
    def present(self) -> bool:
        """Whether a runner is there that was not reaped."""
        return bool(self.handout.seats or self._dying)

    @property
    def next(self) -> float:
        """When a limit is due or a runner must be replaced (monotonic seconds)."""
        limit = self.limits.next
        spawn = min(self._spawn_at[0][0] if self._spawn_at else float("inf"), self._tidy_at, self._lines_at)
        return spawn if limit is None else min(limit, spawn)

    # -- the supervisor ---------------------------------------------------------------------------------------------

    def ask(self, *messages: ToSupervisor) -> None:
        """Tell the supervisor these, after what did not fit before.

        Never waits: the supervisor may be waiting for us to read what it said. That it is gone its socket will tell.
        """
        with contextlib.suppress(Closed):
            for message in messages:
                self._control.offer(message)
            self._control.flush()
            self._watched.also_write(self._control, wanted=self._control.full)

    # -- work -------------------------------------------------------------------------------------------------------

    def give(self, starts: list[Start], now: float) -> None:
        """Send booked starts to their runners, one message each."""
        batches: dict[int, list[Start]] = {}
        for start in starts:
            batches.setdefault(start.seat.number, []).append(start)
        for batch in batches.values():
            seat = batch[0].seat
            try:
                seat.give(batch)
                self._mind(seat)
            except Closed:
                # It just died, which its socket will tell: what it was sent comes back then.
                pass
            self._start_clocks(seat, batch, now)

    def stir(self) -> None:
        """Wake the runner that the next job will most likely go to: it is up by the time that the claim is read."""
        place = self.handout.places("process").ranks.idle()
        if place is not None and place.seat is not None:
            place.seat.channel.hint(_SOON)

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

    def _mind(self, seat: Seat) -> None:
        """What did not fit into the runner's socket is sent when there is room: large arguments exceed its buffer."""
        if (seat.channel.full or seat.blocked) and not seat.gone:
            seat.blocked = seat.channel.full
            self._watched.also_write(seat.channel, wanted=seat.blocked)

    def _say(self, seat: Seat, message: Recall | Stop | Exit) -> None:
        with contextlib.suppress(Closed):
            seat.channel.offer(message)
            self._mind(seat)

    def recall_stalled(self, now: float) -> None:
        """Take back what waits behind a slow job."""
        for seat in list(self.handout.seats.values()):
            if len(seat.starts) > 1 and self.handout.stalled(seat, now):
                # The first stays, begun or not: large arguments take longer than a stall to arrive, and a runner from
                # which all was taken back would be idle, be given the same again, and never begin.
                self._take_back(seat, but=1)

    def recall_all(self) -> None:
        for seat in list(self.handout.seats.values()):
            self._take_back(seat)

    def _take_back(self, seat: Seat, *, but: int = 0) -> None:
        if back := seat.recall(but=but):
            self._say(seat, Recall(len(back)))
            self._hand_back(back)

    def _hand_back(self, back: list[Start]) -> None:
        for start in back:
            self.handout.release(start.seat, start)
            if start.doom == "cancel":
                self._conclude(start.claim, "cancelled", cancelled(start.claim), start.plan.failure_ttl)
        if back:
            self.handout.weigh(back[0].seat)
        self._again([start for start in back if start.doom != "cancel"])

    def _on_seat(self, seat: Seat) -> None:
        try:
            messages = seat.channel.receive(wait=False)
        except Closed:
            self._closed(seat)
            return
        except Garbled:
            self._garbled(seat)
            return
        if seat.channel.full:
            with contextlib.suppress(Closed):
                seat.channel.flush()
                self._mind(seat)
        self._heard(seat, messages)
        if seat.channel.garbled:
            self._garbled(seat)
        elif seat.starts:
            self._start_clocks(seat, [], time.monotonic())

    def _garbled(self, seat: Seat) -> None:
        """The runner's socket carries what is no message: a job wrote into it. Nothing more can be learned there."""
        log.error("runner %d wrote what is no message into its socket: it is killed and replaced", seat.pid)
        seat.garbled = True
        self._signal(seat, "kill")
        self._closed(seat)

    def _heard(self, seat: Seat, messages: list[FromRunner]) -> None:
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Done):
                self._done(seat, message, now)
            elif isinstance(message, Say):
                self._said(seat, message)
            elif isinstance(message, Fell):
                seat.fell = message
            elif isinstance(message, Exit):
                seat.leaving = True
            elif isinstance(message, Up):
                self._up(seat, now)
            elif (start := seat.starts.get(message.token)) is not None:
                self.waste.heard(seat.number, start.claim.task, seat.kind, message)
        self.handout.weigh(seat)

    def _done(self, seat: Seat, done: Done, now: float) -> None:
        start = seat.starts.pop(done.token, None)
        if start is None:
            return
        claim = start.claim
        seat.progress = now
        seat.done += 1
        if seat.ticketed:
            self.handout.measure(claim.task, done.cost / 1e6 + len(claim.args) * CARRY)
        self.handout.release(seat, start)
        self.freed.add(seat.kind)
        self.waste.ended(claim.task)
        if done.memory and self.tally is not None:
            self.tally.grew(done.memory)
        self._conclude(claim, done.kind, done.data, done.amount, done.cost)
        self._recycle(seat, done.memory)

    def _up(self, seat: Seat, now: float) -> None:
        """A runner has started, and takes jobs from now on."""
        seat.starting, seat.born = False, now
        if seat.place is not None:
            seat.place.failures = 0
        if seat.single:
            self._tidy_at = min(self._tidy_at, now + INFANT)
        self.freed.add(seat.kind)

    def _said(self, seat: Seat, say: Say) -> None:
        start = seat.starts.get(say.token)
        if start is None:
            return
        old = self.notes.get(say.token) or Note(start.claim.id, say.token)
        share, text = (old.progress, old.text) if say.progress is None else (say.progress, say.text)
        self.notes[say.token] = Note(start.claim.id, say.token, share, text, (old.lines + say.lines)[-1000:])

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
            self._take_back(seat, but=0)
        return removed

    def renew(self, kind: str) -> None:
        """Replace the runner of a shared kind, whose size is given to it at its birth; it finishes what it runs."""
        for place in self.handout.places(kind).snapshot.members:
            if (seat := place.seat) is not None and seat.open:
                self.dismiss(seat)
                self._replace(seat, 0.0, "resized")

    def refork(self, last: int) -> None:
        """Replace the forkers up to this number: their successors are forked from a warmer image."""
        for seat in [seat for seat in self.handout.seats.values() if seat.forker and seat.number <= last and seat.open]:
            self.dismiss(seat)
            self._take_back(seat)
            # As in _recycle: what runs is waited for.
            if self.working and not seat.starts:
                self._replace(seat, 0.0, "")

    def spawn(self, kind: str) -> None:
        """Ask the supervisor for a runner."""
        self.ask(Spawn(kind, self.waste.profiles(kind)))

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
        if now >= self._tidy_at:
            self._tidy(now)
        while self._spawn_at and self._spawn_at[0][0] <= now:
            _, kind, single = heapq.heappop(self._spawn_at)
            if single:
                self.freed.add(kind)
            elif self.working:
                self.spawn(kind)

    def _tidy(self, now: float) -> None:
        """Dismiss runners whose suspect another worker took."""
        waiting = [seat for seat in self.handout.seats.values() if seat.single and seat.ready and not seat.starts]
        for seat in waiting:
            if now - seat.born >= INFANT:
                self.dismiss(seat)
        self._tidy_at = min((seat.born + INFANT for seat in waiting if seat.ready), default=float("inf"))

    def spawned(self, message: Spawned, descriptors: list[int]) -> None:
        """A runner is there, with its socket, its tickets (read and write end) and its stderr."""
        channel: Channel[FromRunner] = Channel(socket.socket(fileno=descriptors[0]), FromRunner)
        slots = self.options.slots(message.kind)
        seat = Seat(message.runner, message.kind, message.pid, slots, descriptors[1:], channel)
        seat.born, seat.forker, seat.starting = time.monotonic(), message.forker, message.starting
        seat.quota = 0 if seat.forker else self.options.recycle_jobs
        if self.handout.coming[seat.kind]:
            self.handout.coming[seat.kind] -= 1
            seat.single, seat.slots = True, 1
            if not seat.starting:
                self._tidy_at = min(self._tidy_at, seat.born + INFANT)
        self.handout.sit(seat)
        self._watched.watch(channel, lambda: self._on_seat(seat))
        self._watched.watch(seat.stderr, lambda: self._on_stderr(seat))
        self.freed.add(seat.kind)
        # Asked for when there were more places than there are now.
        surplus = seat.place is None and not seat.single
        if surplus or not self.working:
            self.dismiss(seat)

    def _on_stderr(self, seat: Seat) -> None:
        if not seat.drain_stderr():
            self._watched.unwatch(seat.stderr)
        if seat.begun and self._lines_at == float("inf"):
            self._lines_at = time.monotonic() + LINE_WAITS

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
        if seat.open and not seat.forker and (seat.kind == "fork" or seat.single or worn or fat):
            self.dismiss(seat)
            self._take_back(seat)
            # What runs one job at a time is replaced when that has ended: two of a key must not run beside each other.
            if self.working and not (seat.counted and seat.starts):
                self._replace(seat, 0.0, "memory" if fat else "jobs" if worn else "")

    def _closed(self, seat: Seat) -> None:
        """Its socket closed: it died or is leaving. The supervisor tells how; what lives on deaf and mute is killed."""
        if seat.gone:
            # The supervisor told first, in the same turn of the loop: nobody would take it off the dying any more.
            return
        self._watched.unwatch(seat.channel)
        self._dying[seat.number] = seat
        self.handout.seats.pop(seat.number, None)
        seat.gone = True
        self.handout.weigh(seat)
        if seat.starts or not seat.leaving:
            self._signal(seat, "kill")

    def died(self, died: Died) -> None:
        """A runner was reaped: its last words count, its unstarted jobs come back, the running one ended somehow."""
        seat = self._dying.pop(died.runner, None) or self.handout.seats.pop(died.runner, None)
        if seat is None:
            return
        with contextlib.suppress(Closed, Garbled):
            while messages := seat.channel.receive(wait=False):
                self._heard(seat, messages)
        seat.gone = True
        seat.drain_stderr()
        if seat.fell is not None:
            died = Died(seat.number, seat.fell.signal, seat.fell.code, seat.fell.memory)
        back, running = seat.recall(), list(seat.starts.values())
        seat.starts.clear()
        self._watched.unwatch(seat.channel)
        self._watched.unwatch(seat.stderr)
        seat.close()
        for start in running:
            self._broken(start, seat, died)
        now = time.monotonic()
        pause = 0.0 if running else _pause_after(seat, now)
        if seat.single and pause:
            heapq.heappush(self._spawn_at, (now + pause, seat.kind, True))
        else:
            # A suspect that was handed back since there were enough runners for such jobs may come again.
            self.freed.add(seat.kind)
        self._replace(seat, now + pause if pause else 0.0, "" if seat.leaving else _how(died))
        self._hand_back(back)

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

    def _broken(self, start: Start, seat: Seat, died: Died) -> None:
        """Decide what the death of its runner means for one start."""
        claim, plan = start.claim, start.plan
        error = JobError(
            type="Crashed",
            message=_GARBLED if seat.garbled else _how(died),
            attempt=claim.attempt,
            signal=died.signal or None,
            exit_code=None if died.signal else died.code,
            peak_memory=died.memory,
            stderr=seat.tail.decode("utf-8", "replace"),
            worker=self.place,
        )
        doom = start.doom or ("other" if seat.condemned or self._killing else "")
        kind, data, amount = of_death(plan, claim, doom, error, random.random())
        self._conclude(claim, kind, data, amount)

    # -- limits and cancellations -----------------------------------------------------------------------------------

    def enforce(self, now: float) -> None:
        """Stop what ran past a limit; pass on lines of stderr that nobody ended for long."""
        if now >= self._lines_at:
            self._lines_at = float("inf")
            for seat in self.handout.seats.values():
                seat.end_line()
        for deadline in self.limits.due(now):
            for seat in list(self.handout.seats.values()):
                if (start := seat.starts.get(deadline.token)) is not None:
                    self._stop(seat, start, deadline.stage, now)

    def cancel(self, id: str, now: float) -> None:
        """Stop a job that was cancelled: before it starts if that is possible, else as a soft limit would."""
        for seat in list(self.handout.seats.values()):
            for start in list(seat.starts.values()):
                if start.claim.id != id or start.doom:
                    continue
                start.doom = "cancel"
                if start.claim.token != seat.current:
                    self._take_back(seat)
                if start.claim.token in seat.starts:
                    self._stop(seat, start, "cancel", now)
                    self.limits.cancel(start, now)

    def shut_down(self, now: float) -> None:
        """Tell every job that runs that its worker stops."""
        self._stop_all("shutdown", now)

    def interrupt(self, now: float) -> None:
        """Raise ``JobInterrupted`` in every job that runs; from now on its end by whatever cause is free of charge."""
        self._stop_all("interrupt", now)

    def _stop_all(self, reason: Literal["shutdown", "interrupt"], now: float) -> None:
        for seat in list(self.handout.seats.values()):
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
        self.ask(Signal(seat.number, what))

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

    def abandon(self) -> None:
        """There is no supervisor any more: end every runner by ourselves and count what they ran."""
        self.working = False
        for seat in list(self.handout.seats.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(seat.pid, signal.SIGKILL)
        for number in [*self.handout.seats, *self._dying]:
            self.died(Died(number, signal.SIGKILL, 0, 0))


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


def _how(died: Died) -> str:
    if died.signal:
        name = signal.Signals(died.signal).name if died.signal in set(signal.Signals) else f"signal {died.signal}"
        return f"its process was ended by {name}"
    return f"its process left with exit code {died.code}"
