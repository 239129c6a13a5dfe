"""The state of a worker that all parts of its dispatcher's core share. Pure: no I/O, no clock.

A server may forget the last scripts of its history, in a power cut or a failover. Those of an incarnation carry growing
numbers, so the last number that the store remembers says which it forgot; those are done again. Jobs that the store
holds for this incarnation, and that are unknown here, are handed back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from random import Random
from typing import Any, Literal, Protocol

import msgspec

from headrace.admin.event_log import EventHook
from headrace.model.ended import EndKind
from headrace.model.job import Claim, Outcome
from headrace.model.limit_rules import NO_LIMITS, DeclaredLimits
from headrace.model.options import Kind
from headrace.protocol.consume import SHARD_BITS, Held, Note, Settled, starts_of
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.protocol.ticks import Row
from headrace.settings import Settings
from headrace.store.connection import pause_before
from headrace.tasks.task import Task
from headrace.worker.dispatcher.assignment import Probe
from headrace.worker.dispatcher.dispatcher_events import Actions, DeskActions, Send, SendFirst, Sleep, Step, WakeUp
from headrace.worker.worker_options import WorkerOptions, kinds_of

# How long (seconds) a settle is kept, and how much of them: a server forgets seconds, not minutes. What is forgotten by
# both sides is handed back as interrupted.
KEEP = 60.0
KEEP_BYTES = 16 << 20
KEEP_OUTCOMES = 50_000
# Bytes that one takes besides its outcomes, about.
OVERHEAD = 1000

Rows = list[tuple[str, int]]
"""Starts: the job's id and the token."""


class Sent(msgspec.Struct, frozen=True):
    """A settle that was sent, as it can be sent again.

    Attributes:
        outcomes: how many ends it says.
        newest: token of the newest start by then: newer ones may owe it that their jobs were ready.
    """

    number: int
    call: Call[Settled]
    outcomes: int
    newest: int
    at: float

    @property
    def size(self) -> int:
        return OVERHEAD + sum([len(arg) for arg in self.call.args if isinstance(arg, bytes)])


class Repair(msgspec.Struct, frozen=True):
    """What makes both sides agree.

    Attributes:
        restore: starts whose claims the store forgot, ended ones included, oldest first.
        again: settles that it forgot, oldest first.
        unknown: starts that this worker does not know.
    """

    restore: Rows = msgspec.field(default_factory=Rows)
    again: list[Sent] = msgspec.field(default_factory=list[Sent])
    unknown: Rows = msgspec.field(default_factory=Rows)

    def __bool__(self) -> bool:
        return bool(self.restore or self.again or self.unknown)

    def history(self) -> tuple[Rows, list[tuple[Sent, Rows]]]:
        """The starts that came before all settles, and each settle with those that came between it and the next."""
        ends = [bisect_right(self.restore, sent.newest, key=itemgetter(1)) for sent in self.again]
        first, *rest = [self.restore[n:end] for n, end in pairwise([0, *ends, len(self.restore)])]
        return first, list(zip(self.again, rest, strict=True))


class Starts(msgspec.Struct):
    """The starts of one incarnation.

    Attributes:
        held: ids of claimed jobs whose settle was not sent, by token.
        newest: token of the newest start.
        claimed, settled: numbers of the last claim and the last settle that were answered.
        sent: settles of late, oldest first; ``size`` and ``outcomes`` of all of them.
    """

    held: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    newest: int = 0
    claimed: int = 0
    settled: int = 0
    sent: deque[Sent] = msgspec.field(default_factory=deque[Sent])
    size: int = 0
    outcomes: int = 0

    @property
    def unreported(self) -> bool:
        return bool(self.held) or any(sent.number > self.settled for sent in self.sent)

    def took(self, claims: Sequence[Claim], number: int) -> None:
        for claim in claims:
            self.held[claim.token] = claim.id
        if claims:
            self.newest = max(self.newest, claims[-1].token)
        self.claimed = max(self.claimed, number)

    def ended(self, batch: Sequence[tuple[Outcome, Claim]], call: Call[Settled], number: int, now: float) -> None:
        for outcome, _ in batch:
            self.held.pop(outcome.token, None)
        sent = Sent(number, call, len(batch), self.newest, now)
        self.sent.append(sent)
        self.size += sent.size
        self.outcomes += sent.outcomes
        while self.sent and (now - self.sent[0].at > KEEP or self.size > KEEP_BYTES or self.outcomes > KEEP_OUTCOMES):
            old = self.sent.popleft()
            self.size -= old.size
            self.outcomes -= old.outcomes

    def forget(self, ids: Iterable[str]) -> None:
        gone = set(ids)
        self.held = {token: id for token, id in self.held.items() if id not in gone}

    def view(self) -> Starts:
        return msgspec.structs.replace(self, held=dict(self.held), sent=self.sent.copy())


