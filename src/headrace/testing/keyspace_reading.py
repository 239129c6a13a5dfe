"""A namespace as it is stored, and its checks of unique names and of lanes. Reads only.

1. :class:`Keyspace` and :func:`read`: every key, sorted by the documentation of the keys.
2. :func:`name_breaches`: unique jobs: a name has a live job, or it does not exist. Pure.
3. :func:`lane_breaches`: lanes and gates: each parked job waits for a closed gate. Pure. The layout of lanes is written
   here a second time, in Python.

The checks go from the values of one shard to a list of faults. :mod:`headrace.testing.keyspaces` runs them.
"""

from __future__ import annotations

import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
import redis

from headrace.model.ids import FINAL, LENGTH, check_name, is_unique
from headrace.model.limit_rules import gates_of, overrides_of, own_gates, shared_gates
from headrace.protocol import keys as layout

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
    *("sender", "request", "mark", "cache", "cached", "tagged", "filling", "dropped", "probe", "rewound"),
    *("acts", "events", "deaths", "causes", "cause", "floods", "errands", "errand", "watches", "watch", "stacks"),
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


class Keyspace(msgspec.Struct):
    """One shard's keys at one moment, sorted by what they are.

    Attributes:
        values: per documented key and hole, the value: ``values["ready"]["default"]`` maps ids to scores.
        timed: names of unique jobs that end with a time.
        violations: what the reading itself found wrong.
    """

    shard: str
    values: dict[str, dict[str, Any]] = msgspec.field(default_factory=lambda: defaultdict[str, dict[str, Any]](dict))
    timed: set[str] = msgspec.field(default_factory=set[str])
    violations: set[str] = msgspec.field(default_factory=set[str])

    def one(self, name: str) -> Any:
        """The value of a key without a hole; empty when it is absent."""
        return self.values[name].get("", {})


def text_of(value: Any) -> str:
    """A stored value as text, whatever its bytes; empty for None."""
    return (
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else "" if value is None else str(value)
    )


def _value(kind: str, reply: Any) -> Any:
    """A reply as plain Python: texts, except that a record's values stay bytes."""
    if kind == "hash":
        return {text_of(name): value for name, value in reply.items()}
    if kind == "zset":
        return {text_of(member): int(float(score)) for member, score in reply}
    if kind == "set":
        return {text_of(member) for member in reply}
    if kind == "raw":
        return reply
    return [text_of(item) for item in reply] if kind == "list" else text_of(reply)


def _names(client: Any, namespace: str) -> Iterator[tuple[str, str, str]]:
    """Shard, name and whole key of everything under a namespace."""
    form = re.compile(rf"\{{{re.escape(namespace)}:(\d+)\}}:(.*)", re.DOTALL)
    literal = re.sub(r"([*?\[\]\\^])", r"\\\1", namespace)
    for raw in client.scan_iter(match=f"{{{literal}:*", count=1000):
        whole = text_of(raw)
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
        known = _filed(space, whole, name, text_of(kind), ttl) if text_of(kind) != "none" else None
        if known is not None:
            _READ[text_of(kind)](pipe, whole)
            plan.append((space, *known, text_of(kind)))
    values: list[Any] = pipe.execute()
    for (space, name, hole, kind), value in zip(plan, values, strict=True):
        if value is not None:
            space.values[name][hole] = _value("raw" if name == "gate" else kind, value)
    return [spaces[shard] for shard in sorted(spaces)]


Values = dict[str, dict[str, Any]]


def name_breaches(values: Values, timed: set[str], now: int) -> Iterator[str]:
    """What is wrong with the names of a shard, a sentence each.

    Args:
        timed: names that end with a time; what has become of their jobs does not matter.
        now: microseconds since 1970; a job that expired before it started need not have its name.
    """
    records, names = values["job"], values["unique"]
    for name, value in names.items():
        id, follower = value[:LENGTH], value[LENGTH + 1 :]
        record = records.get(id, {})
        state = text_of(record.get("st"))
        if name not in timed and (text_of(record.get("unique")) != name or state in ("", *FINAL)):
            yield f"unique:{name}: {id} has it, which is {state or 'not stored'}"
        if follower and not follows(values, follower, records.get(follower, {})):
            yield f"unique:{name}: {follower} waits for it, which is not blocked by it"
        if follower and name in timed:
            yield f"unique:{name}: {follower} waits for it, and it expires"
    for id, record in records.items():
        name = text_of(record.get("unique"))
        has = id in (names.get(name, "")[:LENGTH], names.get(name, "")[LENGTH + 1 :])
        if bool(name) != is_unique(id):
            yield f"job {id}: its id and its record disagree whether it is unique"
        elif name and "hold" not in record and _holds(record, now) and not has:
            yield f"job {id}: {text_of(record.get('st'))}, but {names.get(name, 'no job')} has its name {name}"


def follows(values: Values, id: str, record: dict[str, Any]) -> bool:
    """Whether a job waits for the end of another one that has its name."""
    value: str = values["unique"].get(text_of(record.get("unique")), "")
    return value[LENGTH + 1 :] == id and text_of(record.get("st")) == "blocked"


def followers(values: Values) -> int:
    """How many do so."""
    return sum(len(value) > LENGTH for value in values["unique"].values())


def _holds(record: dict[str, Any], now: int) -> bool:
    """Whether a job of this record must have its name: one that expired before it started need not.

    It is claimed nevertheless, to be ended.
    """
    expires, started = (int(text_of(record.get(name)) or 0) for name in ("expires", "token"))
    over = 0 < expires < (started or now)
    return text_of(record.get("st")) not in FINAL and not over


# In a class, lanes that are behind a gate have their turn above this.
PARKED = 2**50
ShardValues = Mapping[str, Mapping[str, Any]]


