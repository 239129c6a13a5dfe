"""Why a job does not run: one read of its record, its place, what it waits for, and the workers that may run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from headrace.model.ids import OWN_QUEUE
from headrace.model.job import moment, number
from headrace.model.workflow import parse_facts
from headrace.protocol.keys import Keys
from headrace.protocol.overviews import MOST_RUNNERS, RunnerFacts, WorkerFacts
from headrace.protocol.script import Call, load

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
        held: jobs of this kind that it holds; where it has runners of several kinds, at its last heartbeat.
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


def _worker(row: list[Any]) -> WorkerSeen:
    owner, ends, held, kind, place, queues, sizes, lease, claimed, draining, weights, since, runners = row[:13]
    said = bool(_text(runners))
    told = {"queues": _text(queues), "sizes": _text(sizes), "runner_facts": _text(runners) or "[]"}
    facts = WorkerFacts(_text(owner), moment(ends), held, told)
    runners, kind = tuple(facts.runners), _text(kind)
    # A heartbeat may be some seconds old, the store's count is not, but tells nothing of kinds.
    of_kind = sum(runner.holds for runner in runners if runner.kind == kind)
    length = number(lease)
    return WorkerSeen(
        place=_text(place) or _text(owner),
        queues=facts.queues,
        kind=kind,
        kinds=tuple(facts.sizes),
        size=facts.sizes.get(kind, 0),
        held=held if len(facts.sizes) == 1 else of_kind,
        owner=_text(owner),
        lease=facts.lease,
        heard=facts.lease - length if length and facts.lease else 0,
        claimed=number(claimed) or number(since),
        draining=bool(draining),
        weighted=bool(weights),
        runners=runners,
        bare=said and len(runners) < MOST_RUNNERS and all(runner.kind != kind for runner in runners),
        preferred={name: number(size) for name, size in _named(row[13]).items()},
        tasks=tuple(name for name in map(_text, row[14]) if not name.startswith("~")),
    )


def _other(row: list[Any]) -> OtherJob:
    id, state, task, policy, facts = row
    return OtherJob(_text(id), _text(state), _text(task), _text(policy), parse_facts(facts).name)


def _gate(row: list[Any]) -> GateSeen:
    limit, value, opens, held, why = row
    return GateSeen(_text(limit), unquote(_text(value)), opens, held, _text(why))


def why(keys: Keys, id: str) -> Call[WhyFacts]:
    """What keeps a job from running. Changes nothing. Cost: O(log n) and a few commands for each of at most
    ``MOST_WORKERS`` live workers, and one for each of at most 1,000 parents.
    """

    def parsed(reply: Any) -> WhyFacts:
        now, kind, values, flow, place, others, gates, live, workers, server = reply
        return WhyFacts(
            id,
            now,
            _text(kind),
            _fields(FIELDS, values),
            _fields(FLOW_FIELDS, flow),
            _named(place),
            tuple(map(_other, others)),
            tuple(map(_gate, gates)),
            live,
            tuple(map(_worker, workers)),
            _named(server),
            namespace=keys.prefix.strip("{}:").rpartition(":")[0],
        )

    script = load("why")
    return script.bind(keys, parsed, id=id, fields=list(FIELDS), flow_fields=list(FLOW_FIELDS), limit=MOST_WORKERS)
