"""Duties for what the application's code declares: schedules, hooks and alarms. Sends nothing, runs no code of users.

No dispatcher is a leader: each that sleeps until a tick fires it, and the script lets one of them count. Once a second
:class:`OwnCalls` asks for the events behind the cursor of each hook; a script stores the job of the call and moves the
cursor, unless another dispatcher has moved it: each event is in one job of each hook. The reply names the one
dispatcher that looks at alarms, every ten seconds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from headrace.errors import HeadraceError
from headrace.model.activity import HOOK_TASKS, event_of
from headrace.model.ids import make_id, ordered_id
from headrace.protocol import operations, ticks
from headrace.protocol.keys import Keys
from headrace.protocol.operations import DueCall
from headrace.schedules.timetables import AHEAD, Search, Timing, refilled
from headrace.worker.dispatcher.dispatcher_events import Step
from headrace.worker.dispatcher.worker_state import NEVER, Desk, Worker

# Schedules that one trip declares, fires or refills, and timetables that are reckoned for one: some 10 ms of
# the server or of this process each, since jobs must be served in between.
DECLARE = 100
FIRE = 300
REFILL = 300
RECKON = 20
# Seconds after which a schedule is declared again. A newer worker declared it otherwise, and may have left; or its
# record cannot be read, and a person may have deleted it since.
AGAIN = 10.0
# Seconds between two walks over all schedules; a walk also begins when the server's clock was set back by so much.
WALK = 300.0
BACK = 3600.0
# Seconds by which a worker fires later that cannot reckon each schedule: the first to fire is asked for ticks.
LATE = 0.5
# The scripts of its calls.
TICKING = ("schedule_declare", "refill", "schedule_walk", "fire")

_timing = msgspec.msgpack.Decoder(Timing)


class TickDuty:
    """Times are this process's monotonic seconds, except where they are the server's microseconds."""

    makes_ready = True

    def __init__(self, keys: Keys, rows: Sequence[ticks.Row], log: Callable[..., None]) -> None:
        self._keys, self._rows, self._log = keys, rows, log
        self._owner = ""
        self._declaring: deque[ticks.Row] = deque()
        self._declare_at = NEVER
        self._wanting: deque[ticks.Wanting] = deque()
        self._fire_at = NEVER
        # The server's clock at the last answer, and when that came.
        self._server: tuple[int, float] = (0, 0.0)
        # When the next tick is due, on the server's clock; 0: there is none.
        self._due: int = 0
        # When the next walk begins, and the name behind which this one goes on.
        self._walk_at = NEVER
        self._walked = ""
        # Schedules that this machine cannot reckon, which was said.
        self._refused = set[str]()

    def begin(self, owner: str, now: float) -> None:
        self._owner = owner
        self._walk_at = NEVER
        self.declare_anew(now)

    def declare_anew(self, now: float) -> None:
        """Other code has changed schedules: those of this code count again when its workers have left."""
        self._declaring = deque(self._rows)
        self._declare_at = now if self._rows else NEVER

    @property
    def at(self) -> float:
        return 0.0 if self._wanting else min(self._declare_at, self._fire_at, self._walk_at)

    def learn(self, now: float, server_now: int, due: int | None) -> None:
        then, at = self._server
        self._server = server_now, now
        due = self._due if due is None else due
        self._due = due
        if due and self._walk_at == NEVER:
            self._walk_at = now
        elif then and server_now - then < (now - at - BACK) * 1e6:
            self._walk_at, self._walked = now, ""
        late = LATE if self._refused else 0.0
        self._fire_at = now + max(0, due - server_now) / 1e6 + late if due else NEVER

    def steps(self, now: float) -> list[Step]:
        found: list[Step] = []
        if now >= self._declare_at:
            found.append(self._declare(now))
        if self._wanting and (step := self._refill(now)) is not None:
            found.append(step)
        if now >= self._walk_at:
            self._walk_at = now + WALK
            found.append((ticks.walk_schedules(self._keys, self._walked), lambda reply: self._walked_on(reply, now)))
        if now >= self._fire_at:
            self._fire_at = NEVER
            found.append((ticks.fire(self._keys, FIRE), lambda reply: self._fired(reply, now)))
        return found

    def _declare(self, now: float) -> Step:
        rows = [self._declaring.popleft() for _ in range(min(DECLARE, len(self._declaring)))]
        self._declare_at = now if self._declaring else NEVER

        def declared(words: Sequence[str]) -> None:
            for row, word in zip(rows, words, strict=True):
                if word in ("superseded", "unreadable"):
                    self._declaring.append(row)
                    self._declare_at = now + AGAIN
                elif word == "taken":
                    text = "schedule %s is not that of this code: one of this name was stored otherwise; delete it"
                    self._log(logging.WARNING, text, row[0], code="schedule.taken")

        return ticks.declare(self._keys, self._owner, rows), declared

    def _fired(self, reply: ticks.Fired, sent: float) -> None:
        self.learn(sent, reply.now, reply.due)
        self._wanting.extend(reply.wanting)
        for name in reply.broken:
            text = "schedule %s: its record cannot be read; delete and declare it anew"
            self._log(logging.ERROR, text, name, code="schedule.unreadable")

    def _walked_on(self, reply: ticks.Walked, now: float) -> None:
        self._walked = reply.after
        if reply.after:
            self._walk_at = now
        self.learn(now, reply.now, reply.due)
        for name in reply.rewound:
            text = "the server's clock was set back: schedule %s is reckoned anew from now"
            self._log(logging.WARNING, text, name, code="schedule.rewound")

    def _refill(self, now: float) -> Step | None:
        server_now, then = self._server
        moment = server_now + round((now - then) * 1e6)
        refills: list[ticks.Refill] = []
        # What costs is a timetable, and many schedules may share one.
        different = set[tuple[bytes, int]]()
        for _ in range(REFILL):
            if not self._wanting or len(different) == RECKON:
                break
            wants = self._wanting.popleft()
            different.add((wants.about, wants.known))
            try:
                timing, nominal, search = _following(wants.about, wants.known, max(wants.known, moment), wants.missed)
            except (HeadraceError, msgspec.MsgspecError) as error:
                if wants.name not in self._refused:
                    self._refused.add(wants.name)
                    text = "this worker cannot reckon the ticks of schedule %s: %s"
                    self._log(logging.ERROR, text, wants.name, error, code="schedule.failed")
                continue
            pairs = [(tick, timing.due(wants.name, tick)) for tick in nominal]
            ahead = len(nominal) - len(search.ticks) < AHEAD
            refills.append(ticks.Refill(wants, pairs, search.passed, search.more, ahead))
        if not refills:
            return None

        return ticks.refill(self._keys, refills), lambda reply: self.learn(now, *reply[1:])


@lru_cache(256)
def _following(about: bytes, known: int, now: int, missed: int) -> tuple[Timing, list[int], Search]:
    timing = _timing.decode(about)
    return timing, *refilled(timing, known, now, missed)


# Seconds between two looks, and between two calls of a hook; and between two looks at alarms.
EVERY = 1.0
ALARMS_EVERY = 10.0
# Events of one call.
MOST = 100
# Where the store keeps when alarms were looked at last.
_ALARMS = "alarms"


class OwnCalls:
    def __init__(self, worker: Worker, desk: Desk) -> None:
        self._worker, self._desk, self._requests = worker, desk, desk.requests
        self._hooks = worker.hooks
        self.makes_ready = worker.prompt_hooks
        pause = 0.0 if worker.prompt_hooks else EVERY
        self._asked: list[tuple[str, int, Sequence[str]]] = [
            (f"hook:{hook.name}", round(pause * 1e6), list(hook.kinds)) for hook in worker.hooks
        ]
        if worker.look_at_alarms is not None and desk.home:
            self._asked.append((_ALARMS, round(ALARMS_EVERY * 1e6), ()))
        self.at = 0.0 if self._asked else NEVER
        self.stored = False
        self._stores: list[Step] = []

    def steps(self, now: float) -> list[Step]:
        found, self._stores = self._stores, []
        if found or self._worker.phase != "working":
            # It stays due until that is answered.
            self.at = now if found else NEVER
            return found
        self.at = now + EVERY
        if self._requests.pauses("own_calls", now) or self._requests.pauses("own_store", now):
            return []
        return [(operations.due_calls(self._desk.keys, self._asked, MOST), self._found)]

    def _found(self, calls: Sequence[DueCall]) -> None:
        for n, call in enumerate(calls):
            if n == len(self._hooks):
                if call.due and self._worker.look_at_alarms is not None:
                    self._worker.look_at_alarms()
            elif call.last != call.was:
                hook = self._hooks[n]
                rows = [row for row in call.rows if hook.wants(event_of(*row))]
                args = msgspec.msgpack.encode([[rows], {}]) if rows else b""
                self._store(HOOK_TASKS + hook.name, args, self._asked[n][0], call.was, call.last)
        if self._stores:
            self.at = self._worker.now

    def _store(self, task: str, args: bytes, hook: str, was: str, at: str) -> None:
        """Store a job of this task, and move the cursor; without arguments only that moves."""
        worker = self._worker
        id = ""
        if args:
            moment = self._desk.server_time(worker.now) // 1000
            id = ordered_id(make_id(moment, worker.random.getrandbits(55), self._desk.keys.shard))
        fields: dict[str, str | bytes | int] = {"task": task, "args": args, "key": task, "more": 1}
        call = operations.store_own(self._desk.keys, id, fields, key=task, hook=hook, was=was, at=at)

        def stored(word: str) -> None:
            self.at = worker.now + EVERY
            self.stored = self.stored or (word == "stored" and bool(id))

        self._stores.append((call, stored))
