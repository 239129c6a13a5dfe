"""A world for the core of a dispatcher: a store, runners, a supervisor and a clock, all simulated and turned by hand.

The store keeps queues as the scripts do, in as few words as possible: what a claim takes and leaves, wake-up tokens,
gates of limits, leases, requests that are repeated. Every reply may be late, and may be lost after the store has acted.
The store may forget its last moments, as after a failover. Another worker, of which only the store knows, takes jobs too.
"""

from __future__ import annotations

import pickle
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, get_args

import msgspec

from headrace import Headrace
from headrace.dispatch import Ring
from headrace.model import limit_rules
from headrace.model.ended import Ended
from headrace.model.ids import code_in, code_of, flow_id, is_ordered, node_id
from headrace.model.job import Claim
from headrace.model.limit_rules import DeclaredLimits
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, Script
from headrace.settings import Settings
from headrace.worker.dispatcher.core import Core
from headrace.worker.dispatcher.dispatcher_events import (
    HURRY,
    CallRefused,
    Connected,
    DeskAction,
    DeskEvent,
    Disconnected,
    Event,
    Give,
    Heard,
    Log,
    Mail,
    Notify,
    Ready,
    Replied,
    RunnerClosed,
    RunnerDied,
    Send,
    SendFirst,
    Sleep,
    Step,
    Subscribe,
    TakeBack,
    TakenBack,
    WakeUp,
    Woken,
)
from headrace.worker.dispatcher.incarnation import Incarnation
from headrace.worker.dispatcher.worker_state import Worker, desk_of
from headrace.worker.messages import Done, Drain, Exit, Signal, Spawn, Spawned, Stop, Up
from headrace.worker.worker_options import WorkerOptions

KINDS = ("async", "fork", "process", "thread")
QUEUES = ("a", "b", "c")
# Another worker, of which only the store knows.
RIVAL = "rival"
# A workflow: nodes 1 and 2 have returned something, and 3 stands for both. Jobs that take outputs are others of its nodes.
FLOW = flow_id(0, 7)
JOIN = 3
INPUTS = ("", "", "", "", "", code_of(1), code_of(1) + code_of(2), code_of(JOIN))
# Entries of a queue that a claim with kinds to pass over looks at; of those, so many at the front.
LOOK, FRONT = 6, 2
ORDERED = "8"
# Limits, and how many of their jobs run at once: two of all, one of each account; of others any number.
LIMITS = {"api": 2, "account": 1}
MANY = 10**9
# What the jobs of other shards hold whose task is limited.
API = "api:"
# The reply to a call that the store refuses.
REFUSED = object()

app = Headrace(startup_profiling=False)


def _task() -> None: ...


async def _coroutine() -> None: ...


for _kind in KINDS:
    for _name in (f"{_kind}-task", f"{_kind}-limited"):
        app.task(kind=_kind, name=_name)(_coroutine if _kind == "async" else _task)  # type: ignore[call-overload]

# Twenty thousand worlds ask a hundred times each for the gates of a dozen lanes, and change none of the lists.
gates_of = cache(limit_rules.gates_of)


@cache
def most_of(gate: str) -> int:
    """How many pass a gate at once."""
    return LIMITS.get(gate.partition(":")[0], MANY)


_rows = msgspec.msgpack.Decoder(list[tuple[str, int, list[msgspec.Raw]]]).decode
_text = msgspec.msgpack.Decoder(str).decode
_number = msgspec.msgpack.Decoder(int).decode
_unpack = msgspec.msgpack.decode


@cache
def _argument_names(script: Script) -> list[str]:
    return [arg.name for arg in script.header.args]


def arguments(call: Call[Any]) -> dict[str, Any]:
    """Those of a call that are no keys, by name."""
    names = _argument_names(call.script)
    return dict(zip(names, call.args[len(call.args) - len(names) :], strict=True))


@cache
def _places(ids: tuple[Any, ...]) -> list[int]:
    """Which of the members of these ids owns each slot of a ring."""
    members = [SimpleNamespace(id=id, number=number) for number, id in enumerate(ids)]
    return [member.number for member in Ring(members).owners]


class SharedRing:
    """A ring whose slots are reckoned once for members of the same ids: that took a fifth of the time of a world."""

    def __init__(self, members: Iterable[Any]) -> None:
        self._members = tuple(members)
        self._owner = _places(tuple(member.id for member in self._members))
        self.owners = self

    def __getitem__(self, slot: int) -> Any:
        return self._members[self._owner[slot]]


_MEMBERS: dict[str, Any] = {member.kind: member for member in get_args(Ended)}


def ended_as(kind: str, amount: int, lane: str = "") -> Ended:
    """An outcome of this kind that brings no bytes; a refused call is one of the first limit of its lane."""
    member = _MEMBERS[kind]
    limit = (gates_of(lane) or ["api:"])[0].partition(":")[0]
    values = {"result": b"", "error": b"", "ttl": amount, "delay": amount, "limit": limit}
    return member(**{name: values[name] for name in member.__struct_fields__})


class Dice(Random):
    """Quick dice: how even they are does not matter here, and a twentieth of the time went into that."""

    def randrange(self, below: int) -> int:  # type: ignore[override]
        return int(self.random() * below)

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))

    def choice(self, seq: Any) -> Any:
        return seq[int(self.random() * len(seq))]


