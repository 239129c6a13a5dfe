"""Checks for test suites: that a keyspace holds exactly what its jobs, queues and workers explain.

Owns the invariants of the data: one state, one structure; counters equal the sets; every key has an owner or
an end. Reads only. For tests and small stores: it walks every key, which nothing in production may do.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import redis

from headrace.model.ids import FINAL, check_name, is_node, is_ordered, is_unique
from headrace.model.job_record import JOURNAL_KEPT, parse_journal
from headrace.protocol import keys as layout
from headrace.testing.lane_invariants import lane_breaches
from headrace.testing.unique_invariants import followers, follows, name_breaches
from headrace.testing.workflow_invariants import flow_breaches, home, is_orphan

_ROW = re.compile(r"^``([^`]+)``( \.\.\.)?\s+(hash|zset|set|list|string|stream)\s+(\S.*)$", re.MULTILINE)
_READ: dict[str, Callable[[Any, str], object]] = {
    "hash": lambda pipe, key: pipe.hgetall(key),
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    "set": lambda pipe, key: pipe.smembers(key),
    "list": lambda pipe, key: pipe.lrange(key, 0, -1),
    "string": lambda pipe, key: pipe.get(key),
    "stream": lambda pipe, key: pipe.xrange(key),
}
# The driver takes longer to read the replies of a pipeline of TYPE and PTTL than the server to give them.
_LOOK = """
local found = {}
for _, key in ipairs(KEYS) do
  found[#found + 1] = redis.call('TYPE', key).ok
  found[#found + 1] = redis.call('PTTL', key)
end
return found
"""
_EXPIRING = (
    *("sender", "request", "cache", "cached", "tagged", "filling", "dropped", "probe", "learned"),
    *("acts", "events", "causes", "floods", "errands", "errand", "watches", "watch", "stacks"),
    *("stat", "stat-sub", "stat-event", "stat-events", "stat-stream", "stat-flow"),
)


@cache
def documented() -> dict[str, str]:
    """Pattern and type of every key, as the table that opens :mod:`headrace.protocol.keys` says.

    A pattern is a name, or a name and what it is appended to: ``scheduled``, ``job:<id>``.
    """
    found: dict[str, str] = {}
    for pattern, more, kind, _ in _ROW.findall(layout.__doc__ or ""):
        for name in FINAL if more else (pattern,):
            found[name] = kind
    return found


def kind_of(key: str, documents: dict[str, str]) -> tuple[str, str] | None:
    """Which documented key a name (without its prefix) is, and what its hole holds; None if none."""
    if key in documents:
        return key, ""
    head, colon, rest = key.partition(":")
    for pattern in documents:
        if colon and rest and pattern.startswith(f"{head}:<"):
            return head, rest
    return None


@dataclass(slots=True)
class Keyspace:
    """One shard's keys at one moment, sorted by what they are.

    Attributes:
        values: per documented key and hole, the value: ``values["ready"]["default"]`` maps ids to scores.
        timed: names of unique jobs that end with a time.
        violations: what the reading itself found wrong.
    """

    shard: str
    values: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict[str, dict[str, Any]](dict))
    timed: set[str] = field(default_factory=set[str])
    violations: set[str] = field(default_factory=set[str])

    def one(self, name: str) -> Any:
        """The value of a key without a hole; empty when it is absent."""
        return self.values[name].get("", {})


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _value(kind: str, reply: Any) -> Any:
    """A reply as plain Python: texts, except that a record's values stay bytes."""
    if kind == "hash":
        return {_text(name): value for name, value in reply.items()}
    if kind == "zset":
        return {_text(member): int(float(score)) for member, score in reply}
    if kind == "set":
        return {_text(member) for member in reply}
    if kind == "raw":
        return reply
    return [_text(item) for item in reply] if kind == "list" else _text(reply)


def _names(client: Any, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Shard, name and whole key of everything under a namespace."""
    form = re.compile(rf"\{{{re.escape(namespace)}:(\d+)\}}:(.*)", re.DOTALL)
    literal = re.sub(r"([*?\[\]\\^])", r"\\\1", namespace)
    for raw in client.scan_iter(match=f"{{{literal}:*", count=1000):
        whole = _text(raw)
        match = form.fullmatch(whole)
        yield (match[1], match[2], whole) if match else ("0", whole, whole)


def _filed(space: Keyspace, whole: str, name: str, kind: str, ttl: int) -> tuple[str, str] | None:
    """What a key is; None, with the violation noted, when it may not be read as that."""
    documents = documented()
    known = kind_of(name, documents)
    if known is None:
        space.violations.add(f"{whole}: no key of this form is documented in keys.py")
        return None
    wanted = next(kind for p, kind in documents.items() if p == known[0] or p.startswith(f"{known[0]}:<"))
    if kind != wanted:
        space.violations.add(f"{whole}: is a {kind}, documented as {wanted}")
        return None
    # -1: it has no end; 0: it has less than a millisecond left; -2: it ended since its type was read.
    if known[0] == "unique" and ttl != -1:
        space.timed.add(known[1])
    if known[0] not in ("gate", "unique") and (known[0] in _EXPIRING) != (ttl != -1):
        space.violations.add(f"{whole}: " + ("never expires" if ttl == -1 else "expires, which nothing says"))
    return known


def read(client: redis.Redis, namespace: str = "hr") -> list[Keyspace]:
    """Every shard of a namespace; keys that nothing documents are named among its violations.

    Args:
        client: one that answers in bytes (no ``decode_responses``), since records hold MessagePack.

    Cost: SCAN over the whole database, then two round trips.
    """
    driver: Any = client
    check_name("namespace", namespace)
    spaces: dict[str, Keyspace] = {}
    plan: list[tuple[Keyspace, str, str, str]] = []
    found = sorted(set(_names(driver, namespace)))
    facts: list[Any] = driver.eval(_LOOK, len(found), *(whole for _, _, whole in found)) if found else []
    pipe = driver.pipeline(transaction=True)
    for (shard, name, whole), kind, ttl in zip(found, facts[::2], facts[1::2], strict=True):
        space = spaces.setdefault(shard, Keyspace(shard))
        known = _filed(space, whole, name, _text(kind), ttl) if _text(kind) != "none" else None
        if known is not None:
            _READ[_text(kind)](pipe, whole)
            plan.append((space, *known, _text(kind)))
    values: list[Any] = pipe.execute()
    for (space, name, hole, kind), value in zip(plan, values, strict=True):
        if value is not None:
            space.values[name][hole] = _value("raw" if name == "gate" else kind, value)
    return [spaces[shard] for shard in sorted(spaces)]


def _state(record: dict[str, Any]) -> str:
    return _text(record.get("state", b""))


def _structures(space: Keyspace) -> dict[str, dict[str, int]]:
    """Every structure that a state may name, by its key's name: members with their scores."""
    found: dict[str, dict[str, int]] = {name: space.one(name) for name in ("scheduled", *FINAL)}
    for name in ("ready", "parked", "claims", "held", "chain", "lane"):
        found |= {f"{name}:{hole}": members for hole, members in space.values[name].items()}
    # Of limited jobs their class stands in the line, and of all timers the first time.
    return {name: {id: at for id, at in members.items() if id[:1] != "~"} for name, members in found.items()}


def _home(space: Keyspace, id: str, record: dict[str, Any]) -> str:
    """The structure in which a record's state says that it is; empty for none."""
    state, lane = _state(record), _text(record.get("lane", b""))
    if (place := home(id, state)) is not None:
        return place
    if state == "blocked" and (is_ordered(id) or is_unique(id)):
        return "" if follows(space.values, id, record) else f"chain:{_text(record.get('key', b''))}"
    if state == "ready":
        in_lane = id in space.values["lane"].get(lane, {})
        return f"lane:{lane}" if in_lane else f"ready:{_text(record.get('queue', b'default'))}"
    if state == "running":
        return f"claims:{_text(record.get('owner', b''))}"
    if state == "parked":
        return f"parked:{_text(record.get('task', b''))}"
    return state


def _one_state_one_structure(space: Keyspace) -> Iterator[str]:
    places: dict[str, set[str]] = defaultdict(set)
    for name, members in _structures(space).items():
        for id in members:
            places[id].add(name)
    records = space.values["job"]
    for id, record in records.items():
        place, there = _home(space, id, record), places.get(id, set())
        if there != ({place} if place else set()):
            says = f"its state says {place or 'nowhere'}"
            yield f"job {id}: {says}, but it is in {', '.join(sorted(there)) or 'no structure'}"
    for id in places.keys() - records.keys():
        if is_orphan(space.values, id) and all(name.startswith("claims:") for name in places[id]):
            continue
        yield f"job {id}: is in {', '.join(sorted(places[id]))}, but has no record"


def _running(space: Keyspace) -> Iterator[str]:
    last = int(space.one("token") or 0)
    for owner, claims in space.values["claims"].items():
        for id, score in claims.items():
            token = _text(space.values["job"].get(id, {}).get("token", b"none"))
            if token != str(score) and not is_orphan(space.values, id):
                yield f"job {id}: {owner} claims it with token {score}, its record says {token}"
            if score > last:
                yield f"job {id}: its token {score} is above the last one, {last}"
    for id, record in space.values["job"].items():
        running = _state(record) == "running"
        if not running and "owner" in record:
            yield f"job {id}: {_state(record)}, but still names an owner"
        asked = id in space.values["cancels"].get(_text(record.get("owner", b"")), set())
        if ("cancel" in record) != (running and asked):
            yield f"job {id}: {_state(record)}, its cancel flag and its owner's cancels disagree"


def _owners(space: Keyspace) -> Iterator[str]:
    owners = set(space.one("owners"))
    for name in ("owner", "tasks", "claims", "cancels", "slots"):
        for owner in space.values[name].keys() - owners:
            yield f"{name}:{owner}: its incarnation is gone"
    for owner in owners - space.values["owner"].keys():
        yield f"owner:{owner}: holds a lease, but says nothing of itself"
    for owner, ids in space.values["cancels"].items():
        for id in ids - space.values["claims"].get(owner, {}).keys():
            yield f"cancels:{owner}: holds {id}, which it does not run"


def _finished(space: Keyspace) -> Iterator[str]:
    records, expires, size = space.values["job"], space.one("expires"), 0
    # Failed nodes are indexed, too, and leave with their workflows.
    kept = {id: name for name in FINAL for id in space.one(name) if not is_node(id)}
    for id in expires.keys() ^ kept.keys():
        where, other = ("expires", "a final state's index") if id in expires else (kept[id], "expires")
        yield f"job {id}: is in {where}, but not in {other}"
    for id, name in kept.items():
        record = records.get(id, {})
        size += len(record.get("result" if name == "succeeded" else "error", b""))
        if _text(record.get("finished", b"")) != str(space.one(name)[id]):
            yield f"job {id}: indexed as finished at {space.one(name)[id]}, its record differs"
    total = int(space.one("totals").get("bytes", 0))
    if total != size:
        yield f"totals: bytes says {total}, kept results and errors take {size}"
    for id in space.one("waited"):
        if id in kept:
            yield f"waited: {id} has finished, and nobody was told"


def _queues(space: Keyspace) -> Iterator[str]:
    known: set[str] = space.one("queues") or set()
    for name in ("ready", "wake"):
        owners = {f"@{owner}" for owner in space.one("owners")}
        # Of a wake-up key the queue is followed by a kind, if jobs of that kind were passed over.
        for queue in {queue.partition("|")[0] for queue in space.values[name]} - known - owners:
            yield f"{name}:{queue}: the queue is not among queues"
    for queue, tokens in space.values["wake"].items():
        if len(tokens) > 1:
            yield f"wake:{queue}: holds {len(tokens)} tokens, one at most is allowed"
    for queue in set(space.one("resumes")) - set(space.one("paused")):
        yield f"resumes:{queue}: the end of a pause that is over"
    for queue in set(space.one("pauses")) - set(space.one("paused")):
        yield f"pauses:{queue}: the reason of a pause that is over"
    parking: set[str] = space.one("parking") or set()
    for task in parking ^ set(space.values["parked"]):
        yield f"parked:{task}: " + ("is empty, parking names it" if task in parking else "parking lacks it")
    for id in space.values["log"].keys() - space.values["job"].keys():
        yield f"log:{id}: its job is gone"


def _orders(space: Keyspace) -> Iterator[str]:
    records, turns = space.values["job"], space.values["turn"]
    for key in space.values["chain"].keys() - turns.keys():
        yield f"chain:{key}: jobs wait for a turn that nobody has"
    for key, id in turns.items():
        record = records.get(id, {})
        if _text(record.get("key", b"")) != key or _state(record) in ("", "blocked", *FINAL):
            yield f"turn:{key}: {id} has it, which is {_state(record) or 'not stored'}"
    for id, record in records.items():
        key = _text(record.get("key", b""))
        if is_ordered(id) and _state(record) in ("ready", "running", "parked") and turns.get(key) != id:
            yield f"job {id}: {_state(record)}, but {turns.get(key, 'nobody')} has the turn of {key}"
    waiting, total = sum(map(len, space.values["chain"].values())), int(space.one("totals").get("blocked", 0))
    waiting += followers(space.values)
    if waiting != total:
        yield f"totals: blocked says {total}, {waiting} jobs wait in chains, or for their names"


def _cached(space: Keyspace) -> Iterator[str]:
    names = space.one("cached")
    for name, value in space.values["cache"].items():
        if name not in names:
            yield f"cache:{name}: is not among cached"
        for tag in filter(None, value.partition("\n")[0].split(",")):
            if name not in space.values["tagged"].get(tag, {}):
                yield f"cache:{name}: has the tag {tag}, whose index lacks it"
        if name in space.values["filling"]:
            yield f"filling:{name}: leases a value that is there"


def _journals(space: Keyspace) -> Iterator[str]:
    for id, record in space.values["job"].items():
        if "journal" not in record:
            continue
        count = int(record.get("attempts", b"0"))
        starts = parse_journal(record["journal"], count)
        if not 0 < len(starts) == min(count, JOURNAL_KEPT) or "more" not in record:
            yield f"job {id}: its journal keeps {len(starts)} of {count} starts"
        if any(one.started_us > one.ended_us for one in starts):
            yield f"job {id}: its journal has a start that ended before it began"


def _schedules(space: Keyspace) -> Iterator[str]:
    names, records, ticking = set(space.one("schedules")), space.values["schedule"], space.one("ticking")
    for name in names ^ records.keys():
        yield f"schedule:{name}: " + ("has no record" if name in names else "is not among schedules")
    for name in space.values["ticks"].keys() - names:
        yield f"ticks:{name}: its schedule is gone"
    for name in set(ticking) - names:
        yield f"ticking: {name} is no schedule"
    for name, record in records.items():
        still = "paused" in record or "orphaned" in record or "ended" in record
        if "paused" in record and name in ticking:
            yield f"schedule:{name}: is paused, but has a next tick"
        if not still and name not in ticking:
            yield f"schedule:{name}: is active, but has no next tick"


_CHECKS: tuple[Callable[[Keyspace], Iterator[str]], ...] = (
    _one_state_one_structure,
    _running,
    _owners,
    _finished,
    _orders,
    _queues,
    _cached,
    _journals,
    _schedules,
    lambda space: flow_breaches(space.values),
    lambda space: lane_breaches(space.values),
    lambda space: name_breaches(space.values, space.timed),
)


def violations(client: redis.Redis, namespace: str = "hr") -> set[str]:
    """Everything in a namespace that breaks a promise of the data model, a sentence each; empty is good."""
    return {
        text
        for space in read(client, namespace)
        for text in (*space.violations, *(found for check in _CHECKS for found in check(space)))
    }


def assert_invariants(client: redis.Redis, namespace: str = "hr") -> None:
    """Fail if a job is not in exactly its state's structure, a counter is wrong or a key lacks owner and end.

    It may run beside workers: what a second look does not see again was a job on its way.

    Raises:
        AssertionError: lists every violation.

    Cost: walks the whole database; for tests only.
    """
    found = violations(client, namespace)
    if found:
        found &= violations(client, namespace)
    if found:
        lines = "\n  ".join(sorted(found))
        raise AssertionError(f"{len(found)} broken invariants in namespace {namespace}:\n  {lines}")


def explain(client: redis.Redis, namespace: str = "hr") -> str:
    """What a namespace holds, a line per documented key: how many keys, and members in them."""
    lines: list[str] = []
    for space in read(client, namespace):
        for name in sorted(name for name, values in space.values.items() if values):
            values = space.values[name].values()
            members = sum(1 if isinstance(value, str) else len(value) for value in values)
            lines.append(f"{{{namespace}:{space.shard}}}:{name}  keys {len(values)}  members {members}")
    return "\n".join(lines)
