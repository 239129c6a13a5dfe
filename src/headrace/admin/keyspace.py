"""The keys of a namespace as they are stored, read in bounded pages, or around one subject at one moment. Reads only.

1. :func:`kind_of`: which key of the table in :mod:`headrace.protocol.keys` a name is.
2. :class:`Keyspace` and :func:`pages`: keys and values, sorted by that table, a page at a time; :func:`read` puts the
   pages together, for small stores. ``keyspace_rules.py`` has what must be true of them.
3. :func:`around_flow` to :func:`around_workers`: a part with all that the rules need to judge one workflow, name or
   order, or all limits and workers: so the rules of whole small stores judge a large one beside its workers.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from headrace.model.ids import LENGTH, check_name, node_id
from headrace.model.limit_rules import gates_of, own_gates, shared_gates
from headrace.model.workflow import WorkflowState
from headrace.protocol.keys import Keys, documented

if TYPE_CHECKING:
    import redis

PAGE = 1000  # keys of one page, and members of one reply

Values = Mapping[str, dict[str, Any]]

READ: dict[str, Callable[[Any, str], object]] = {
    "hash": lambda pipe, key: pipe.hgetall(key),
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    "set": lambda pipe, key: pipe.smembers(key),
    "list": lambda pipe, key: pipe.lrange(key, 0, -1),
    "string": lambda pipe, key: pipe.get(key),
    "stream": lambda pipe, key: pipe.xrange(key, count=PAGE),
}
# A collection that is longer than a page, in pieces.
_SCAN: dict[str, Callable[[Any, str], Any]] = {
    "hash": lambda client, key: dict(client.hscan_iter(key, count=PAGE)),
    "zset": lambda client, key: list(client.zscan_iter(key, count=PAGE)),
    "set": lambda client, key: set(client.sscan_iter(key, count=PAGE)),
    "list": lambda client, key: [
        item for at in range(0, client.llen(key), PAGE) for item in client.lrange(key, at, at + PAGE - 1)
    ],
}
# The driver takes longer to read the replies of a pipeline of such calls than the server to give them.
_LOOK = """
local SIZE, found = {hash = 'HLEN', zset = 'ZCARD', set = 'SCARD', list = 'LLEN'}, {}
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  found[#found + 1] = kind
  found[#found + 1] = redis.call('PTTL', key)
  found[#found + 1] = SIZE[kind] and redis.call(SIZE[kind], key) or 1
end
return found
"""
_EXPIRING = (
    *("sender", "request", "mark", "cache", "cached", "tagged", "filling", "dropped", "probe", "rewound", "sampled"),
    *("acts", "events", "deaths", "deploys", "causes", "cause", "floods", "own", "watches", "watch", "stacks"),
    *("stat", "stat-sub", "stat-event", "stat-events", "stat-stream", "stat-flow"),
)


def kind_of(key: str, documents: dict[str, str]) -> tuple[str, str] | None:
    """Which documented key a name (without its prefix) is, and what its hole holds; None if none."""
    if key in documents:
        return key, ""
    head, colon, rest = key.partition(":")
    for pattern in documents:
        if colon and rest and pattern.startswith(f"{head}:<"):
            return head, rest
    return None


@functools.cache
def key_types() -> dict[str, str]:
    return {pattern.partition(":")[0]: kind for pattern, kind in documented().items()}


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
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value)


def class_of(lane: str) -> str:
    return "|".join(lane.split("|")[:2])


def value_of(kind: str, reply: Any) -> Any:
    if kind == "hash":
        return {text_of(name): value for name, value in reply.items()}
    if kind == "zset":
        return {text_of(member): int(float(score)) for member, score in reply}
    if kind == "set":
        return {text_of(member) for member in reply}
    if kind == "raw":
        return reply
    return [text_of(item) for item in reply] if kind == "list" else text_of(reply)


def _names(client: Any, namespace: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    form = re.compile(rf"\{{{re.escape(namespace)}:(\d+)(?:\.\d+)?\}}:(.*)", re.DOTALL)
    literal = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix or f"{{{namespace}:")
    for raw in client.scan_iter(match=f"{literal}*", count=1000):
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
    wanted = key_types()[known[0]]
    if kind != wanted:
        space.violations.add(f"{whole}: is a {kind}, documented as {wanted}")
        return None
    # -1: it has no end; 0: it has less than a millisecond left; -2: it ended since its type was read.
    if known[0] == "unique" and ttl != -1:
        space.timed.add(known[1])
    if known[0] not in ("gate", "unique") and (known[0] in _EXPIRING) != (ttl != -1):
        space.violations.add(f"{whole}: " + ("never expires" if ttl == -1 else "expires, which nothing says"))
    return known


def pages(
    client: redis.Redis, namespace: str = "hr", *, size: int | None = None, unread: Container[str] = (),
    prefix: str = "",
) -> Iterator[list[Keyspace]]:  # fmt: skip
    """The keys of a namespace, at most ``PAGE`` at a time, sorted into their shards.

    Keys that nothing documents are named among the violations. The values of a page are read at one moment, but those
    of collections longer than a page.

    Args:
        client: one that answers in bytes (no ``decode_responses``), since records hold MessagePack.
        size: keys of a page; None: ``PAGE``.
        unread: names of documented keys, such as ``job``, whose values are None: their type alone is read.
        prefix: of the keys of one shard, which alone are read; empty: all that the server has of the namespace.

    Cost: SCAN over the whole database; two round trips a page, and one for each page of a long collection.
    """
    check_name("namespace", namespace)
    names = _names(client, namespace, prefix)
    while page := list(islice(names, size or PAGE)):
        # A cluster takes the keys of one shard at a time.
        for _, some in groupby(sorted(page), key=itemgetter(0)):
            yield _page(client, list(some), unread)


def _page(client: Any, page: list[tuple[str, str, str]], unread: Container[str]) -> list[Keyspace]:
    spaces: dict[str, Keyspace] = {}
    plan: list[tuple[Keyspace, str, str, str]] = []
    facts: list[Any] = client.eval(_LOOK, len(page), *(whole for _, _, whole in page))
    pipe = client.pipeline(transaction=True)
    for (shard, name, whole), raw, ttl, size in zip(page, facts[::3], facts[1::3], facts[2::3], strict=True):
        space, kind = spaces.setdefault(shard, Keyspace(shard)), text_of(raw)
        known = _filed(space, whole, name, kind, ttl) if kind != "none" else None
        if known is None:
            continue
        if known[0] in unread:
            space.values[known[0]][known[1]] = None
        elif size > PAGE:
            space.values[known[0]][known[1]] = value_of(kind, _SCAN[kind](client, whole))
        else:
            READ[kind](pipe, whole)
            plan.append((space, *known, kind))
    values: list[Any] = pipe.execute()
    for (space, name, hole, kind), value in zip(plan, values, strict=True):
        if value is not None:
            space.values[name][hole] = value_of("raw" if name == "gate" else kind, value)
    return list(spaces.values())


def read(client: redis.Redis, namespace: str = "hr") -> list[Keyspace]:
    """Every shard of a namespace, whole; for small stores. See :func:`pages`."""
    whole: dict[str, Keyspace] = {}
    for page in pages(client, namespace):
        for part in page:
            space = whole.setdefault(part.shard, Keyspace(part.shard))
            space.timed |= part.timed
            space.violations |= part.violations
            for name, values in part.values.items():
                space.values[name].update(values)
    return [whole[shard] for shard in sorted(whole)]


# Nodes, lanes and keys that one transaction reads: more would hold the server up for longer than a millisecond or two.
MOST = 400

_OF_NODES = ("st", "pending", "children", "released", "soft", "role", "origin", "grown", "reserved", "undo")
_OF_FLOWS, _OF_FLOW = ("lapses", "waited"), ("broken", "undo", "held")
_OF_NAMES = ("st", "unique", "hold", "expires", "token", "key")
_OF_STARTS = ("st", "owner", "token", "cancel")
_Row: TypeAlias = tuple[str, str]


def _record(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=False) if value is not None}


def _scores(reply: Iterable[tuple[bytes, float]]) -> dict[str, int]:
    scores: dict[str, int] = value_of("zset", reply)
    return scores


def around_flow(client: Any, keys: Keys, id: str) -> Keyspace:
    """A workflow with its nodes, views and chores. At one moment if it has ``MOST`` nodes at most."""
    first = client.hmget(keys.flow(id), "size", "definition", "key")
    size, definition, name = int(first[0] or 0), text_of(first[1]), text_of(first[2])
    nodes = [node_id(id, n) for n in range(1, size + 1)]
    states = ("", *WorkflowState)
    views = sorted({f"{part}|{state}" for part in ("", definition) for state in states})
    live = f"{definition}:{name}"
    pipe = client.pipeline(transaction=size <= MOST)
    pipe.hgetall(keys.flow(id)).zrange(keys("chores"), 0, 9999, withscores=True).get(keys(f"live:{live}"))
    indexes = [*((("flows", view), f"flows:{view}") for view in views), *(((name, ""), name) for name in _OF_FLOWS)]
    for _, index in indexes:
        pipe.zscore(keys(index), id)
    for place in _OF_FLOW:
        pipe.zrange(keys(f"{place}:{id}"), 0, -1, withscores=True)
    for node in nodes:
        pipe.hmget(keys.job(node), *_OF_NODES)
    record, chores, lives, *rest = pipe.execute()
    space = Keyspace(str(keys.shard))
    values, members = space.values, rest[len(indexes) :]
    values["chores"][""] = {chore: at for chore, at in _scores(chores).items() if id[:15] in chore}
    found: dict[_Row, Any] = {("flow", id): value_of("hash", record), ("live", live): text_of(lives) if name else ""}
    found |= {row: {id: int(score)} for (row, _), score in zip(indexes, rest, strict=False) if score is not None}
    found |= {(place, id): _scores(one) for place, one in zip(_OF_FLOW, members, strict=False)}
    found |= {("job", node): _record(_OF_NODES, row) for node, row in zip(nodes, members[3:], strict=True)}
    for (name, hole), value in found.items():
        if value:
            values[name][hole] = value
    return space


def around_names(client: Any, keys: Keys, names: Iterable[str], jobs: Iterable[str] = ()) -> Keyspace:
    """Names of unique jobs, with the jobs that have them and those given. Names that change meanwhile are left out."""
    space, jobs, names = Keyspace(str(keys.shard)), set(jobs), list(names)
    before: list[Any] = client.mget([keys(f"unique:{name}") for name in names]) if names else []
    told = {name: text_of(value) for name, value in zip(names, before, strict=True)}
    for value in told.values():
        jobs |= {value[:LENGTH], value[LENGTH + 1 :]} - {""}
    ids, pipe = sorted(jobs), client.pipeline(transaction=True)
    for name in names:
        pipe.get(keys(f"unique:{name}")).pttl(keys(f"unique:{name}"))
    for id in ids:
        pipe.hmget(keys.job(id), *_OF_NAMES)
    replies = pipe.execute()
    for n, name in enumerate(names):
        value, ttl = text_of(replies[2 * n]), replies[2 * n + 1]
        if value and value == told[name]:
            space.values["unique"][name] = value
            space.timed |= {name} if ttl != -1 else set[str]()
    stable = {name for name in names if text_of(replies[2 * names.index(name)]) == told[name]}
    for id, row in zip(ids, replies[2 * len(names) :], strict=True):
        record = _record(_OF_NAMES, row)
        if text_of(record.get("unique")) in stable:
            space.values["job"][id] = record
    return space


def around_order(client: Any, keys: Keys, key: str, jobs: Iterable[str] = ()) -> Keyspace:
    """A key of ordered jobs: which has its turn, the first that waits, and the jobs given."""
    space, turn, chain = Keyspace(str(keys.shard)), keys(f"turn:{key}"), keys(f"chain:{key}")
    ids = sorted({*jobs, text_of(client.get(turn))} - {""})
    pipe = client.pipeline(transaction=True).get(turn).zrange(chain, 0, 0, withscores=True)
    for id in ids:
        pipe.hmget(keys.job(id), *_OF_NAMES)
    holder, first, *rows = pipe.execute()
    if holder and text_of(holder) not in ids:
        return space  # the turn was passed on meanwhile
    if holder:
        space.values["turn"][key] = text_of(holder)
    if first:
        space.values["chain"][key] = _scores(first)
    for id, row in zip(ids, rows, strict=True):
        if record := _record(_OF_NAMES, row):
            space.values["job"][id] = record
    return space


# What is read of these is not all that they hold.
_PARTLY: dict[str, Callable[[Any, Keys, str], object]] = {
    "job": lambda pipe, keys, key: pipe.hmget(keys(key), *_OF_STARTS),
    # Of tasks, lanes and parked jobs only how many there are.
    "tasks": lambda pipe, keys, key: pipe.hlen(keys(key)),
    "lane": lambda pipe, keys, key: pipe.zcard(keys(key)),
    "parked": lambda pipe, keys, key: pipe.zcard(keys(key)),
    # Of a queue the first entry, of all that is scheduled the first timer; of a line one class.
    "ready": lambda pipe, keys, key: pipe.zrange(keys(key), 0, 0, withscores=True),
    "ticks": lambda pipe, keys, key: pipe.llen(keys(key)),
    "scheduled": lambda pipe, keys, _: pipe.zscore(keys("scheduled"), "~"),
    "line": lambda pipe, keys, key: pipe.zscore(
        keys(f"ready:{key[5:].partition('|')[0]}"), f"~{key.partition('|')[2]}"
    ),
}
OF_QUEUES = ("ready", "wake", "parked", "schedule", "ticks")
OF_WORKERS = ("owner", "tasks", "claims", "cancels", "slots", "replaced")
OF_LIMITS = ("limit", "overrides", "waiting", "class", "lane", "gate", "behind", "classes")
_SINGLE = (
    "owners", "limits", "timers", "scheduled", "queues", "paused", "pauses", "resumes", "parking", "token", "schedules",
    "ticking",
)  # fmt: skip
_FIRST: tuple[_Row, ...] = tuple((name, "") for name in _SINGLE)


def around_workers(client: Any, keys: Keys, known: Iterable[_Row] = (), *, limits: bool) -> Keyspace | None:
    """All queues, schedules and workers with what they run, and the ``limits`` with what waits for them; None: too much
    for one moment, or it changes too fast. ``known``: keys that exist, by name and hole; some of them nothing may lead
    to.
    """
    wanted = {*_FIRST, *(row for row in known if limits or row[0] not in OF_LIMITS)}
    for look in range(8):
        if len(wanted) > MOST * 10:
            return None
        space = _at_once(client, keys, sorted(wanted))
        more = (_linked(space) | (_of_limits(space) if limits else set[_Row]())) - wanted
        # What was claimed since the look before is judged without its record: a worker may claim all the time.
        if not more or (look > 2 and all(name == "job" for name, _ in more)):
            return space
        wanted |= more
    return None


def _at_once(client: Any, keys: Keys, wanted: list[_Row]) -> Keyspace:
    space, pipe = Keyspace(str(keys.shard)), client.pipeline(transaction=True)
    for name, hole in wanted:
        key = f"{name}:{hole}" if hole else name
        if name in _PARTLY:
            _PARTLY[name](pipe, keys, key)
        else:
            READ[key_types()[name]](pipe, keys(key))
    for (name, hole), reply in zip(wanted, pipe.execute(raise_on_error=False), strict=True):
        if isinstance(reply, Exception):
            continue  # a key of another type, which the walk reports
        if name == "line" and reply is not None:
            queue, _, limits = hole.partition("|")
            space.values["ready"].setdefault(queue, {})[f"~{limits}"] = int(reply)
        elif name == "scheduled" and reply is not None:
            space.values[name][hole] = {"~": int(reply)}
        elif name == "job":
            if record := _record(_OF_STARTS, reply or ()):
                space.values[name][hole] = record
        elif name in ("lane", "parked") and reply:
            space.values[name][hole] = range(reply)
        elif name == "ready" and reply:
            space.values[name].setdefault(hole, {}).update(_scores(reply))
        elif reply and name not in ("line", "scheduled"):
            space.values[name][hole] = reply if name in (*_PARTLY, "gate") else value_of(key_types()[name], reply)
    return space


def _linked(space: Keyspace) -> set[_Row]:
    values, found = space.values, set[_Row]()
    for owner in space.one("owners"):
        found |= {(name, owner) for name in OF_WORKERS}
    found |= {("job", id) for claims in values["claims"].values() for id in claims}
    found |= {("schedule", name) for name in space.one("schedules")}
    return found | {("parked", task) for task in space.values["parking"].get("", ())}


def _of_limits(space: Keyspace) -> set[_Row]:
    values, found = space.values, set[_Row]()
    names = {*space.one("limits"), *values["waiting"], *values["limit"]}
    classes = {one for waiting in values["waiting"].values() for one in waiting} | values["class"].keys()
    lanes = {lane for members in values["class"].values() for lane in members} | values["lane"].keys()
    classes |= {class_of(lane) for lane in lanes}
    classes |= {f"{q}|{c}" for q, all_ in values["classes"].items() for c in all_ if c[-1:] != "|"}
    gates = {gate for name in classes for gate in shared_gates(name)}
    gates |= {gate for lane in lanes for gate in own_gates(lane)}
    gates |= {f"{w[:-1]}:*" for name in classes for w in name.split("|")[1].split(",") if w.endswith("=")}
    gates |= values["gate"].keys() | values["behind"].keys()
    for held in values["slots"].values():
        gates |= {gate for raw in held.values() for gate in gates_of(text_of(raw).partition(" ")[0])}
    for timer in space.one("timers"):
        word, _, rest = timer.partition(":")
        gates |= {rest.partition("|")[0]} if word in ("gate", "hold", "limit") else set[str]()
    names |= {gate.partition(":")[0] for gate in gates}
    found |= {(kind, name) for kind in ("limit", "overrides", "waiting") for name in names}
    found |= {(kind, name) for kind in ("class", "line") for name in classes}
    found |= {("classes", name.split("|")[0]) for name in classes}
    return found | {("lane", lane) for lane in lanes} | {(kind, gate) for kind in ("gate", "behind") for gate in gates}