@dataclass(slots=True)
class Job:
    """A job in the store: ``ready``, ``running``, ``scheduled``, ``ordered`` (waits for its turn) or ``ended``.

    Attributes:
        settled: the last settle of it: who sent it, its number, when it was applied; ``lag``: seconds until its answer.
    """

    id: str
    task: str
    queue: str
    score: int
    key: str = ""
    crashes: int = 0
    lane: str = ""
    parents: str = ""
    state: str = "ready"
    token: int = 0
    due: int = 0
    starts: int = 0
    snoozes: int = 0
    settled: tuple[str, int, float] = ("", 0, 0.0)
    lag: float = 0.0
    once: bool = False


@dataclass(slots=True)
class Registered:
    """What the store has of a dispatcher."""

    claims: dict[int, str] = field(default_factory=dict[int, str])
    claimed: int = 0
    first: int = 0
    settled: int = 0
    reply: list[Any] = field(default_factory=list[Any])


class Store:
    """The store. Its clock is that of the world."""

    def __init__(self, session: Session) -> None:
        self.session, self.world = session, session.world
        self.jobs: dict[str, Job] = {}
        self.ready: dict[str, list[tuple[int, str]]] = {queue: [] for queue in QUEUES}
        self.paused: set[str] = set()
        self.tokens: set[str] = set()
        self.owners: dict[str, Registered] = {}
        self.cancelled: set[str] = set()
        self.claims = 0
        # Jobs after which a claim has brought as many bytes as one may.
        self.brings = 1000
        self.called: set[str] = set()
        self._token = 0
        self._orders: dict[str, list[str]] = {}
        # How many hold each gate; until when it is closed since a call was refused.
        self.held = Counter[str]()
        self.closed: dict[str, int] = {}
        # Until when starts on other shards hold a gate.
        self.holders: dict[str, int] = {}
        # Whether a failover may lose the last moments, and what is left then.
        self.forgetful = False
        self._kept = b""

    @property
    def now(self) -> int:
        return round((1_000_000 + self.world.now) * 1e6)

    # -- what others do ---------------------------------------------------------------------------------------------

    def add(
        self,
        task: str,
        queue: str,
        *,
        key: str = "",
        crashes: int = 0,
        first: bool = False,
        order: str = "",
        lane: str = "",
        parents: str = "",
    ) -> Job:
        self.world.made += 1
        number = self.world.made
        id = f"{number:019}{ORDERED}0" if order else node_id(FLOW, 10 + number) if parents else f"j{number}"
        job = Job(id, task, queue, -number if first else self.now + number, order or key, crashes, lane, parents)
        self.jobs[id] = job
        if order:
            line = self._orders.setdefault(order, [])
            line.append(id)
            if line[0] != id:
                job.state = "ordered"
                return job
        self.line_up(job)
        return job

    def line_up(self, job: Job) -> None:
        job.state = "ready"
        insort(self.ready.setdefault(job.queue, []), (job.score, job.id))
        self.tokens.add(job.queue)

    def open(self, id: str) -> bool:
        """Whether the limits of a job let it start."""
        lane = self.jobs[id].lane
        return not lane or not any(
            gate in self.closed or self.held.get(gate, 0) >= most_of(gate) for gate in gates_of(lane)
        )

    def let_go(self, job: Job) -> None:
        """A start left the claims: others may pass its gates."""
        if job.lane:
            self.held.subtract(gates_of(job.lane))
            self._wake(gates_of(job.lane))

    def _wake(self, gates: list[str]) -> None:
        opened = set(gates)
        for queue, line in self.ready.items() if opened else ():
            if not all(opened.isdisjoint(gates_of(self.jobs[id].lane)) for _, id in line):
                self.tokens.add(queue)

    def waits(self, queue: str) -> bool:
        """Whether jobs of a queue may start."""
        return any(self.open(id) for _, id in self.ready.get(queue, ()))

    def end(self, job: Job) -> None:
        assert job.state != "ended", f"{job} ends twice"
        job.state = "ended"
        if is_ordered(job.id):
            line = self._orders[job.key]
            line.remove(job.id)
            if line and self.jobs[line[0]].state == "ordered":
                self.line_up(self.jobs[line[0]])

    def take_over(self, owner: str) -> None:
        """Another worker takes what a dead one held."""
        incarnation = self.owners.pop(owner, None)
        for id in incarnation.claims.values() if incarnation else ():
            self.jobs[id].crashes += 1
            self.let_go(self.jobs[id])
            self.line_up(self.jobs[id])

    def broadcast(self, owner: str, task: str) -> None:
        self.add(task, f"@{owner}").once = True

    def rival_claims(self) -> bool:
        """Another worker, which serves other queues and has room for other kinds, is woken or asks without a token."""
        dice = self.world.dice
        names = dice.sample(QUEUES, dice.randint(1, 3))
        if dice.random() < 0.7:
            woken = [name for name in names if name in self.tokens]
            if not woken:
                return False
            self.tokens.discard(woken[0])
        self.register({"owner": RIVAL})
        over = [(kind, 0, [f"{kind}-task"]) for kind in KINDS if dice.random() < 0.3]
        passing = msgspec.msgpack.encode([over, []]) if over else b""
        number, limit = self.owners[RIVAL].claimed + 1, dice.randint(1, 4)
        self.claim(
            {
                "owner": RIVAL,
                "request": number,
                "limit": limit,
                "names": msgspec.msgpack.encode(names),
                "passing": passing,
            }
        )
        return True

    def rival_ends(self) -> bool:
        """It ends a job, or hands one back."""
        rival = self.owners.get(RIVAL)
        if rival is None or not rival.claims:
            return False
        job = self.jobs[rival.claims.pop(self.world.dice.choice(list(rival.claims)))]
        self.let_go(job)
        self._settled(job, self.world.dice.choice(("succeeded", "succeeded", "released", "crashed")), 2_000_000)
        return True

    # -- what the dispatcher calls ------------------------------------------------------------------------------------

    def run(self, call: Call[Any]) -> Any:
        self.called.add(call.script.name)
        if self.forgetful and (not self._kept or self.world.dice.random() < (0.05 if self.world.alone else 0.3)):
            self.remember()
        return call.parse(getattr(self, call.script.name)(arguments(call)))

    def answered(self, call: Call[Any]) -> None:
        """The dispatcher reads the reply to a call now."""
        if call.script.name == "settle":
            args = arguments(call)
            for job in self.jobs.values():
                if job.settled[:2] == (args["owner"], args["request"]):
                    job.lag = self.world.now - job.settled[2]

    def claim(self, args: dict[str, Any]) -> Any:
        incarnation = self.owners.get(args["owner"])
        self.claims += 1
        self.lapse()
        if incarnation is None:
            return [b"gone"]
        if args["request"] == incarnation.claimed:
            # What it passed over is not told again.
            jobs = [id for token, id in incarnation.claims.items() if token >= incarnation.first]
            return self._claimed(incarnation, jobs, None)
        self._token = max(self._token, self.now)
        incarnation.claimed, incarnation.first = args["request"], self._token + 1
        passing = _unpack(args["passing"]) if args["passing"] else []
        names = [queue for queue in _unpack(args["names"]) if queue not in self.paused]
        limit, taken, looked = min(args["limit"], self.brings), list[str](), None
        if passing:
            taken, looked = self._pass_over(names, limit, *passing)
        else:
            for queue in names:
                for row in list(self.ready.get(queue, ())):
                    if len(taken) < limit and self.open(row[1]):
                        self._take(queue, row)
                        taken.append(row[1])
        if len(taken) == limit:
            self.tokens |= {queue for queue in names if self.waits(queue)}
        for id in taken:
            self._token += 1
            job = self.jobs[id]
            job.state, job.token = "running", self._token
            job.starts += 1
            incarnation.claims[self._token] = id
        return self._claimed(incarnation, taken, looked)

    def _take(self, queue: str, row: tuple[int, str]) -> None:
        self.ready[queue].remove(row)
        self.held.update(gates_of(self.jobs[row[1]].lane))

    def _pass_over(self, names: list[str], limit: int, over: list[Any], at: list[Any]) -> tuple[list[str], list[Any]]:
        rooms = {kind: most for kind, most, _ in over}
        kinds = {task: kind for kind, _, tasks in over for task in tasks}
        cursors = {queue: int(score) for queue, score, _ in zip(*[iter(at)] * 3, strict=True)}
        taken, passed, rows = list[str](), set[str](), list[Any]()
        for queue in names:
            line = self.ready.get(queue, [])
            after = cursors.get(queue)
            # What is behind a gate is not in the line.
            line = [row for row in line if self.open(row[1])]
            behind = [row for row in line if after is None or row[0] > after]
            windows = [behind[:LOOK]] if after is None else [line[:FRONT], behind[: LOOK - FRONT]]
            rest = len(behind) > len(windows[-1])
            found = list[tuple[int, str]]()
            for window in windows:
                last = window is windows[-1]
                for row in window:
                    if len(taken) + len(found) == limit:
                        rest = True
                        break
                    if row in found:
                        continue
                    if last:
                        after = row[0]
                    if not self.open(row[1]):
                        continue
                    kind = kinds.get(self.jobs[row[1]].task)
                    if kind is not None and rooms[kind] <= 0:
                        passed.add(kind)
                        self.tokens.add(f"{queue}|{kind}")
                        continue
                    if kind is not None:
                        rooms[kind] -= 1
                    self._take(queue, row)
                    found.append(row)
                    rest = rest or not last
            taken += [id for _, id in found]
            if after is not None:
                rows += [queue.encode(), str(after).encode(), b"x", int(rest)]
        return taken, [[kind.encode() for kind in sorted(passed)], rows]

    def _claimed(self, incarnation: Registered, ids: list[str], looked: list[Any] | None) -> list[Any]:
        flat, more, nodes = list[Any](), list[Any](), list[Any]()
        lanes = [(id, self.jobs[id].lane) for id in ids if self.jobs[id].lane]
        held = [part for id, lane in lanes for part in (id.encode(), f"{lane} 1 0".encode())]
        for id in ids:
            job = self.jobs[id]
            flat += [
                id.encode(),
                job.token,
                job.queue.encode(),
                str(job.score).encode(),
                job.task.encode(),
                b"\x92\x90\x80",
            ]
            if job.key or job.crashes or job.once or job.snoozes:
                crashes, once = str(job.crashes).encode() if job.crashes else None, b"1" if job.once else None
                snoozes = str(job.snoozes).encode()
                more.append([id.encode(), [None, job.key.encode(), None, crashes, None, snoozes, once, *[None] * 3]])
            if job.parents:
                nodes += [id.encode(), b"", job.parents.encode(), b""]
        reply = [b"ok", self.now, self.due, flat, more, nodes, [], len(self.paused), held]
        return reply if looked is None else [*reply, *looked]

    def outputs(self, args: dict[str, Any]) -> Any:
        """All of them, or as many as one reply brings."""
        ids, both = _unpack(args["ids"])[: self.brings], (code_of(1) + code_of(2)).encode()
        join, plain = (
            (b"t", b"succeeded", b"", b"join", None, both, None),
            (b"t", b"succeeded", b"", None, None, b"", b"\xc0"),
        )
        return [join if code_in(id) == code_of(JOIN) else plain for id in ids]

    @property
    def due(self) -> int:
        due = [job.due for job in self.jobs.values() if job.state == "scheduled"]
        return min([*due, *self.closed.values()], default=0)

    def settle(self, args: dict[str, Any]) -> Any:
        incarnation = self.owners.get(args["owner"])
        if incarnation is not None and args["request"] <= incarnation.settled:
            return [b"repeated", [], 0, 0, 0]
        if incarnation is not None:
            incarnation.settled = args["request"]
        stale: list[bytes] = []
        for kind, amount, rows in _rows(args["outcomes"]):
            for id, token in zip(rows[::4], rows[1::4], strict=True):
                job, number = self.jobs.get(_text(id)), _number(token)
                if job is None or incarnation is None or incarnation.claims.get(number) != job.id:
                    stale.append(_text(id).encode())
                    continue
                del incarnation.claims[number]
                job.settled = (args["owner"], args["request"], self.world.now)
                self.let_go(job)
                self._settled(job, kind, amount)
        return [b"ok", stale, 0, 0, 0]

    def close(self, gate: str, amount: int) -> None:
        """A call was refused: the gate is closed for so long, and who holds limited jobs hears of it."""
        if gate not in self.closed:
            self.closed[gate] = self.now + amount
            self.session.mail(f"closed:{self._token}:{gate}")

    def _settled(self, job: Job, kind: str, amount: int) -> None:
        if job.id in self.cancelled and kind in ("released", "retry", "snoozed", "limited", "interrupted"):
            self.end(job)
        elif kind == "limited" and job.lane:
            self.close(gates_of(job.lane)[0], amount)
            self.line_up(job)
        elif kind in ("retry", "snoozed", "limited"):
            job.state, job.due = "scheduled", self.now + amount
            job.snoozes += kind == "snoozed"
        elif kind in ("released", "interrupted", "parked") or (kind == "crashed" and job.crashes < 3):
            job.crashes += kind == "crashed"
            assert job.queue[0] != "@" or kind in ("interrupted", "crashed"), "a broadcast goes back"
            self.line_up(job)
        else:
            # A suspect gets a runner of its own, or none. The real store ends a broadcast that crashed. One that was to
            # come again, by its own code, has run.
            left_out = kind == "cancelled" and job.queue[0] == "@" and not (job.crashes or job.id in self.cancelled)
            left_out = left_out and job.id not in self.world.ran
            # Nor does a worker run it that stops, or whose lease could not be kept.
            fenced = any("lease" in line for line in self.world.log)
            assert not left_out or fenced or self.world.core.worker.phase != "working", "a broadcast is not run"
            self.end(job)

    def register(self, args: dict[str, Any]) -> Any:
        self.owners.setdefault(args["owner"], Registered())
        if self.world.alone:
            # Whoever is forgotten as a whole is one whose lease has ended.
            self.remember()
        return 0

    def limit_declare(self, args: dict[str, Any]) -> Any:
        return 0

    def renew(self, args: dict[str, Any]) -> Any:
        incarnation = self.owners.get(args["owner"])
        if incarnation is None:
            return [b"gone"]
        waiting = {queue for queue in _unpack(args["names"]) if self.waits(queue)}
        self.tokens |= waiting
        cancels = [id.encode() for id in incarnation.claims.values() if id in self.cancelled]
        held = len(incarnation.claims)
        paused = [queue.encode() for queue in sorted(self.paused)]
        return [
            b"ok",
            self.now,
            self.due,
            0,
            b"",
            cancels,
            [],
            0,
            0,
            0,
            0,
            0,
            0,
            held,
            0,
            paused,
            len(waiting - self.paused),
            [],
        ]

    def server_info(self, args: dict[str, Any]) -> Any:
        return b""

    def promote(self, args: dict[str, Any]) -> Any:
        due = [job for job in self.jobs.values() if job.state == "scheduled" and job.due <= self.now]
        for job in due:
            self.line_up(job)
        opened = [gate for gate, until in self.closed.items() if until <= self.now]
        for gate in opened:
            del self.closed[gate]
        self._wake(opened)
        return [len(due) + len(opened), self.now, self.due, int(bool(opened))]

    def reclaim(self, args: dict[str, Any]) -> Any:
        assert not args["known"], "its own process lives, whose lease has ended"
        self.take_over(args["owner"])
        return [b"done", 0]

    def retire(self, args: dict[str, Any]) -> Any:
        incarnation = self.owners.get(args["owner"])
        if incarnation is not None and incarnation.claims:
            return b"busy"
        self.owners.pop(args["owner"], None)
        for _, id in self.ready.pop("@" + args["owner"], []):
            self.jobs[id].state = "ended"
        return b"ok"

    def holds(self, args: dict[str, Any]) -> Any:
        incarnation = self.owners.get(args["owner"])
        if incarnation is None:
            return []
        held = sorted(row for row in incarnation.claims.items() if row[0] > args["after"])[: args["limit"]]
        flat = [part for token, id in held for part in (id.encode(), str(token).encode())]
        return [incarnation.claimed, incarnation.first, incarnation.settled, flat]

    def restore(self, args: dict[str, Any]) -> Any:
        incarnation, starts = self.owners.get(args["owner"]), _unpack(args["starts"])
        others, gone = list[bytes](), list[bytes]()
        for id, token in zip(starts[::2], starts[1::2], strict=True):
            self._token = max(self._token, token)
            job = self.jobs.get(id)
            if job is None:
                gone.append(id.encode())
            elif incarnation is not None and incarnation.claims.get(token) == id:
                pass
            elif incarnation is None or job.token >= token or job.state not in ("ready", "scheduled"):
                others.append(id.encode())
            else:
                if job.state == "ready":
                    self.ready[job.queue].remove((job.score, id))
                job.state, job.token = "running", token
                incarnation.claims[token] = id
                self.held.update(gates_of(job.lane))
        return [others, gone]

    def limit_take(self, args: dict[str, Any]) -> Any:
        self.lapse()
        if args["holder"] not in self.holders:
            if self.closed.get(API, 0) > self.now or self.held[API] >= most_of(API):
                return [b"closed", self.now, self.closed.get(API, 0), []]
            self.held[API] += 1
        self.holders[args["holder"]] = self.now + args["lease"]
        return [b"held", self.now, 0, [API.encode()]]

    def limit_keep(self, args: dict[str, Any]) -> Any:
        self.lapse()
        if there := args["holder"] in self.holders:
            self.holders[args["holder"]] = self.now + args["lease"]
        return int(there)

    def limit_release(self, args: dict[str, Any]) -> Any:
        if self.holders.pop(args["holder"], None) is None:
            return 0
        self.held[API] -= 1
        self._wake([API])
        if args["refused"] >= 0:
            self.close(API, args["refused"])
        return 1

    def lapse(self) -> None:
        """Holds whose lease is over let others pass."""
        for holder in [holder for holder, until in self.holders.items() if until <= self.now]:
            del self.holders[holder]
            self.held[API] -= 1
            self._wake([API])

    def remember(self) -> None:
        """What it knows now is what it knows after it has forgotten what comes."""
        self._kept = pickle.dumps(
            {name: value for name, value in vars(self).items() if name not in ("session", "world", "_kept")}
        )

    def forget(self) -> None:
        vars(self).update(pickle.loads(self._kept))

    def note(self, args: dict[str, Any]) -> Any:
        return 0