def compare(view: Starts, store: Held) -> Repair:
    """What the store forgot, and what this worker does not know. The store may know more in one way only: a claim was
    applied whose answer is not here yet. Its starts have tokens from ``store.first`` on; its repetition brings them.
    """
    lost = [sent for sent in view.sent if sent.number > store.settled]
    ended = [start for sent in lost for start in starts_of(sent.call)]
    there = {token for _, token in store.starts}
    known = view.held.keys() | {token for _, token in ended}
    coming = store.first if store.claimed > view.claimed else None
    restore: Rows = []
    if store.claimed < view.claimed:
        running = [(id, token) for token, id in view.held.items()]
        restore = sorted((start for start in running + ended if start[1] not in there), key=lambda start: start[1])
    # One that was never answered is repeated anyway.
    again = [sent for sent in lost if sent.number <= view.settled]
    unknown = [start for start in store.starts if start[1] not in known and (coming is None or start[1] < coming)]
    return Repair(restore, again, unknown)


NEVER = float("inf")


class Timers:
    """Times by name, in the loop's monotonic seconds. The core looks at all that it has to do with each event, so a
    time that is past wakes it no more; code that postpones work sets a timer here.
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def set(self, name: str, at: float) -> None:
        self._times[name] = at

    def clear(self, name: str) -> None:
        self._times.pop(name, None)

    def at(self, name: str) -> float:
        return self._times.get(name, NEVER)

    def due(self, name: str, now: float) -> bool:
        return now >= self._times.get(name, NEVER)

    def next(self, now: float) -> float:
        first = NEVER
        for at in self._times.values():
            if now < at < first:
                first = at
        return first


# Scripts whose refused calls are not sent again: they are made anew, or what they say is of use for a moment only.
ONCE = frozenset({"register", "holds", "stacks_tell", "own_calls", "own_store"})
# While calls of these wait, the store does not know how starts have ended.
ENDS = ("settle", "note")


class Refusal(msgspec.Struct):
    """A script whose last call was refused.

    Attributes:
        steps: calls that wait to be sent again, oldest first.
        count: how many trips in a row refused the script.
    """

    steps: list[Step]
    again_at: float = 0.0
    count: int = 0


class StoreRequests:
    """One request at a time, and a sleep beside it. A refusal answers one call: calls of that script wait, and are sent
    again after pauses that grow; all others go on.

    Attributes:
        number: of the last call that has one, so that the store recognizes one that is repeated.
        ready: whether a request may be sent.
        firsts: whether some were sent first in this turn: then ``ready`` must be told anew.
        away: the connections were lost, and nothing was answered since.
        armed: whether a sleep is under way; ``waking``: whether it is being ended.
    """

    def __init__(self, actions: Actions | DeskActions, longest: float) -> None:
        self.number = 0
        self.ready = self.firsts = self.armed = self.waking = False
        self.away = True
        self._actions = actions
        self._longest = longest
        self._refusals: dict[str, Refusal] = {}

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def send(self, steps: list[Step]) -> None:
        self.ready = False
        self._actions.add(Send(steps))

    def send_first(self, steps: list[Step]) -> None:
        self.ready, self.firsts = False, True
        self._actions.add(SendFirst(steps))

    def sleep(self, keys: Sequence[str], claim: Step) -> None:
        self.armed, self.waking = True, False
        self._actions.add(Sleep(list(keys), claim))

    def wake_up(self) -> None:
        if self.armed and not self.waking:
            self.waking = True
            self.ready = False
            self._actions.add(WakeUp())

    def may_send(self) -> None:
        self.ready, self.away = not self.firsts, False

    def lost(self) -> None:
        """The connections are gone. Requests that were under way are sent again before all others."""
        self.ready = self.armed = False
        self.away = True

    def refused(self, step: Step, now: float, random: float) -> None:
        name = step[0].script.name
        one = self._refusals.setdefault(name, Refusal([]))
        if name not in ONCE:
            one.steps.append(step)
        if now >= one.again_at:
            # Several calls of one trip count once.
            one.count += 1
            one.again_at = now + min(pause_before(one.count, random), self._longest)

    def accepted(self, script: str) -> None:
        if script in self._refusals and not self._refusals[script].steps:
            del self._refusals[script]

    def again(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for one in self._refusals.values():
            if now >= one.again_at:
                steps += one.steps
                one.steps = []
        return steps

    def waits(self, *scripts: str) -> bool:
        """Whether refused calls of one of these scripts wait, or are under way again: none may overtake them."""
        return bool(self._refusals) and any(name in self._refusals for name in scripts)

    def pauses(self, script: str, now: float) -> bool:
        return script in self._refusals and now < self._refusals[script].again_at

    def forget(self, *scripts: str) -> None:
        for name in scripts or tuple(self._refusals):
            self._refusals.pop(name, None)

    def next(self, now: float) -> float:
        return min((one.again_at for one in self._refusals.values() if one.again_at > now), default=NEVER)


# The longest pause before a refused call is sent again, as a share of the lease: a renewal must pass in time.
PAUSE_SHARE = 0.1
# Seconds for which a worker that leaves when all is done waits for what is due by then.
SOON = 0.1


class JobEnds(Protocol):
    def ended(self, claim: Claim, kind: EndKind, now: float, cost: int, /) -> None: ...

    def grew(self, memory: int, /) -> None: ...


class Worker(msgspec.Struct, eq=False, kw_only=True):
    """What all parts of a core share. All may read it; the part that is named writes an attribute.

    Attributes:
        options: sizes included. RemoteControl's.
        place: ``host:pid`` of the worker; ``pid``: of the dispatcher's process.
        probe: finds out what processes runners run, for people.
        names: under which it has registered, one after the other, the same at each of several shards. Incarnation's.
        sample: gets ready jobs of a shard by queue, seconds since 1970, and whether the shard is the first; or None.
        parent: the process of ``--reload`` that started this worker; 0: it has none.
        schedules: those that the application's code declares, as the store takes them.
        prompt_hooks: hooks are called without a pause, and a worker that leaves when all is done calls them first.
        look_at_alarms: begins a look at the alarms that its code declares, beside this thread; None: it declares none.
        leaves: scripts of duties that it leaves to other workers.
        soon: seconds for which it waits for what is due by then, where it leaves when all is done.
        kinds: of its runners for the application's tasks.
        phase: ``working``, ``quiet`` (no claims; it stays), ``draining`` (no claims; it leaves when what runs has
            ended) or ``left``. Core's.
        now: monotonic seconds of this turn. Core's.
        actions, timers: what the parts have decided, and when those that know no desk must be asked again.
    """

    settings: Settings
    tasks: Mapping[str, Task[..., Any, Any]]
    options: WorkerOptions
    place: str
    pid: int
    random: Random
    probe: Probe
    names: list[str] = msgspec.field(default_factory=list[str])
    job_counts: JobEnds | None = None
    sample: Callable[[Mapping[str, int], float, bool], None] | None = None
    parent: int = 0
    schedules: Sequence[Row] = ()
    limits: DeclaredLimits = NO_LIMITS
    hooks: Sequence[EventHook] = ()
    prompt_hooks: bool = False
    look_at_alarms: Callable[[], None] | None = None
    leaves: frozenset[str] = frozenset()
    soon: float = SOON
    kinds: tuple[Kind, ...] = ()
    phase: Literal["working", "quiet", "draining", "left"] = "working"
    now: float = 0.0
    actions: Actions = msgspec.field(default_factory=Actions)
    timers: Timers = msgspec.field(default_factory=Timers)

    def __post_init__(self) -> None:
        self.kinds = kinds_of(self.tasks)


SHARD = (1 << SHARD_BITS) - 1


def desk_of(claim: Claim) -> int:
    return claim.number & SHARD


class Desk:
    """What a dispatcher has on one shard. All parts may read it; the part that is named writes an attribute.

    Attributes:
        keys: of the shard; ``home``: whether that is the first; ``many``: whether the worker serves others, too.
        notes: what running jobs of this shard said of themselves since it was last taken, by the number of their start.
        owner: the current incarnation's name; empty before it is registered. Incarnation's.
        fenced: its runners were stopped since its lease could not be kept. Incarnation's.
        starts: what it holds, to compare with what the store knows; one for each incarnation. Incarnation's.
        server_ahead: what the server's clock is ahead of ours, microseconds; 0: unknown. Claiming's.
        evicting: the server may drop jobs when its memory is short, as it said last. ServerLook's.
        requests, timers, actions: what is under way to the store, when its parts must be asked, what they decided.
    """

    __slots__ = (
        "actions", "evicting", "fenced", "home", "keys", "many", "notes", "owner", "requests", "server_ahead", "starts",
        "timers",
    )  # fmt: skip

    def __init__(self, worker: Worker, keys: Keys, notes: dict[int, Note], *, many: bool = False) -> None:
        self.keys, self.notes = keys, notes
        self.many, self.home = many, keys.shard == 0
        self.actions = DeskActions(worker.actions, keys.shard) if many else worker.actions
        self.owner = ""
        self.fenced = self.evicting = False
        self.starts = Starts()
        self.server_ahead = 0.0
        self.requests = StoreRequests(self.actions, worker.settings.lease * PAUSE_SHARE)
        self.timers = Timers()

    @property
    def place(self) -> str:
        """The shard, as lines of the log name it; empty where there is one."""
        return f" at shard {self.keys.shard} of {self.keys.count}" if self.many else ""

    def has(self, claim: Claim) -> bool:
        return not self.many or claim.number & SHARD == self.keys.shard

    def server_time(self, now: float) -> int:
        return round(self.server_ahead + now * 1e6)
