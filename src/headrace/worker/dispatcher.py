"""The dispatcher: the only one in a worker that talks to the store for claiming. Never runs user code.

Its duties, each with its own module:

1. claim batches and hand them out (handout.py, seat.py);
2. collect outcomes and settle them in batches; one round trip settles and claims;
3. keep limits and cancellations (limits.py);
4. renew the lease, promote, reclaim, sweep, unpark (upkeep.py), travelling with the same round trips;
5. stop its runners before its lease ends when it cannot renew it (self-fencing);
6. on shutdown finish or hand back everything, then leave.

One loop, one thread, no blocking call but a connect: every event is a readable descriptor or a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from redis import exceptions as driver

from headrace.connection import pause_before, verdict
from headrace.errors import HeadraceError
from headrace.job import Claim, JobError, Outcome, error_json
from headrace.keys import keys_of
from headrace.protocol import consume
from headrace.script import load
from headrace.settings import microseconds
from headrace.worker.handout import STALL, Handout
from headrace.worker.limits import Limits
from headrace.worker.link import Link
from headrace.worker.options import WorkerOptions
from headrace.worker.seat import Seat, Start
from headrace.worker.upkeep import Step, Upkeep
from headrace.worker.wire import (
    Channel,
    Closed,
    Died,
    Done,
    Drain,
    Exit,
    FromRunner,
    FromSupervisor,
    Owner,
    Say,
    Signal,
    Spawn,
    Spawned,
    Stop,
)

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")

SETTLE_MOST = 1000
# While every runner still has work ahead, outcomes gather for this long (seconds), so that a trip carries many.
GATHER = 0.001
NOTES_EVERY = 0.25
WAKE_WAIT = 30.0
_SCRIPTS = ("claim", "settle", "register", "renew", "reclaim", "retire", "promote", "sweep", "unpark", "note")


class Dispatcher:
    """One incarnation after another of one worker's claiming side.

    Attributes:
        state: ``working``, ``draining`` (no claims; what runs may finish) or ``left``.
        owner: the current incarnation's name; empty before it is registered.
    """

    def __init__(self, app: Headrace, options: WorkerOptions, control: Channel[FromSupervisor], place: str) -> None:
        self.app = app
        self.settings = app.settings
        self.options = options
        self.control = control
        self.place = place
        self.keys = keys_of(self.settings.namespace)
        self.state = "working"
        self.owner = ""
        self.handout = Handout(self.settings.ahead)
        self.limits = Limits(self.settings.hard_grace)
        self.upkeep = Upkeep(self.keys, self.settings, app.tasks)
        self.outcomes: deque[tuple[Outcome, int]] = deque()
        self.notes: dict[int, consume.Note] = {}
        self.kinds = tuple(sorted({task.kind for task in app.tasks.values()})) or ("process",)
        self.finished = 0
        self._dying: dict[int, Seat] = {}
        self._pending: dict[str, int] = dict.fromkeys(self.kinds, 0)
        self._blocked: dict[str, str] = {}
        self._spawn_at: deque[tuple[float, str]] = deque()
        self._link: Link | None = None
        self._waker: Link | None = None
        self._mail: Link | None = None
        self._inflight: list[Step] = []
        self._connect_at = 0.0
        self._failures = 0
        self._request = 0
        self._empty = False
        self._first_outcome = 0.0
        self._notes_at = 0.0
        self._stop_at: float | None = None
        self._killed = False
        self._fenced = False
        self._single = False
        self._all = selectors.DefaultSelector()
        # The store and the supervisor only: what the loop waits for while runners have plenty to do.
        self._urgent = selectors.DefaultSelector()
        self._watch(control, self._on_control, urgent=True)

    def run(self, predecessor: str) -> None:
        """Work until told to drain, then leave; returns when nothing is held any more.

        Args:
            predecessor: the incarnation that this one takes over from, or empty.
        """
        if predecessor:
            self.upkeep.victims.append((predecessor, True))
        for kind in self.kinds:
            for _ in range(self.options.runners(kind)):
                self._spawn(kind)
        while self.state != "left":
            self._wait()
            self._tick(time.monotonic())

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        now = time.monotonic()
        pause = max(0.0, self._next(now) - now)
        if self.handout.ahead_now > 8:
            # Runners are busy for a while: do not wake for each outcome, let them gather.
            events = self._urgent.select(min(pause, GATHER)) or self._all.select(0)
        else:
            events = self._all.select(pause)
        for key, _ in events:
            if key.fileobj in self._all.get_map():
                key.data()

    def _next(self, now: float) -> float:
        """When the loop must run again although nothing happens."""
        times = [now + 60.0]
        if self._link is None:
            times.append(self._connect_at)
        elif self._link.busy:
            times.append(self._link.deadline)
        elif self.owner:
            times.append(self.upkeep.next)
            if self.outcomes:
                times.append(self._first_outcome + (GATHER if self.handout.ahead_now else 0.0))
            if self.notes:
                times.append(self._notes_at)
        if self._waker and self._waker.busy:
            times.append(self._waker.deadline)
        if (limit := self.limits.next) is not None:
            times.append(limit)
        if any(len(seat.starts) > 1 and seat.ticketed for seat in self.handout.seats.values()):
            times.append(now + STALL)
        if self.owner and not self._fenced:
            times.append(self._fence_at)
        if self._stop_at is not None:
            times.append(self._stop_at)
        if self._spawn_at:
            times.append(self._spawn_at[0][0])
        return min(times)

    def _tick(self, now: float) -> None:
        self._enforce(now)
        self._recall_stalled(now)
        self._respawn(now)
        self._keep_connected(now)
        self._leave_when_done(now)
        if self.owner and now >= self._fence_at:
            self._fence()
        else:
            self._fenced = False
        self._exchange(now)
        self._arm_waker(now)

    def _watch(self, source: Any, handler: Callable[[], None], *, urgent: bool = False) -> None:
        self._all.register(source, selectors.EVENT_READ, handler)
        if urgent:
            self._urgent.register(source, selectors.EVENT_READ, handler)

    def _unwatch(self, source: Any) -> None:
        for selector in (self._all, self._urgent):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(source)

    # -- the store --------------------------------------------------------------------------------------------------

    def _keep_connected(self, now: float) -> None:
        for link in (self._link, self._waker):
            if link is not None and link.busy and now >= link.deadline:
                self._disconnected(driver.TimeoutError("the reply is overdue"))
                return
        if self._link is not None or now < self._connect_at:
            return
        try:
            target = self.app.store.target
            self._link = Link(target, [load(name) for name in _SCRIPTS])
            self._waker = Link(target)
            if self.owner:
                self._subscribe()
        except (driver.RedisError, OSError) as error:
            self._disconnected(error)
            return
        if self._failures:
            log.info("connected to %s again", target.shown)
        self._failures = 0
        self._watch(self._link, self._on_reply, urgent=True)
        self._watch(self._waker, self._on_wake, urgent=True)
        # What was under way is sent again with its numbers, so that a lost reply changes nothing.
        self._resend()

    def _subscribe(self) -> None:
        if self._mail is not None:
            self._unwatch(self._mail)
            self._mail.close()
        self._mail = Link(self.app.store.target)
        self._mail.send([("SUBSCRIBE", self.keys.mail(self.owner))])
        self._mail.receive()
        self._watch(self._mail, self._on_mail, urgent=True)

    def _disconnected(self, error: Exception) -> None:
        """Throw every connection away: a late reply must not answer another question."""
        for link in (self._link, self._waker, self._mail):
            if link is not None:
                self._unwatch(link)
                link.close()
        self._link = self._waker = self._mail = None
        self._failures += 1
        self._connect_at = time.monotonic() + pause_before(self._failures, random.random())
        if self._failures in (1, 5) or self._failures % 30 == 0:
            log.warning("the store does not answer (%s); trying again", error)

    def _resend(self) -> None:
        if self._inflight and self._link is not None:
            self._link.send([call.command() for call, _ in self._inflight], self._patience)

    @property
    def _patience(self) -> float:
        return max(0.1, min(5.0, self.settings.lease / 3))

    def _exchange(self, now: float) -> None:
        """Send everything that is due in one round trip: outcomes, housekeeping, then a claim."""
        if self._link is None or self._link.busy or self._inflight:
            return
        steps = self._register_steps(now) if not self.owner else self._steps(now)
        if not steps:
            return
        self._inflight = steps
        try:
            self._resend()
        except (driver.RedisError, OSError) as error:
            self._disconnected(error)

    def _register_steps(self, now: float) -> list[Step]:
        if self.state != "working":
            return []
        owner = f"{self.place}:{os.urandom(4).hex()}"
        facts: list[str | int] = [
            "place", self.place, "queues", ",".join(self.options.queues.names), "kinds", ",".join(self.kinds),
            "runners", sum(self.options.runners(kind) for kind in self.kinds),
        ]  # fmt: skip
        call = consume.register(self.keys, owner, microseconds(self.settings.lease), facts)
        return [(call, lambda _: self._registered(owner, now))]

    def _registered(self, owner: str, sent: float) -> None:
        self.owner, self._fenced, self._empty = owner, False, False
        self.upkeep.begin(owner, sent)
        self.control.send(Owner(owner))
        self._subscribe()
        log.info("worker %s serves %s", owner, ", ".join(self.options.queues.names))

    def _steps(self, now: float) -> list[Step]:
        steps: list[Step] = []
        room = self._wanted(now)
        if self.outcomes and (room or now >= self._first_outcome + GATHER or not self.handout.ahead_now):
            steps += self._note_steps() + self._settle_steps()
        elif self.notes and now >= self._notes_at:
            steps += self._note_steps()
        if now >= self.upkeep.next:
            steps += self.upkeep.steps(now)
        if room:
            self._request += 1
            names = self._order()
            call = consume.claim(self.keys, self.owner, self._request, room, names)
            steps.append((call, lambda reply: self._claimed(reply, room, names)))
        return steps

    def _settle_steps(self) -> list[Step]:
        most = 1 if self._single else SETTLE_MOST
        batch = [self.outcomes.popleft() for _ in range(min(most, len(self.outcomes)))]
        self._request += 1
        return [(consume.settle(self.keys, self.owner, self._request, batch), self._settled)]

    def _note_steps(self) -> list[Step]:
        if not self.notes:
            return []
        notes, self.notes = list(self.notes.values())[:1000], {}
        return [(consume.note(self.keys, self.owner, notes), lambda _: None)]

    def _wanted(self, now: float) -> int:
        """How many jobs to claim now."""
        if self.state != "working" or self._fenced or self._empty or len(self._blocked) == len(self.options.queues.names):
            return 0
        room = self.handout.room(now)
        if self.options.max_jobs:
            room = min(room, self.options.max_jobs - self.finished - self.handout.running)
        return max(0, min(room, 1000))

    def _order(self) -> tuple[str, ...]:
        queues = self.options.queues
        names = queues.arrange([random.random() for _ in queues.names] if queues.weights else [])
        return tuple(name for name in names if name not in self._blocked)

    def _on_reply(self) -> None:
        link = self._link
        if link is None:
            return
        try:
            replies = link.receive()
        except (driver.RedisError, OSError) as error:
            self._disconnected(error)
            return
        steps, self._inflight = self._inflight, []
        failed = [(step, reply) for step, reply in zip(steps, replies, strict=True) if isinstance(reply, Exception)]
        for (call, handler), reply in zip(steps, replies, strict=True):
            if not isinstance(reply, Exception):
                handler(call.parse(reply))
        if failed:
            self._refused(failed)

    def _refused(self, failed: list[tuple[Step, Exception]]) -> None:
        """The server answered with errors: repeat what can be repeated, give up what cannot, never stop working."""
        (call, _), error = failed[0]
        word = verdict(error, self.app.store.target, call.script.name)
        self._inflight = [step for step, _ in failed]
        if word == "load" and self._link is not None:
            self._link.load([load(name) for name in _SCRIPTS])
            self._resend()
        elif word == "again":
            self._disconnected(error)
        else:
            log.error("%s", word)
            self._disconnected(error)

    def _settled(self, reply: consume.Settled) -> None:
        if reply.stale:
            log.warning("refused: %s; a newer start of each owns it", ", ".join(reply.stale[:10]))
        self._single = False
        self._first_outcome = time.monotonic()
        self.upkeep.learn_kept(reply.kept, reply.bytes, time.monotonic())

    # -- claims and runners -----------------------------------------------------------------------------------------

    def _claimed(self, reply: consume.Claimed, asked: int, names: tuple[str, ...]) -> None:
        if not reply.alive:
            self.upkeep.gone = True
            return
        now = time.monotonic()
        self.upkeep.learn_due(now, reply.now, reply.due)
        self._empty = len(reply.jobs) + len(reply.lost) < asked
        for id in reply.lost:
            log.error("job %s was ready, but its record is gone or alien; it left the queue", id)
        self._place(reply.jobs, now)
        if self._empty and self.options.burst and not reply.due and not self.handout.running:
            self._drain(now=False)

    def _place(self, claims: list[Claim], now: float) -> None:
        """Hand claims out; what fits nowhere goes back to the server, where another worker may take it."""
        batches: dict[int, list[Start]] = {}
        for claim in claims:
            task = self.app.tasks.get(claim.task)
            if task is None:
                log.warning("job %s wants the unknown task %s: parked until a worker knows it", claim.id, claim.task)
                self._conclude(claim, "parked")
                continue
            try:
                plan = task.plan(claim.options)
            except (HeadraceError, msgspec.MsgspecError) as error:
                text = error_json(JobError(type="Corrupt", message=str(error), attempt=claim.attempt))
                self._conclude(claim, "corrupt", text, microseconds(self.settings.keep_failed))
                continue
            seat = self.handout.choose(task.kind, claim.task, claim.crashes > 0, now) if self.state == "working" else None
            if seat is None:
                self._conclude(claim, "released")
                self._blocked[claim.queue] = task.kind
                continue
            start = Start(claim, plan, seat)
            self.handout.assign(seat, start, now)
            batches.setdefault(seat.number, []).append(start)
        for number, batch in batches.items():
            seat = self.handout.seats[number]
            with contextlib.suppress(Closed):
                seat.give(batch)
            self._begin(seat, batch, now)

    def _begin(self, seat: Seat, batch: list[Start], now: float) -> None:
        """Start the clocks of the limits: of each job where all run at once, of the first where they wait in line."""
        if not seat.counted:
            for start in batch:
                self.limits.begin(start, now)
            return
        first = next(iter(seat.starts.values()), None)
        if first is not None and first.claim.token != seat.current:
            seat.current = first.claim.token
            self.limits.begin(first, now)

    def _conclude(self, claim: Claim, kind: str, data: bytes = b"", amount: int = 0) -> None:
        if not self.outcomes:
            self._first_outcome = time.monotonic()
        self.outcomes.append((Outcome(claim.id, claim.token, kind, data, amount), claim.ready))

    def _on_seat(self, seat: Seat) -> None:
        try:
            messages = seat.channel.receive(wait=False)
        except Closed:
            self._closed(seat)
            return
        now = time.monotonic()
        for message in messages:
            if isinstance(message, Done):
                self._done(seat, message, now)
            else:
                self._said(seat, message)
        if seat.starts:
            self._begin(seat, [], now)

    def _done(self, seat: Seat, done: Done, now: float) -> None:
        start = seat.starts.pop(done.token, None)
        if start is None:
            return
        seat.progress = now
        seat.done += 1
        self.finished += 1
        if seat.ticketed:
            self.handout.measure(start.claim.task, done.cost / 1e6)
        self.handout.release(seat, start)
        self._conclude(start.claim, done.kind, done.data, done.amount)
        if done.kind in ("failed", "retry", "corrupt"):
            log.warning("job %s (%s), start %d: %s", start.claim.id, start.claim.task, start.claim.attempt, done.kind)
        if self._blocked:
            self._blocked = {queue: kind for queue, kind in self._blocked.items() if kind != seat.kind}
        self._recycle(seat, done.memory)
        if self.options.max_jobs and self.finished >= self.options.max_jobs and self.state == "working":
            self._drain(now=False)

    def _recycle(self, seat: Seat, memory: int) -> None:
        options = self.options
        worn = options.recycle_jobs and seat.done >= options.recycle_jobs
        fat = options.recycle_memory and memory > options.recycle_memory
        if seat.open and (seat.kind == "fork" or worn or fat):
            seat.leaving = True
            self._place_again(seat.recall(), time.monotonic())
            with contextlib.suppress(Closed):
                seat.channel.offer(Exit())
            if self.state == "working":
                self._spawn(seat.kind)

    def _said(self, seat: Seat, say: Say) -> None:
        start = seat.starts.get(say.token)
        if start is None:
            return
        if not self.notes:
            self._notes_at = time.monotonic() + NOTES_EVERY
        old = self.notes.get(say.token)
        lines = (old.lines if old else ()) + say.lines
        share, text = (say.progress, say.text) if say.progress is not None else (old.progress, old.text) if old else (None, "")
        self.notes[say.token] = consume.Note(start.claim.id, say.token, share, text, lines[-1000:])

    def _recall_stalled(self, now: float) -> None:
        for seat in self.handout.seats.values():
            if seat.ticketed and len(seat.starts) > 1 and self.handout.stalled(seat, now):
                self._place_again(seat.recall(), now)

    def _place_again(self, back: list[Start], now: float) -> None:
        for start in back:
            self.handout.release(start.seat, start)
        doomed = [start for start in back if start.doom == "cancel"]
        for start in doomed:
            self._conclude(start.claim, "cancelled", _cancelled(start), start.plan.keep_failed)
        self._place([start.claim for start in back if not start.doom], now)

    # -- runners come and go ----------------------------------------------------------------------------------------

    def _spawn(self, kind: str) -> None:
        self._pending[kind] += 1
        self.control.send(Spawn(kind))

    def _respawn(self, now: float) -> None:
        while self._spawn_at and self._spawn_at[0][0] <= now:
            kind = self._spawn_at.popleft()[1]
            if self.state == "working":
                self._spawn(kind)

    def _on_control(self) -> None:
        try:
            messages = self.control.receive_with_descriptors()
        except Closed:
            self._orphaned()
            return
        for message in messages:
            match message:
                case Spawned():
                    self._spawned(message)
                case Died():
                    self._died(message)
                case Drain():
                    self._drain(now=message.now)

    def _spawned(self, message: Spawned) -> None:
        import socket

        fds = [self.control.descriptors.popleft() for _ in range(4)]
        channel: Channel[FromRunner] = Channel(socket.socket(fileno=fds[0]), FromRunner)
        seat = Seat(message.runner, message.kind, message.pid, self.options.slots(message.kind), fds[1:], channel)
        seat.born = time.monotonic()
        self._pending[message.kind] -= 1
        self.handout.seats[message.runner] = seat
        self._watch(channel, lambda: self._on_seat(seat))
        self._watch(seat.stderr, lambda: self._on_stderr(seat))
        self._blocked = {queue: kind for queue, kind in self._blocked.items() if kind != seat.kind}
        if self.state != "working":
            self._dismiss(seat)

    def _on_stderr(self, seat: Seat) -> None:
        if not seat.drain_stderr():
            self._unwatch(seat.stderr)

    def _dismiss(self, seat: Seat) -> None:
        seat.leaving = True
        with contextlib.suppress(Closed):
            seat.channel.offer(Exit())

    def _closed(self, seat: Seat) -> None:
        """A runner's socket closed: it died or is leaving. The supervisor tells how; if it lives on, it is killed."""
        self._unwatch(seat.channel)
        self._dying[seat.number] = seat
        self.handout.seats.pop(seat.number, None)
        seat.gone = True
        if seat.starts or not seat.leaving:
            self._signal(seat, "kill")

    def _died(self, died: Died) -> None:
        seat = self._dying.pop(died.runner, None) or self.handout.seats.pop(died.runner, None)
        if seat is None:
            return
        with contextlib.suppress(Closed):
            # Its last words were sent before it died: an outcome in them counts.
            while messages := seat.channel.receive(wait=False):
                for message in messages:
                    if isinstance(message, Done):
                        self._done(seat, message, time.monotonic())
        now = time.monotonic()
        seat.gone = True
        seat.drain_stderr()
        back, running = seat.recall(), list(seat.starts.values())
        seat.starts.clear()
        self._unwatch(seat.channel)
        self._unwatch(seat.stderr)
        seat.close()
        for start in running:
            self._broken(start, seat, died)
        if self.state == "working" and not seat.leaving:
            idle_death = not running and now - seat.born < 1.0
            # A runner that dies as soon as it is born would be forked in a hot loop.
            self._spawn_at.append((now + (1.0 if idle_death else 0.0), seat.kind))
        self._place_again(back, now)

    def _broken(self, start: Start, seat: Seat, died: Died) -> None:
        """Decide what the death of its runner means for one start."""
        claim, plan = start.claim, start.plan
        error = JobError(
            type="Crashed",
            message=_how(died),
            attempt=claim.attempt,
            signal=died.signal or None,
            exit_code=None if died.signal else died.code,
            peak_memory=died.memory,
            stderr=seat.tail.decode("utf-8", "replace"),
            worker=self.place,
        )
        if start.doom == "cancel":
            self._conclude(claim, "cancelled", _cancelled(start), plan.keep_failed)
        elif start.doom == "hard":
            error = msgspec.structs.replace(error, type="HardTimeLimit", message="it ran past its hard time limit and was killed")
            if claim.failures < plan.retry.max:
                wait = plan.retry.wait(claim.failures + 1, random.random())
                self._conclude(claim, "retry", error_json(error), microseconds(wait))
            else:
                self._conclude(claim, "failed", error_json(error), plan.keep_failed)
        elif seat.condemned or self._killed or start.doom == "shutdown":
            error = msgspec.structs.replace(error, type="Lost", message="its runner was stopped for another reason")
            self._conclude(claim, "interrupted", error_json(error), plan.keep_failed)
        else:
            log.error("job %s (%s), start %d: %s", claim.id, claim.task, claim.attempt, error.message)
            self._conclude(claim, "crashed", error_json(error), plan.keep_failed)

    def _signal(self, seat: Seat, what: str) -> None:
        with contextlib.suppress(Closed):
            self.control.send(Signal(seat.number, what))

    # -- limits and cancellations -----------------------------------------------------------------------------------

    def _enforce(self, now: float) -> None:
        for deadline in self.limits.due(now):
            for seat in self.handout.seats.values():
                start = seat.starts.get(deadline.token)
                if start is not None:
                    self._stop(seat, start, deadline.stage)
                    break
        while self.upkeep.cancels:
            self._cancel(self.upkeep.cancels.popleft(), now)

    def _stop(self, seat: Seat, start: Start, stage: str) -> None:
        if stage == "hard":
            start.doom = start.doom if start.doom == "cancel" else "hard"
            seat.condemned = True
            self._signal(seat, "kill")
            return
        with contextlib.suppress(Closed):
            seat.channel.offer(Stop(start.claim.token, stage))
        if seat.kind != "thread":
            self._signal(seat, "stop")

    def _cancel(self, id: str, now: float) -> None:
        for seat in self.handout.seats.values():
            for start in seat.starts.values():
                if start.claim.id != id or start.doom:
                    continue
                start.doom = "cancel"
                if seat.ticketed and start.claim.token != seat.current:
                    self._place_again(seat.recall(), now)
                if start.claim.token in seat.starts:
                    self._stop(seat, start, "cancel")
                    self.limits.cancel(start, now)
                return

    def _on_mail(self) -> None:
        mail = self._mail
        if mail is None:
            return
        try:
            message = mail.listen()
        except (driver.RedisError, OSError) as error:
            self._disconnected(error)
            return
        if message[0] == b"message":
            self.upkeep.cancels.append(message[2].decode())

    # -- waiting for work -------------------------------------------------------------------------------------------

    def _arm_waker(self, now: float) -> None:
        """Sleep on the queues' wake-up keys when they are empty and there is room; nothing is polled."""
        if self.upkeep.moved:
            self.upkeep.moved, self._empty = False, False
        waker = self._waker
        if waker is None or waker.busy or not self._empty or self.state != "working" or not self.owner or self._fenced:
            return
        if not self.handout.room(now):
            return
        names = [self.keys.wake(name) for name in self.options.queues.names]
        try:
            waker.send([("BLPOP", *names, WAKE_WAIT)], WAKE_WAIT + 5.0)
        except (driver.RedisError, OSError) as error:
            self._disconnected(error)

    def _on_wake(self) -> None:
        waker = self._waker
        if waker is None:
            return
        try:
            reply = waker.receive()[0]
        except (driver.RedisError, OSError, IndexError) as error:
            self._disconnected(error if isinstance(error, Exception) else driver.ConnectionError("closed"))
            return
        if isinstance(reply, Exception):
            self._disconnected(reply)
        else:
            # After an empty wait, too: a token may have died with the dispatcher that took it.
            self._empty = False

    # -- lease lost, shutdown ---------------------------------------------------------------------------------------

    @property
    def _fence_at(self) -> float:
        if self.upkeep.gone:
            return 0.0
        return self.upkeep.lease_until - min(1.0, self.settings.lease / 10)

    def _fence(self) -> None:
        """Stop what runs before somebody else may start it, and begin a new incarnation when the store is back."""
        if not self._fenced:
            log.error("the lease of %s could not be kept: stopping its jobs", self.owner)
            self._fenced = True
            for seat in list(self.handout.seats.values()):
                if seat.starts:
                    seat.condemned = True
                    self._signal(seat, "kill")
        if self.handout.running or self._dying or self._link is None or self._link.busy or self._inflight:
            return
        # Nobody may have taken over (the server itself was away): then what was lost here is handed back, uncharged.
        old = self.owner
        if self.outcomes:
            self._inflight = self._settle_steps()
            self._resend()
        else:
            self.upkeep.victims.append((old, True))
            self.owner = ""

    def _drain(self, *, now: bool) -> None:
        if self.state == "working":
            log.info("stopping: %d jobs run", self.handout.running)
            self.state = "draining"
            self._stop_at = time.monotonic() + (0.0 if now else self.settings.grace)
            for seat in list(self.handout.seats.values()):
                for start in seat.recall():
                    self.handout.release(seat, start)
                    self._conclude(start.claim, "released")
                if not seat.starts:
                    self._dismiss(seat)
        elif now:
            self._stop_at = time.monotonic()

    def _leave_when_done(self, now: float) -> None:
        if self.state != "draining":
            return
        for seat in self.handout.seats.values():
            if not seat.starts and not seat.leaving:
                self._dismiss(seat)
        if self.handout.running or any(seat.starts for seat in self._dying.values()):
            if self._stop_at is not None and now >= self._stop_at and not self._killed:
                self._kill_all()
            return
        idle = self._link is not None and not self._link.busy and not self._inflight
        if not self.owner or (self._stop_at is not None and now >= self._stop_at + 10.0):
            self.state = "left"
        elif idle and not self.outcomes and not self.notes:
            self._inflight = [(consume.retire(self.keys, self.owner), self._retired)]
            self._resend()

    def _kill_all(self) -> None:
        log.warning("the grace is over: stopping %d jobs; they are handed back", self.handout.running)
        self._killed = True
        self._stop_at = time.monotonic()
        for seat in self.handout.seats.values():
            for start in seat.starts.values():
                start.doom = start.doom or "shutdown"
            self._signal(seat, "kill")

    def _retired(self, _: bool) -> None:
        self.state = "left"

    def _orphaned(self) -> None:
        """The supervisor died. Its runners are stopped, what they ran is settled, and nobody restarts us: leave."""
        self._unwatch(self.control)
        log.error("the supervisor died: stopping")
        for seat in list(self.handout.seats.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(seat.pid, 9)
            self._died(Died(seat.number, 9, 0, 0))
        for number in list(self._dying):
            self._died(Died(number, 9, 0, 0))
        self.state = "draining"
        self._stop_at = time.monotonic()


def _how(died: Died) -> str:
    if died.signal:
        return f"its process was ended by signal {died.signal}"
    return f"its process left with exit code {died.code}"


def _cancelled(start: Start) -> bytes:
    return error_json(JobError(type="Cancelled", message="cancelled while it ran", attempt=start.claim.attempt))