@dataclass(slots=True)
class Runner:
    """A runner: what it was given and has not ended, and how many of these (the first) it has begun.

    Attributes:
        stops: why starts are to stop, by token.
        leaving: it leaves when it holds nothing.
        killed: its end is on its way.
        quota: how many more it may end before it is replaced; 0: no end.
        starting: it takes no job yet.
    """

    number: int
    kind: str
    held: list[Claim] = field(default_factory=list[Claim])
    begun: int = 0
    stops: dict[int, str] = field(default_factory=dict[int, str])
    leaving: bool = False
    killed: bool = False
    slots: int = 1
    quota: int = 0
    starting: bool = False

    @property
    def room(self) -> int:
        """How many jobs it may hold."""
        return min(self.slots, self.quota) if self.quota else self.slots


class Session:
    """What the loop has for one shard: its connections, and what is under way on them.

    Attributes:
        up: there are connections to the store.
        silent: the store is reached and answers nothing, for ever.
    """

    def __init__(self, world: World, shard: int) -> None:
        self.world, self.shard, self.silent = world, shard, False
        self.store = Store(self)
        self.up = False
        self.inflight: list[Step] = []
        self.before: list[list[Step]] = []
        self.held_back: list[Step] = []
        self.goes_first = self.told_ready = self.unblock = False
        self.replies: list[Any] | None = None
        # Scripts whose next call the store refuses, and scripts all of whose calls it refuses.
        self.refusals: set[str] = set()
        self.forbidden: set[str] = set()
        self.refused = Counter[str]()
        self.asleep: tuple[list[str], Step] | None = None
        self.woken: tuple[Any, bool] | None = None
        self.actions: dict[type, Callable[[Any], None]] = {
            Send: self._send, SendFirst: self._send_first, Sleep: self._sleep, WakeUp: self._wake_up,
            Subscribe: lambda _: None,
        }  # fmt: skip

    @property
    def incarnation(self) -> Incarnation:
        return self.world.core.incarnations[self.shard]

    def tell(self, event: Any) -> None:
        many = len(self.world.sessions) > 1
        self.world.inbox.append(DeskEvent(self.shard, event) if many else event)

    # -- the exchange -----------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return self.up and not (self.inflight or self.before or self.held_back or self.unblock)

    def tell_ready(self) -> None:
        if self.idle and not self.told_ready:
            self.told_ready = True
            self.tell(Ready())

    def send_next(self) -> None:
        if self.inflight or not self.up:
            return
        self.goes_first = bool(self.before)
        if self.before:
            self.inflight = self.before.pop(0)
        else:
            self.inflight, self.held_back = self.held_back, []
        self.tell_ready()

    def _send(self, action: Send) -> None:
        assert not self.inflight, "a request is under way"
        self.told_ready = self.goes_first = False
        self.inflight, self.replies = action.steps, None

    def _send_first(self, action: SendFirst) -> None:
        self.told_ready = False
        if self.up:
            self.before.append(action.steps)

    def _sleep(self, action: Sleep) -> None:
        if self.up:
            assert self.asleep is None
            self.asleep = ([key.partition("wake:")[2] for key in action.keys], action.claim)

    def _wake_up(self, _: WakeUp) -> None:
        self.told_ready = False
        self.unblock = self.up and self.asleep is not None

    def store_acts(self) -> bool:
        if not self.up or not self.inflight or self.replies is not None or self.silent:
            return False
        self.replies = [self._reply(call) for call, _ in self.inflight]
        return True

    def _reply(self, call: Call[Any]) -> Any:
        if call.script.name in self.forbidden:
            self.refused[call.script.name] += 1
            return REFUSED
        if call.script.name in self.refusals:
            self.refusals.discard(call.script.name)
            return REFUSED
        return self.store.run(call)

    def store_answers(self) -> bool:
        if self.replies is None:
            return False
        if self.goes_first and REFUSED in self.replies:
            return self.cut()
        for (call, read), reply in zip(self.inflight, self.replies, strict=True):
            if reply is REFUSED:
                self.tell(CallRefused((call, read)))
                continue
            self.store.answered(call)
            self.tell(Replied(read, reply, call.script.name))
        self.inflight, self.replies = [], None
        self.tell_ready()
        return True

    def waker_acts(self) -> bool:
        if self.asleep is None or self.woken is not None or self.silent:
            return False
        keys, (call, _) = self.asleep
        token = next((key for key in keys if key in self.store.tokens), None)
        if token is None and not self.unblock:
            return False
        self.store.tokens.discard(token or "")
        self.woken = (self._reply(call), token is not None)
        return True

    def waker_answers(self) -> bool:
        if self.woken is None or self.asleep is None:
            return False
        (_, (call, read)), (reply, by_queue) = self.asleep, self.woken
        self.asleep = self.woken = None
        self.tell(CallRefused((call, read), asleep=True) if reply is REFUSED else Woken(read, reply, by_queue))
        return True

    def unblocks(self) -> bool:
        if self.silent or not self.unblock or (self.asleep is not None and self.woken is None):
            return False
        self.unblock = False
        return True

    def cut(self) -> bool:
        if not self.up:
            return False
        self.up = self.told_ready = self.unblock = False
        if self.goes_first:
            self.inflight, self.goes_first = [], False
        self.inflight, self.held_back = self.inflight + self.held_back, []
        self.before.clear()
        self.replies = None
        if self.asleep is not None:
            self.inflight.append(self.asleep[1])
        self.asleep = self.woken = None
        self.tell(Disconnected())
        return True

    def forgets(self) -> bool:
        """The server fails over to one that lacks the last moments."""
        if not self.store.forgetful:
            return False
        self.cut()
        self.store.forget()
        self.world.turn()
        self.world.advance(self.world.now + 0.01)
        return True

    def connect(self) -> bool:
        if self.up:
            return False
        self.up = True
        self.held_back, self.inflight = self.inflight, []
        self.tell(Connected())
        return True

    def mail(self, text: str) -> None:
        if self.up and self.incarnation.desk.owner:
            self.tell(Mail(text))

    def pause(self, queue: str) -> None:
        self.store.paused ^= {queue}
        if queue not in self.store.paused and self.store.ready[queue]:
            self.store.tokens.add(queue)
        if queue not in self.store.paused:
            self.mail(HURRY)

    @property
    def under_way(self) -> bool:
        """Whether something is on its way there that may start a job, or a time that is near."""
        if self.silent:
            return False
        store = not self.up or self.inflight or self.before or self.held_back or self.unblock or self.woken
        sleep = self.asleep is not None and any(key in self.store.tokens for key in self.asleep[0])
        times = [self.incarnation.desk.timers.at(name) for name in ("look", "anew", "gather")]
        times.append(self.incarnation.desk.requests.next(self.world.now))
        return bool(store or sleep or any(self.world.now < at <= self.world.now + 5.01 for at in times))

    def check(self) -> None:
        """What runs is stopped before its lease ends."""
        incarnation, many = self.incarnation, len(self.world.sessions) > 1
        if not incarnation.desk.owner or self.world.now < incarnation.renewal.lease_until:
            return
        for runner in self.world.runners.values():
            mine = [claim for claim in runner.held[: runner.begun] if not many or desk_of(claim) == self.shard]
            assert runner.killed or not mine, "it runs beyond its lease"

    def check_at_rest(self) -> None:
        """Nothing that waits for no job is left to do, or a time is set for it."""
        world, one = self.world, self.incarnation
        if self.silent or one.renewal.gone or self.forbidden:
            return
        assert not one.endings or world.set("gather"), "ends are not told"
        assert not one.inputs, "a node waits for outputs"
        scheduled = [job for job in self.store.jobs.values() if job.state == "scheduled"]
        if scheduled:
            job = min(scheduled, key=lambda job: job.due)
            due = world.now + max(0.0, (job.due - self.store.now) / 1e6)
            # The answer to a settle tells how long it is until then, and not from when on: so much later than that.
            assert one.maintenance.next <= due + job.lag + 1e-6, "a retry is not promoted"


