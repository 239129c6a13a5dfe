"""How much is where: states, queues, workers and what they say of themselves, in one look.

And why a job does not run: one read of its record, its place, what it waits for, and the workers that may run it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from headrace.model.ids import OWN_QUEUE
from headrace.model.job import moment, number, priority_of, ready_at
from headrace.model.workflow import parse_facts
from headrace.protocol.index_pages import rows_of
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, load, text_of, text_pairs


class QueueFacts(msgspec.Struct, frozen=True):
    """A queue.

    Attributes:
        oldest: since when its next job is ready, microseconds, whatever its priority; where jobs wait behind limits,
            since when the first of these does, if that is longer. 0: it is empty.
        until: when its pause ends by itself, microseconds; 0: it is not paused, or until it is resumed.
        note: why it is paused, as the person said who did it.
        held: ready jobs none of which may start now, since limits are closed for all of their values.
    """

    name: str
    size: int
    paused: bool
    oldest: int
    until: int
    note: str = ""
    held: int = 0

    def waited(self, now: int) -> float | None:
        """Seconds that its next job has waited; None: no job may be the next."""
        return max(0, now - self.oldest) / 1e6 if self.oldest else None


# Runners of one worker that its heartbeat tells of.
MOST_RUNNERS = 64


class RunnerFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One runner of a worker, as its dispatcher saw it at its last heartbeat.

    Attributes:
        place: its number among those of its kind; -1: it leaves, or runs a suspect alone.
        job, task, since: what it runs, or the oldest of several, and when that began (microseconds); empty: it is idle.
        soft, kill: since when its soft limit is over, and when it is killed (microseconds); 0: it was not told to stop.
        holds: jobs that it runs or was sent ahead; ``waiting``: jobs that wait for it in the worker.
        memory: resident bytes, in whole MiB; 0: unknown on this system.
        replaced, reason: how often the process at its place was replaced, and why the last time.
    """

    kind: str
    place: int = 0
    pid: int = 0
    job: str = ""
    task: str = ""
    since: int = 0
    soft: int = 0
    kill: int = 0
    holds: int = 0
    waiting: int = 0
    done: int = 0
    memory: int = 0
    replaced: int = 0
    reason: str = ""


class WorkerFacts(msgspec.Struct, frozen=True):
    """A dispatcher incarnation: end of its lease (microseconds), running jobs, and what it says of itself."""

    owner: str
    lease: int
    running: int
    metadata: dict[str, str]

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(filter(None, self.metadata.get("queues", "").split(",")))

    @property
    def place(self) -> str:
        return self.metadata.get("place", self.owner)

    @property
    def sizes(self) -> dict[str, int]:
        return self._by_kind("sizes")

    @property
    def busy(self) -> dict[str, int]:
        busy = self._by_kind("busy")
        return {kind: min(busy.get(kind, 0), size) for kind, size in self.sizes.items()}

    @property
    def slots(self) -> int:
        return sum(self.sizes.values())

    @property
    def processes(self) -> dict[str, int]:
        return self._by_kind("runners")

    def _by_kind(self, name: str) -> dict[str, int]:
        pairs = (part.partition(":") for part in self.metadata.get(name, "").split())
        return {kind: int(count) for kind, _, count in pairs if count.isdecimal()}

    @property
    def draining(self) -> bool:
        """Whether it claims no more: it stops, or is quiet. Known where what workers say of their runners was read."""
        return "draining" in self.metadata

    @property
    def quiet(self) -> bool:
        """Whether it claims no more and stays until it is told to stop."""
        return self.metadata.get("draining") == "quiet"

    @property
    def runners(self) -> list[RunnerFacts]:
        try:
            return msgspec.json.decode(self.metadata.get("runner_facts", "[]"), type=list[RunnerFacts])
        except msgspec.MsgspecError:
            return []