def class_of(lane: str) -> str:
    """The class of a lane: its queue and its limits."""
    return "|".join(lane.split("|")[:2])


def gate_facts(raw: bytes | None) -> tuple[float, int, bool]:
    """When the next job may start, how many run, whether anything waits."""
    if raw is None:
        return 0.0, 0, False
    opens, _, _, held, flags = struct.unpack("<dddIB", raw[:29])
    return opens, held, bool(flags & 1)


def lane_breaches(values: ShardValues) -> Iterator[str]:
    """What is wrong with the lanes and gates of a shard, a sentence each."""
    yield from _lanes(values)
    yield from _classes(values)
    yield from _gates(values)
    yield from _timers(values)
    yield from _overrides(values)


def _lanes(values: ShardValues) -> Iterator[str]:
    for lane in values["lane"]:
        if lane not in values["class"].get(class_of(lane), {}):
            yield f"lane:{lane}: holds jobs, and its class does not know it"
    for name, lanes in values["class"].items():
        queue, limits = name.split("|")
        for lane in lanes.keys() - values["lane"].keys():
            yield f"class:{name}: has the lane {lane}, which is empty"
        for lane, turn in lanes.items():
            if turn >= PARKED and not _behind(values, lane, own_gates(lane)):
                yield f"lane:{lane}: is behind no gate, and has no turn"
        if any(turn < PARKED for turn in lanes.values()):
            in_line = f"~{limits}" in values["ready"].get(queue, {})
            paused = [f"{word[:-1]}:*" for word in limits.split(",") if word.endswith("=")]
            if not in_line and not _behind(values, name, [*shared_gates(name), *paused]):
                yield f"class:{name}: is neither in its line nor behind a gate"


def _classes(values: ShardValues) -> Iterator[str]:
    waiting: Counter[str] = Counter()
    for lane, jobs in values["lane"].items():
        waiting[class_of(lane)] += len(jobs)
    for name in values["class"]:
        for limit in name.split("|")[1].replace("=", "").split(","):
            if name not in values["waiting"].get(limit, set()):
                yield f"waiting:{limit}: lacks the class {name}"
    told = {f"{q}|{c}": int(n) for q, all_ in values["classes"].items() for c, n in all_.items() if c[-1] != "|"}
    if told != dict(waiting):
        yield f"classes: tell of {told} waiting jobs, and lanes hold {dict(waiting)}"
    for queue, line in values["ready"].items():
        for entry in line:
            if entry[0] == "~" and f"{queue}|{entry[1:]}" not in values["class"]:
                yield f"ready:{queue}: has {entry}, which has no lanes"


def _behind(values: ShardValues, unit: str, gates: list[str]) -> bool:
    return any(unit in values["behind"].get(gate, set()) for gate in gates)


def _gates(values: ShardValues) -> Iterator[str]:
    held: Counter[str] = Counter()
    for owner, slots in values["slots"].items():
        for id, raw in slots.items():
            lane = raw.decode().partition(" ")[0]
            held.update(gates_of(lane))
            if id not in values["claims"].get(owner, {}):
                yield f"slots:{owner}: {id} holds gates, and is not claimed"
    timers = values["timers"].get("", {})
    held.update(name[5:].partition("|")[0] for name in timers if name.startswith("hold:"))
    for gate in {*values["gate"], *values["behind"], *held}:
        _, count, waits = gate_facts(values["gate"].get(gate))
        if count != held[gate]:
            yield f"gate:{gate}: says that {count} run, {held[gate]} hold it"
        if waits != (gate in values["behind"]):
            yield f"gate:{gate}: says {waits} of whether something waits"
        for unit in values["behind"].get(gate, set()) - values["lane"].keys() - values["class"].keys():
            yield f"behind:{gate}: has {unit}, which has no jobs"
        limit, _, value = gate.partition(":")
        paused, most = _closing(values, limit, value)
        # Numbers that changed have its classes looked at, a piece at a time.
        seen = any(timer.startswith("lanes:") and limit in timer.partition("|")[2] for timer in timers)
        if waits and not (f"gate:{gate}" in timers or seen or paused or (most is not None and count >= most)):
            yield f"gate:{gate}: is open, and something waits behind it"


def _closing(values: ShardValues, limit: str, value: str) -> tuple[bool, int | None]:
    """Whether a gate is paused, and the most that it lets run at once."""
    fields = {field: text_of(raw) for field, raw in values["limit"].get(limit, {}).items()}
    shared, over = "by" not in fields, values["overrides"].get(limit, {})
    for one in overrides_of(over.get("*", b"")):
        if shared or value == "*" or one.part != "paused":
            fields |= one.fields
    for one in overrides_of(over.get(value, b"")):
        fields |= one.fields
    if value == "*":
        return "paused" in fields, None
    return "paused" in fields, int(fields["most"]) if fields.get("most") else None


def _overrides(values: ShardValues) -> Iterator[str]:
    told = {name: int(fields.get("overrides", 0)) for name, fields in values["limit"].items()}
    for name in values["overrides"].keys() | told.keys():
        count = len(values["overrides"].get(name, {}))
        if told.get(name) != count:
            yield f"limit:{name}: says that it has {told.get(name)} overrides, there are {count}"
    for name in told.keys() ^ set(values["limits"].get("", {})):
        yield f"limit:{name}: is not both stored and among limits"


def _timers(values: ShardValues) -> Iterator[str]:
    timers, told = values["timers"].get("", {}), values["scheduled"].get("", {}).get("~")
    if told != min(timers.values(), default=None):
        yield f"scheduled: the first timer is due {min(timers.values(), default=None)}, and it says {told}"
