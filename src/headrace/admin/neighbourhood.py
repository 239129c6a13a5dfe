"""The keys around one workflow, name, order, or around all limits and workers, read at one moment. Reads only.

Each function returns a part of a :class:`Keyspace` that holds all that the rules of ``keyspace_rules.py`` need to judge
its subject, so that the rules of whole small stores judge one subject of a large store beside its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from headrace.admin.flow_rules import FINAL_WORKFLOW_STATES
from headrace.admin.keyspace import READ, Keyspace, kinds, text_of, value_of
from headrace.admin.keyspace_rules import class_of
from headrace.model.ids import LENGTH, node_id
from headrace.model.limit_rules import gates_of, own_gates, shared_gates
from headrace.protocol.keys import Keys

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
    states = ("", "pending", "running", "stopped", *FINAL_WORKFLOW_STATES)
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
    """All queues, schedules and workers with what they run; None: too much for one moment, or it changes too fast.

    Args:
        known: keys of these that exist, by name and hole: of some that nothing leads to, the name is wrong.
        limits: all limits, too, with what waits for them.
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
            READ[kinds()[name]](pipe, keys(key))
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
            space.values[name][hole] = reply if name in (*_PARTLY, "gate") else value_of(kinds()[name], reply)
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