class Overview(msgspec.Struct, frozen=True):
    """Counts by state, queues, workers, parked jobs by task, bytes of results, first starts of code, server time."""

    now: int
    states: dict[str, int]
    queues: list[QueueFacts]
    workers: list[WorkerFacts]
    parked: dict[str, int]
    bytes: int
    deploys: Mapping[str, int] = {}

    @property
    def live(self) -> list[WorkerFacts]:
        return [worker for worker in self.workers if worker.lease > self.now]

    @property
    def silent(self) -> list[WorkerFacts]:
        """Workers whose lease has ended, and that no other one has taken over from yet."""
        return [worker for worker in self.workers if worker.lease <= self.now]

    @property
    def served(self) -> Counter[str]:
        return Counter(name for one in self.live for name in set(one.queues))

    @property
    def names(self) -> list[str]:
        """Every queue that holds work, held some lately, is paused, or is served by a live worker."""
        return sorted({queue.name for queue in self.queues} | set(self.served))


def _overview(reply: Any) -> Overview:
    now, states, lines, workers, parked, size, deploys = reply
    queues: list[QueueFacts] = []
    for name, count, paused, score, priority, until, note, held, since in lines:
        oldest = min(filter(None, (ready_at(moment(score), priority_of(priority)), moment(since))), default=0)
        queues.append(QueueFacts(text_of(name), count, bool(paused), oldest, moment(until), text_of(note), held))
    incarnations = [
        WorkerFacts(text_of(owner), moment(lease), running, text_pairs(facts))
        for owner, lease, running, facts in workers
    ]
    return Overview(
        now, {text_of(states[n]): states[n + 1] for n in range(0, len(states), 2)},
        sorted(queues, key=lambda queue: queue.name), incarnations,
        {text_of(task): count for task, count in parked}, size, dict(rows_of(deploys)),
    )  # fmt: skip


def overview(keys: Keys, *, details: bool = True) -> Call[Overview]:
    """How much is where; ``details``: with what workers say of their runners (up to 64 for each), and of preloading.

    Tells of each queue that holds ready jobs, is paused or is named by a worker, and of 500 others that held work once.
    A look at a store that knows more queues takes 10,000 of them, and forgets the idle ones. Cost: O(live queues +
    workers + parked tasks), whatever the number of jobs and of past queues.
    """
    return load("overview").bind(keys, _overview, details=int(details))


# Running jobs, and scheduled ones, whose queue one read looks up: each costs the server some two microseconds.
LOOK = 1000