class World(Session):
    """One worker's core, and all that it deals with. It is the session of its first shard.

    Attributes:
        now: monotonic seconds.
        made: how many jobs were enqueued, lost ones included.
        inbox: what happened and the core was not told.
        sessions: one for each shard.
        alone: nothing takes its jobs away, so that what has ended never starts again; ``done``: these.
        ran: whose code a runner has ended, in whatever way.
    """

    def __init__(
        self, dice: Random, settings: Settings, options: WorkerOptions, kinds: tuple[str, ...], shards: int = 1
    ) -> None:
        self.dice = dice
        self.now = 1000.0
        self.made = 0
        super().__init__(self, 0)
        self.sessions: list[Session] = [self, *(Session(self, n) for n in range(1, shards))]
        self.settings = settings
        self.tasks = {name: task for name, task in app.tasks.items() if task.kind in kinds}
        self.kinds = kinds
        self.inbox: list[Event] = []
        self.runners: dict[int, Runner] = {}
        self.wanted: list[str] = []
        self.alone = False
        self.log: list[str] = []
        self.done: set[str] = set()
        self.ran: set[str] = set()
        self._number = 0
        self._doing: dict[type, Callable[[Any], None]] = {
            Give: self._give, Notify: self._tell, TakeBack: self._take_back,
            DeskAction: lambda one: self.sessions[one.shard].actions[type(one.action)](one.action),
            Spawn: lambda action: self.wanted.append(action.kind), Signal: self._signal,
            **self.actions, Log: lambda action: self.log.append(action.text % action.args),
        }  # fmt: skip
        worker = Worker(
            settings=settings, tasks=self.tasks, options=options, place="here:1", pid=2, random=dice,
            limits=DeclaredLimits([], [part for kind in KINDS for part in (f"task:{kind}-limited", b"")]),
            probe=lambda handle: (handle.pid, 0),
        )  # fmt: skip
        self.core = Core(worker, *(Keys("w", n) for n in range(shards)))
        self.perform(self.core.start((), self.now))
        self.turn()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """As the loop does: tell the core what happened until it has nothing more to do about it."""
        for _ in range(100):
            events, self.inbox = self.inbox, []
            self.perform(self.core.on(events, self.now))
            for session in self.sessions:
                session.send_next()
            if not self.inbox and not self.core.hasty:
                return
        raise AssertionError("it goes on for ever")

    def perform(self, actions: Any) -> None:
        for action in actions:
            doing = self._doing.get(type(action))
            if doing is not None:
                doing(action)

    def advance(self, to: float) -> None:
        """Let time pass, with a turn whenever the core wants one."""
        for _ in range(10_000):
            at = self.core.next
            if self.core.left:
                break
            assert at > self.now, "a time that was looked at is waited for"
            if at > to:
                break
            self.now = at
            self.turn()
        else:
            raise AssertionError("it is awake all the time")
        self.now = to
        self.turn()

    # -- the supervisor and its runners -----------------------------------------------------------------------------

    def _signal(self, action: Signal) -> None:
        if action.what == "kill" and action.runner in self.runners:
            self.runners[action.runner].killed = True

    def spawn(self) -> bool:
        if not self.wanted:
            return False
        kind = self.wanted.pop(self.dice.randrange(len(self.wanted)))
        self._number += 1
        options = self.core.worker.options
        starting = self.dice.random() < 0.2
        self.runners[self._number] = Runner(
            self._number, kind, slots=options.slots(kind), quota=options.recycle_jobs, starting=starting
        )
        self.inbox.append(Spawned(self._number, kind, 1000 + self._number, starting=starting))
        return True

    def come_up(self) -> bool:
        """A runner that runs code of the application first has done so."""
        for runner in self.runners.values():
            if runner.starting:
                runner.starting = False
                self.inbox.append(Heard(runner.number, [Up()]))
                return True
        return False

    def _give(self, action: Give) -> None:
        runner = self.runners.get(action.runner)
        if runner is None:
            return
        assert not runner.leaving, "it was told to leave"
        assert not runner.starting, "it has not started"
        for claim in action.claims:
            assert claim.id not in self.done, f"{claim.id} has ended, and starts again"
            for other in self.runners.values():
                twice = [one for one in other.held if one.id == claim.id and one.number not in other.stops]
                assert not twice or other.killed, f"{claim.id} is on two runners"
        runner.held += action.claims

    def _tell(self, action: Notify) -> None:
        runner = self.runners.get(action.runner)
        if runner is None:
            return
        match action.message:
            case Exit():
                runner.leaving = True
            case Stop(number=number, reason=reason):
                runner.stops[number] = reason

    def _take_back(self, action: TakeBack) -> None:
        runner = self.runners.get(action.runner)
        count = 0
        if runner is not None:
            count = min(action.most, len(runner.held) - runner.begun)
            del runner.held[len(runner.held) - count :]
        self.inbox.append(TakenBack(action.runner, count))

    def begin(self) -> bool:
        """A runner begins what it was given."""
        some = [runner for runner in self.runners.values() if runner.begun < min(len(runner.held), runner.slots)]
        for runner in some:
            runner.begun = min(len(runner.held), runner.slots)
        return bool(some)

    def end(self, *kinds: str) -> bool:
        """A job ends."""
        some = [runner for runner in self.runners.values() if runner.begun]
        if not some:
            return False
        runner = self.dice.choice(some)
        claim = runner.held.pop(self.dice.randrange(runner.begun))
        runner.begun -= 1
        if runner.quota:
            runner.quota = runner.quota - 1 or -1
        reason = runner.stops.pop(claim.number, "")
        kind = {"cancel": "cancelled", "interrupt": "interrupted"}.get(reason, self.dice.choice(kinds))
        amount = 2_000_000 if kind in ("retry", "snoozed", "limited") else 0
        self.ran.add(claim.id)
        if self.alone and kind in ("succeeded", "failed"):
            self.done.add(claim.id)
        self.inbox.append(
            Heard(
                runner.number,
                [Done(claim.number, ended_as(kind, amount, claim.lane), 100, self.dice.choice((0, 0, 200)))],
            )
        )
        return True

    def leave(self) -> bool:
        """A runner that may leave does, or one that was killed is gone."""
        some = [one for one in self.runners.values() if one.killed or (one.leaving and not one.held)]
        return self._die(self.dice.choice(some), 9 * some[0].killed) if some else False

    def die(self) -> bool:
        return self._die(self.dice.choice(list(self.runners.values())), 11) if self.runners else False

    def _die(self, runner: Runner, number: int) -> bool:
        del self.runners[runner.number]
        if self.dice.random() < 0.5:
            self.inbox.append(RunnerClosed(runner.number))
            if self.dice.random() < 0.5:
                self.turn()
        unstarted = len(runner.held) - runner.begun
        self.inbox.append(RunnerDied(runner.number, number, 0, 0, [], unstarted))
        return True

    # -- others -----------------------------------------------------------------------------------------------------

    def told(self, message: Drain) -> None:
        self.inbox.append(message)

    # -- what must hold ---------------------------------------------------------------------------------------------

    def startable(self) -> list[Job]:
        """Jobs in the store that an idle runner of this worker could run."""
        room = {
            runner.kind
            for runner in self.runners.values()
            if not (runner.leaving or runner.killed or runner.starting)
            # It may have been born with the size before.
            and len(runner.held) < min(runner.room, self.core.runner_pool.assignment.handles[runner.number].slots)
            # One that was forked for a suspect takes no other job.
            and not self.core.runner_pool.assignment.handles[runner.number].single
        }
        found: list[Job] = []
        stores = [one.store for one in self.sessions if not one.silent]
        for store, queue in [(store, queue) for store in stores for queue in self.core.worker.options.queues.names]:
            if queue not in store.paused:
                for _, id in store.ready.get(queue, ()):
                    job = store.jobs[id]
                    kind = app.tasks[job.task].kind
                    if store.open(id) and kind in room and not (job.crashes and kind in ("thread", "async")):
                        found.append(job)
        return found

    @property
    def pending(self) -> bool:
        """Whether something is on its way that may start a job: in a store, at the supervisor, or a time that is near."""
        dying = any(runner.killed or runner.starting for runner in self.runners.values())
        times = [self.core.worker.timers.at(name) for name in ("spawn", "tidy", "stall", "reserved", "asked")]
        near = any(self.now < at <= self.now + 5.01 for at in times)
        return bool(self.wanted or dying or near or any(one.under_way for one in self.sessions))

    def check_limits(self) -> None:
        """No more run than their limit lets. A server that forgets may let others pass."""
        running = [
            claim
            for runner in self.runners.values() if not runner.killed
            for claim in runner.held[: runner.begun] if claim.number not in runner.stops
        ]  # fmt: skip
        passed = [claim for claim in running if claim.task.endswith("-limited") or API in gates_of(claim.lane)]
        assert self.store.forgetful or len(passed) <= most_of(API), f"{passed} run at once"

    def check_all(self) -> None:
        """Never idle with work that could start; never at work when another worker may have it."""
        for session in self.sessions:
            session.check()
        self.check_limits()
        if self.core.worker.phase == "working" and not self.pending:
            for session in self.sessions:
                assert session.incarnation.desk.owner or session.silent, "it is not registered"
            known = [(one.incarnation.demand.known, one.asleep) for one in self.sessions]
            assert not self.startable(), (self.startable(), known)
            _, _, starving = self.core.check_vitals(self.now)
            assert not starving or self.now - starving < 30, "it counts as one whose claims stopped"

    def calm(self, seconds: float = 8.0) -> None:
        """Let all that is under way come to its end, while no job that runs ends and nothing else happens.

        Args:
            seconds: that may pass; the usual ones are those of a retry, and then a look from the front.
        """
        end, singly = self.now + seconds, self.dice.random() < 0.1
        for _ in range(2000):
            if self.settle_down(singly=singly):
                # What the dispatcher does not hear of wakes it as little as it would wake the loop, which tells it what
                # happened before anything goes on.
                for session in self.sessions if not self.inbox else ():
                    session.send_next()
                if not self.inbox:
                    continue
            elif self.now < self.core.next <= end:
                self.now = self.core.next
            else:
                break
            self.turn()
        else:
            raise AssertionError("it does not come to rest")
        if self.core.worker.phase == "working":
            for session in self.sessions:
                session.check_at_rest()
            if not any(one.incarnation.renewal.gone or one.forbidden for one in self.sessions):
                self.check_places()

    def set(self, timer: str) -> bool:
        """Whether a time is set that comes."""
        desks = [one.incarnation.desk for one in self.sessions]
        return any(self.now < one.timers.at(timer) < float("inf") for one in (self.core.worker, *desks))

    def check_places(self) -> None:
        """Each place has a runner, which waits for no job; and counts agree."""
        core = self.core
        places = [place for kind in core.runner_pool.assignment.kinds.values() for place in kind.snapshot.members]
        empty = [place for place in places if place.handle is None]
        assert not empty or self.set("spawn"), "a place stays empty"
        unserved = [
            place
            for place in places
            if place.line and (handle := place.handle) and handle.ready and handle.spare(handle.slots) > 0
        ]
        assert not unserved, "a job waits for a place whose runner has a free slot"
        homes = core.local_queues._homes.values()
        waiting = sum(len(place.line) for place in places) + sum(len(home.waiting) for home in homes)
        assert core.local_queues.waiting == waiting, "what waits for places is counted wrong"

    def settle_down(self, *, singly: bool = False) -> bool:
        """Let everything that can happen do so once, or only the first of it."""
        what = [
            happens for one in self.sessions
            for happens in (
                one.connect, one.store_acts, one.store_answers, one.waker_acts, one.waker_answers, one.unblocks,
            )
        ] + [self.spawn, self.come_up, self.leave, self.begin]  # fmt: skip
        return any(happens() for happens in what) if singly else sum(happens() for happens in what) > 0
