"""The doctor of the keyspace: walks a store beside its workers, names what contradicts itself, and leads jobs back.

1. Jobs: the script ``examine`` compares records with their structures at one moment, ``PIECE`` ids at a time.
2. Workflows, names, orders, limits and workers: the suite's rules judge what ``keyspace.py`` reads around each. A fault
   of these counts if a second look, a lease later, finds it again.
3. Repairs: a script finds each fault again before it repairs it.

It sleeps nineteen times as long as the server worked for it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.admin import keyspace, keyspace_rules
from headrace.admin.flow_rules import ENDED, flow_breaches
from headrace.errors import ServerError
from headrace.model.environment import MOST_EVIDENCE, Finding, Severity
from headrace.model.ids import FINAL, LENGTH, flow_of, is_node, is_ordered, is_unique, shard_of
from headrace.model.options import KINDS
from headrace.protocol import consume, operations
from headrace.protocol.keys import documented
from headrace.protocol.overviews import WorkerFacts, overview
from headrace.settings import microseconds
from headrace.store.client import Client
from headrace.store.store import Store

T = TypeVar("T")

PIECE = 200  # ids and keys of one piece: less than a millisecond of the server
SHARE = 0.05  # the share of a server's time that the doctor takes

_REPAIR = "headrace doctor keyspace --repair"
REPAIRED = ("no-record", "misplaced", "claims", "counters")
# Each finding: its severity, what it means, and the command that repairs it.
ROWS: dict[str, tuple[Severity, str, str]] = {
    "restored": ("error", "the store is an old copy: no worker claims", "headrace restored --live park, or run"),
    "no-record": ("error", "an id is in a structure, and no job has it", _REPAIR),
    "misplaced": ("error", "a job is not in the structure of its state, so it waits for ever or never ends", _REPAIR),
    "claims": ("error", "jobs are claimed by a worker that has no lease", _REPAIR),
    "counters": ("warn", "a counter of the store is not the sum of what it counts", _REPAIR),
    "twice": ("error", "a job is in two structures and may start twice", f"headrace jobs cancel ID, then {_REPAIR}"),
    "workers": ("warn", "keys of a worker outlived its lease", "headrace worker MODULE:APP, which takes them over"),
    "starts": (
        "error", "a claim and the record of its job contradict each other: no worker can settle the job",
        "headrace jobs cancel ID",
    ),
    "queues": ("warn", "lists of queues, pauses or parked tasks contradict each other", "headrace queues resume NAME"),
    "waiters": ("warn", "a program waits for a job that has ended, and was not told", "run the program again"),
    "schedules": ("error", "a schedule has no next tick or is in no list", "headrace cron pause NAME, then resume it"),
    "order": (
        "error", "ordered jobs wait for a turn that no live job has", "headrace jobs cancel ID, then enqueue it again"
    ),
    "workflow": (
        "error", "a workflow contradicts its nodes or its indexes", "headrace workflows cancel ID, then workflows rm ID"
    ),
    "held": (
        "error", "a limit or a unique name is held by a job that has ended, or a limit lost its count",
        "headrace jobs rm ID; for a limit headrace limits pause NAME and resume NAME",
    ),
    "asleep": ("error", "jobs are ready, and no idle worker was woken", "headrace queues pause NAME, then resume NAME"),
    "unreadable": ("error", "a record or a key has another type or state than Headrace writes", "headrace jobs rm ID"),
    "unexplained": ("warn", "a key under the prefix belongs to nothing", "redis-cli UNLINK KEY, if nothing needs it"),
    "other-shard": ("error", "the id of a job names another shard than its key", "headrace jobs show ID"),
}  # fmt: skip
_STRUCTURES = ("scheduled", "ready", "parked", "claims", "held", "chain", "lane", "expires", *FINAL)


def _waited() -> float:
    """Seconds in which this thread did not compute: of the time since a value, the server had this at most."""
    return time.monotonic() - time.thread_time()


def findings_of(shards: Sequence[list[Finding]]) -> list[Finding]:
    """What was found on several shards, the errors first; evidence names the shard."""
    found: dict[str, Finding] = {}
    for shard, findings in enumerate(shards):
        for one in findings:
            was, where = found.get(one.id), f"shard {shard}: " if len(shards) > 1 else ""
            if was and one.severity == "unknown":
                continue
            if was and was.severity == "unknown":
                was = None
            evidence = (*(was.evidence if was else ()), *(where + said for said in one.evidence))[:MOST_EVIDENCE]
            count = one.count + (was.count if was else 0)
            found[one.id] = msgspec.structs.replace(one, evidence=evidence, count=count)
    return [found[row] for row in ROWS if row in found]


class KeyspaceDoctor:
    """One walk over the keys of a namespace.

    Args:
        client: of the application, or a store of one of its shards: scripts go through it.
        server: a client of the driver, which answers in bytes.
        repair: repair what cannot hurt.
        share: of the server's time that the walk takes; 1: it does not sleep.
        apart: seconds between two looks at what may be on its way; None: a lease.
        heard: called with how many keys were read.
    """

    def __init__(
        self,
        client: Client | Store,
        server: Any,
        *,
        repair: bool = False,
        share: float = SHARE,
        apart: float | None = None,
        heard: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.repaired = 0
        self._client, self._server, self._keys = client, server, client.keys
        self._namespace = client.settings.namespace
        self._repair, self._share, self._heard = repair, share, heard
        self._found: dict[str, dict[str, str]] = defaultdict(dict)
        # By finding and subject: how to look at it again, as long as something looks wrong.
        self._suspects: dict[tuple[str, str], Callable[[], Iterable[str]]] = {}
        self._known: set[tuple[str, str]] = set()
        # Rows of what could not be read at one moment.
        self._unread: set[str] = set()
        # Seconds that the server works for a page or for an id of a piece, at least.
        self._least: dict[str, float] = defaultdict(lambda: math.inf)
        self._followers, self._chains, self._followed, self._walked = 0, set[str](), set[str](), 0
        self._ttl = microseconds(client.settings.failure_ttl)
        self._apart = client.settings.lease if apart is None else apart

    def run(self) -> list[Finding]:
        """Walk once; what was found, the errors first. Cost: about 13 microseconds of the server a job, at most
        ``share`` of its time; two leases at least where something looks wrong that may be on its way. Raises
        HeadraceError, redis.exceptions.RedisError: the server did not answer.
        """
        token, size = self._server.get(self._keys("token")), self._total("bytes")
        self._walk()
        # Counters are judged if no job has started since: what ends or lines up meanwhile would look like a fault.
        self._count(lambda: self._server.get(self._keys("token")) == token, size)
        first = self._looked()
        if first:
            time.sleep(self._apart)
        for row, said in self._looked().items() if first else ():
            for sentence in said & first.get(row, set[str]()):
                self._found[row[0]][sentence] = row[1]
        if self._repair:
            self._reclaim_expired_claims()
        if lost := self._client.run(operations.restored(self._keys, go=False)):
            self._found["restored"][f"the last {lost / 1e6:.0f} s were lost"] = ""
        return self.findings()

    def findings(self) -> list[Finding]:
        shown: list[Finding] = []
        for row, (severity, meaning, command) in ROWS.items():
            if found := self._found.get(row):
                evidence = tuple(sorted(found)[:MOST_EVIDENCE])
                shown.append(Finding(row, severity, meaning, command, evidence, len(found)))
            elif row in self._unread:
                shown.append(Finding(row, "unknown", meaning, command))
        return shown

    # -- the walk --------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        read, families = 0, {name.partition(":")[0] for name in documented()}
        began = _waited()
        # Several shards may be on one server.
        prefix = self._keys.prefix if self._keys.count > 1 else ""
        for page in keyspace.pages(self._server, self._namespace, size=PIECE, unread=families, prefix=prefix):
            self._rest(began, "page")
            for space in page:
                for sentence in space.violations:
                    self._found["unreadable" if ": is a " in sentence else "unexplained"][sentence] = sentence
                read += sum(map(len, space.values.values()))
                self._of_jobs(list(space.values["job"]))
                self._of_structures(space.values)
                self._of_subjects(space.values)
            self._heard(read)
            began = _waited()

    def _of_jobs(self, ids: list[str]) -> None:
        self._examine("", ids)
        for id in ids:
            try:
                wrong = shard_of(id) != self._keys.shard
            except ValueError:
                wrong = False
                self._found["unreadable"][f"job {id}: its key holds no id"] = id
            if wrong:
                self._found["other-shard"][f"job {id}: is on shard {self._keys.shard}"] = id
        special = list(self._fields([id for id in ids if is_unique(id) or is_ordered(id)], "unique", "key"))
        self._of_names({name: id for id, name, _ in special if name})
        for id, _, key in special:
            if key and is_ordered(id):
                self._suspect("order", f"{key} {id}", partial(self._of_order, key, id))
        for id in filter(is_node, ids):
            if not self._server.exists(self._keys.flow(flow_of(id))):
                self._suspect("workflow", id, partial(self._of_flow, flow_of(id), id))

    def _fields(self, ids: list[str], *names: str) -> Iterator[tuple[str, ...]]:
        pipe = self._server.pipeline(transaction=False)
        for id in ids:
            pipe.hmget(self._keys.job(id), *names)
        for id, row in zip(ids, pipe.execute(raise_on_error=False), strict=True):
            if not isinstance(row, Exception):
                yield (id, *map(keyspace.text_of, row))

    def _of_structures(self, values: Any) -> None:
        for family in _STRUCTURES:
            for hole in values[family]:
                place = f"{family}:{hole}" if hole else family
                for piece in self._members(place):
                    size = self._examine(place, [id for id in piece if id[:1] not in ("~", "-")])
                    self._walked += size if place in FINAL else 0

    def _members(self, place: str) -> Iterator[list[str]]:
        """The members of a structure, in pieces. Those of a final state in their order, each once: they are counted."""
        key = self._keys(place)
        if place in FINAL:
            at = 0
            while found := self._server.zrange(key, at, at + PIECE - 1):
                yield list(map(keyspace.text_of, found))
                at += PIECE
            return
        cursor = 0
        while True:
            cursor, found = self._server.zscan(key, cursor, count=PIECE)
            yield [keyspace.text_of(member) for member, _ in found]
            if not cursor:
                return

    def _of_subjects(self, values: Any) -> None:
        for flow in {*values["flow"], *values["broken"], *values["undo"], *values["held"]}:
            self._suspect("workflow", flow, partial(self._of_flow, flow))
        for view in [f"flows:{view}" for view in values["flows"]] + (["lapses"] if "" in values["lapses"] else []):
            for piece in self._members(view):
                for id in piece:
                    if not self._server.exists(self._keys.flow(id)):
                        self._suspect("workflow", id, partial(self._of_flow, id))
        self._of_names(dict.fromkeys(values["unique"], ""))
        told = self._server.mget(map(self._keys, map("unique:{}".format, values["unique"]))) if values["unique"] else ()
        self._followers += sum(len(value or b"") > LENGTH for value in told)
        for key in {*values["turn"], *values["chain"]}:
            self._suspect("order", key, partial(self._of_order, key))
        self._chains |= values["chain"].keys()
        self._followed |= values["after"].keys()
        for family in (*keyspace.OF_QUEUES, *keyspace.OF_WORKERS, *keyspace.OF_LIMITS):
            self._known |= {(family, hole) for hole in values[family]}

    def _of_names(self, jobs: dict[str, str]) -> None:
        """Judge names, each with the job that says it has it, if any: all at once, and one by one if any is wrong."""
        if jobs and self._timed(lambda: self._name_breaches(jobs)):
            for name, id in jobs.items():
                self._suspect("held", f"name {name}", partial(self._name_breaches, {name: id}))

    def _examine(self, place: str, ids: list[str]) -> int:
        """Have a script compare jobs with their structures; bytes of their results."""
        total = 0
        for first in range(0, len(ids), PIECE):
            began, piece = _waited(), ids[first : first + PIECE]
            call = operations.examine(self._keys, place, piece, self._ttl, repair=self._repair)
            size, faults = self._client.run(call)
            self._rest(began, "piece", max(1, len(piece)))
            total += size
            for fault in faults:
                self.repaired += fault.repaired
                if not fault.repaired:
                    self._found[fault.word][f"job {fault.id}: {fault.evidence}"] = fault.id
        return total

    # -- what a second look must confirm -------------------------------------------------------------------------------

    def _suspect(self, row: str, subject: str, look: Callable[[], Iterable[str]]) -> None:
        if (row, subject) not in self._suspects and any(self._timed(look)):
            self._suspects[row, subject] = look

    def _looked(self) -> dict[tuple[str, str], set[str]]:
        """What looks wrong of each suspect, and of all workers, queues, schedules and limits."""
        found = {subject: set(self._timed(look)) for subject, look in self._suspects.items()}
        for row, said in self._timed(self._everywhere):
            found.setdefault((row, ""), set()).add(said)
        return {subject: said for subject, said in found.items() if said}

    def _of_flow(self, id: str, node: str = "") -> Iterable[str]:
        space = keyspace.around_flow(self._server, self._keys, id)
        if node and self._server.exists(self._keys.job(node)) and not space.values["flow"]:
            space.values["job"][node] = {}
        # What no workflow explains may be what a chore is about to remove.
        return flow_breaches(space.values)

    def _name_breaches(self, jobs: dict[str, str]) -> Iterable[str]:
        space = keyspace.around_names(self._server, self._keys, jobs, filter(None, jobs.values()))
        seconds, micros = self._server.time()
        return keyspace_rules.name_breaches(space.values, space.timed, seconds * 1_000_000 + micros)

    def _of_order(self, key: str, *jobs: str) -> Iterable[str]:
        return keyspace_rules.order_breaches(keyspace.around_order(self._server, self._keys, key, jobs))

    def _everywhere(self) -> Iterator[tuple[str, str]]:
        """Rows, and what the rules say: one reading serves them all, but for the limits, which may be too much."""
        if space := keyspace.around_workers(self._server, self._keys, self._known, limits=False):
            for said in keyspace_rules.owner_breaches(space):
                yield "claims" if said[:7] == "claims:" else "workers", said
            yield from (("starts", said) for said in keyspace_rules.start_breaches(space) if "says none" not in said)
            yield from (("queues", said) for said in keyspace_rules.queue_breaches(space))
            yield from (("schedules", said) for said in keyspace_rules.schedule_breaches(space))
        else:
            self._unread |= {"claims", "workers", "starts", "queues", "schedules"}
        if space := keyspace.around_workers(self._server, self._keys, self._known, limits=True):
            yield from (("held", said) for said in keyspace_rules.lane_breaches(space.values))
        else:
            self._unread.add("held")
        yield from (("waiters", said) for said in self._waiters())
        yield from (("asleep", said) for said in self._asleep())

    def _waiters(self) -> Iterator[str]:
        """Those of jobs and nodes; around workflows their own rule looks."""
        for piece in self._members("waited"):
            for id, state in self._fields([id for id in piece if len(id) == LENGTH], "st"):
                if state in ENDED:
                    yield f"waited: {id} has ended, and its waiters were not told"

    def _asleep(self) -> Iterator[str]:
        """Queues with ready jobs that no idle worker was woken for: all that serve them hold no job."""
        live = list[WorkerFacts]()
        with contextlib.suppress(ServerError):  # a key of another type, which the walk reports
            live = self._client.run(overview(self._keys)).live
        if any(worker.running for worker in live):
            return
        for queue in {name for worker in live for name in worker.queues}:
            kinds = (f"wake:{queue}", *(f"wake:{queue}|{kind}" for kind in KINDS))
            pipe = self._server.pipeline(transaction=True).zrange(self._keys(f"ready:{queue}"), 0, 0)
            pipe.sismember(self._keys("paused"), queue).exists(*map(self._keys, kinds))
            head, paused, awake = pipe.execute()
            if head and not paused and not awake:
                yield f"queue {queue}: {keyspace.text_of(head[0])} is ready, and no worker was woken"

    # -- counters and claims -------------------------------------------------------------------------------------------

    def _count(self, still: Callable[[], bool], size: int) -> None:
        """Judge counters, if no job has started meanwhile and each job is where it should be. ``size``: the bytes of
        results before the walk. Where they are the same now, the walk has summed them.
        """
        if not still() or any(self._found[row] for row in ("no-record", "misplaced", "twice", "unreadable")):
            return
        for field, count in (("bytes", self._bytes), ("blocked", self._blocked)):
            seen = self._total(field)
            right = self._walked if field == "bytes" and seen == size and not self.repaired else count()
            if seen == right or not still() or self._total(field) != seen:
                continue
            if self._repair and self._client.run(operations.recount(self._keys, field, seen, right)):
                self.repaired += 1
            else:
                self._found["counters"][f"totals: {field} says {seen}, there are {right}"] = field

    def _total(self, field: str) -> int:
        return int(self._server.hget(self._keys("totals"), field) or 0)

    def _bytes(self) -> int:
        return sum(self._examine(state, piece) for state in FINAL for piece in self._members(state))

    def _blocked(self) -> int:
        waiting: list[int] = [self._server.zcard(self._keys(f"chain:{key}")) for key in self._chains]
        ids = {id for other in self._followed for piece in self._members(f"after:{other}") for id in piece}
        blocked = sum(state == "blocked" for _, state in self._fields(list(ids), "st"))
        return self._followers + sum(waiting) + blocked

    def _reclaim_expired_claims(self) -> None:
        for sentence in list(self._found["claims"]):
            owner = sentence.removeprefix("claims:").partition(": ")[0]
            while (word := self._client.run(consume.reclaim(self._keys, owner, False, 500, self._ttl))[0]) == "some":
                pass
            if word == "done":
                self.repaired += 1
                # It removes all keys of the incarnation.
                for row in ("claims", "workers"):
                    gone = [said for said in self._found[row] if said.partition(": ")[0].endswith(f":{owner}")]
                    for said in gone:
                        del self._found[row][said]

    # -- pace ----------------------------------------------------------------------------------------------------------

    def _timed(self, look: Callable[[], Iterable[T]]) -> list[T]:
        began = _waited()
        found = list(look())
        self._rest(began)
        return found

    def _rest(self, began: float, kind: str = "", size: int = 1) -> None:
        """Sleep for what the server worked, as the quickest piece of a kind tells: others waited for this program."""
        spent = (_waited() - began) / size
        if kind:
            spent = self._least[kind] = min(spent, self._least[kind])
        if self._share < 1:
            time.sleep(spent * size * (1 / self._share - 1))