class CountedQueues(msgspec.Struct, frozen=True):
    """Jobs by queue; ``looked``: how many of the ``total`` were looked at."""

    total: int
    looked: int
    counts: Mapping[str, int]

    def of(self, queue: str) -> int:
        """How many are of a queue: exact where all were looked at, else their share; 0 is never a guess."""
        found = self.counts.get(queue, 0)
        return found if self.looked >= self.total else max(1, found * self.total // max(1, self.looked))


class StoreLoad(msgspec.Struct, frozen=True):
    """What there is to do at one moment. Times in microseconds of server time.

    Attributes:
        ready: ready jobs of each queue that was named; ``paused``: those of them that are paused.
        running: jobs that run or were sent ahead to a runner.
        due: scheduled jobs that come due within the time that was asked for.
        first_tick: when the next tick of a schedule is due; 0: there is none.
        memory, max_memory: bytes that the server uses and may use; 0: unknown, and without a limit.
    """

    now: int
    ready: Mapping[str, int]
    paused: frozenset[str]
    running: CountedQueues
    due: CountedQueues
    first_tick: int
    memory: int
    max_memory: int


def _counted(reply: Any) -> CountedQueues:
    total, looked, rows = reply
    names = [text_of(rows[n]) for n in range(0, len(rows), 2)]
    return CountedQueues(total, looked, dict(zip(names, rows[1::2], strict=True)))


def store_load(keys: Keys, queues: Sequence[str] = (), soon: int = 0, look: int = LOOK) -> Call[StoreLoad]:
    """What queues have to do; what runs and is due ``soon`` (microseconds) of every queue. ``look``: most looked up."""

    def parse(reply: Any) -> StoreLoad:
        at, waiting, running, due, first, memory, most = reply
        ready = {queue: size for queue, (size, _) in zip(queues, waiting, strict=True)}
        held = frozenset(queue for queue, (_, paused) in zip(queues, waiting, strict=True) if paused)
        return StoreLoad(at, ready, held, _counted(running), _counted(due), moment(first), memory, most)

    return load("load").bind(keys, parse, names=list(queues), soon=soon, look=look)


# Workers that one read looks at.
MOST_WORKERS = 100

# Fields of a job's record, and of its workflow's, that reasons are made of.
FIELDS = (
    "st", "queue", "task", "owner", "token", "key", "priority", "error", "failures", "crashes", "snoozes",
    "finished", "cancel", "pending", "parents", "skip",
)  # fmt: skip
FLOW_FIELDS = ("st", "created")


class WorkerSeen(msgspec.Struct, frozen=True):
    """A worker, as far as one job is concerned. Times in microseconds of server time.

    Attributes:
        queues: that it serves, those that it prefers first; ``weighted``: with weights, else in strict order.
        kind: of the job's task in this worker; empty: it does not know the task.
        kinds: of its runners; empty: it has not said.
        size: jobs of the task's kind that it runs at once.
        held: jobs of this kind that it holds; of runners of several kinds or several shards, at its last heartbeat.
        lease: when its lease ends; 0: it was given up.
        heard: when it renewed its lease last; 0: unknown.
        claimed: when it claimed last, or began.
        draining: it is stopping, and claims no more.
        runners: as of its last heartbeat; told where it serves the job's queue.
        bare: its last heartbeat said that it has none of the job's kind.
        preferred: ready jobs of the queues that it prefers to the job's.
        tasks: that it knows, where it serves the queue and does not know the job's.
    """

    place: str
    queues: tuple[str, ...] = ()
    kind: str = ""
    kinds: tuple[str, ...] = ()
    size: int = 0
    held: int = 0
    owner: str = ""
    lease: int = 0
    heard: int = 0
    claimed: int = 0
    draining: bool = False
    weighted: bool = False
    runners: tuple[RunnerFacts, ...] = ()
    bare: bool = False
    preferred: Mapping[str, int] = {}
    tasks: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        return self.able and bool(self.kinds) and self.held >= self.size

    @property
    def able(self) -> bool:
        return bool(self.kind) and (self.size > 0 or not self.kinds)


class OtherJob(msgspec.Struct, frozen=True):
    """A job that another one waits for; ``state`` is empty where it is not stored.

    Attributes:
        policy: of a parent that ended: the letter of its edge, see :class:`headrace.model.workflow.NodeFacts`.
    """

    id: str
    state: str
    task: str = ""
    policy: str = ""
    name: str = ""


class GateSeen(msgspec.Struct, frozen=True):
    """A limit for one value, which a job must pass to start.

    Attributes:
        value: ``*``: all values of the limit together, while they are paused.
        opens: when it opens, microseconds; 0: it is open, -1: when one of its jobs ends or it is resumed.
        held: how many jobs and programs hold it.
        why: it is closed: ``paused``, ``full`` (as many run as may), ``refused`` (a call was), ``rate``.
    """

    limit: str
    value: str
    opens: int
    held: int
    why: str = ""


class WhyFacts(msgspec.Struct, frozen=True):
    """What one read found. Times in microseconds of server time, 0 where there is none.

    Attributes:
        kind: what the server calls the type of its record: ``hash``, or ``none``.
        record, flow: fields of its record and of its workflow's; absent ones are left out.
        place: see the script.
        others: those that it waits for; ``told``: why some of them do not run, by their ids.
        workers: the first ``MOST_WORKERS`` of the ``live`` ones; of a job that runs, its own.
        kept: seconds that a success, and any other end, stay by the settings here: ``result_ttl``, ``failure_ttl``.
        rate: jobs of its queue that started in a second, over the last ten minutes; 0: unknown.
    """

    id: str
    now: int
    kind: str = "hash"
    record: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    flow: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    place: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    others: tuple[OtherJob, ...] = ()
    gates: tuple[GateSeen, ...] = ()
    live: int = 0
    workers: tuple[WorkerSeen, ...] = ()
    server: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    namespace: str = ""
    kept: Mapping[str, float] = msgspec.field(default_factory=dict[str, float])
    told: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    rate: float = 0.0

    @property
    def state(self) -> str:
        return self.record.get("st", "")

    @property
    def queue(self) -> str:
        return self.record.get("queue", "default")

    @property
    def task(self) -> str:
        return self.record.get("task", "")

    def time(self, field: str) -> int:
        return number(self.record.get(field))

    def where(self, name: str) -> int:
        return moment(self.place.get(name))

    @property
    def here(self) -> tuple[WorkerSeen, ...]:
        return tuple(worker for worker in self.alive if self.queue == OWN_QUEUE or self.queue in worker.queues)

    @property
    def alive(self) -> tuple[WorkerSeen, ...]:
        return tuple(worker for worker in self.workers if worker.lease > self.now)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _named(flat: list[Any]) -> dict[str, str]:
    return {_text(flat[n]): _text(flat[n + 1]) for n in range(0, len(flat), 2)}


def _fields(names: tuple[str, ...], values: list[Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in zip(names, values, strict=False) if value is not None}


def _worker(row: list[Any], *, many: bool) -> WorkerSeen:
    owner, ends, held, kind, place, queues, sizes, lease, claimed, draining, weights, since, runners = row[:13]
    said = bool(_text(runners))
    told = {"queues": _text(queues), "sizes": _text(sizes), "runner_facts": _text(runners) or "[]"}
    facts = WorkerFacts(_text(owner), moment(ends), held, told)
    runners, kind = tuple(facts.runners), _text(kind)
    # A heartbeat may be some seconds old, the store's count is not, but tells nothing of kinds and of other shards.
    if many or len(facts.sizes) != 1:
        held = sum(runner.holds for runner in runners if runner.kind == kind)
    length = number(lease)
    return WorkerSeen(
        place=_text(place) or _text(owner), queues=facts.queues, kind=kind, kinds=tuple(facts.sizes),
        size=facts.sizes.get(kind, 0), held=held, owner=_text(owner),
        lease=facts.lease, heard=facts.lease - length if length and facts.lease else 0,
        claimed=number(claimed) or number(since), draining=bool(draining), weighted=bool(weights), runners=runners,
        bare=said and len(runners) < MOST_RUNNERS and all(runner.kind != kind for runner in runners),
        preferred={name: number(size) for name, size in _named(row[13]).items()},
        tasks=tuple(name for name in map(_text, row[14]) if not name.startswith("~")),
    )  # fmt: skip


def _other(row: list[Any]) -> OtherJob:
    id, state, task, policy, facts = row
    return OtherJob(_text(id), _text(state), _text(task), _text(policy), parse_facts(facts).name)


def _gate(row: list[Any]) -> GateSeen:
    limit, value, opens, held, why = row
    return GateSeen(_text(limit), unquote(_text(value)), opens, held, _text(why))


def why(keys: Keys, id: str) -> Call[WhyFacts]:
    """What keeps a job from running. Cost: O(log n), and some commands for each of at most ``MOST_WORKERS`` workers."""

    def parsed(reply: Any) -> WhyFacts:
        now, kind, values, flow, place, others, gates, live, workers, server = reply
        return WhyFacts(
            id, now, _text(kind), _fields(FIELDS, values), _fields(FLOW_FIELDS, flow), _named(place),
            tuple(map(_other, others)), tuple(map(_gate, gates)), live,
            tuple(_worker(row, many=keys.count > 1) for row in workers), _named(server),
            namespace=keys.prefix.strip("{}:").rpartition(":")[0],
        )  # fmt: skip

    script = load("why")
    return script.bind(keys, parsed, id=id, fields=list(FIELDS), flow_fields=list(FLOW_FIELDS), limit=MOST_WORKERS)
