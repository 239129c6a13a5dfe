"""What must be true of a namespace: it holds exactly the keys that its jobs, queues and workers explain. Reads only.

1. One state, one structure; counters equal the sets; every key has an owner or an end.
2. :func:`name_breaches`: unique jobs: a name has a live job, or it does not exist.
3. :func:`lane_breaches`: lanes and gates: each parked job waits for a closed gate. The layout of lanes is written here
   a second time, in Python.
4. :func:`violations` and :func:`assert_invariants`: all rules, those of workflows (``flow_rules.py``) included.

Each rule goes from the values of one shard to a list of faults.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.admin.flow_rules import flow_breaches, home, is_orphan
from headrace.admin.keyspace import Keyspace, Values, class_of, read, text_of
from headrace.model.ids import FINAL, LENGTH, is_node, is_ordered, is_unique, shard_of
from headrace.model.job_record import JOURNAL_KEPT, parse_journal
from headrace.model.limit_rules import gates_of, overrides_of, own_gates, shared_gates

if TYPE_CHECKING:
    import redis


def _state(record: dict[str, Any]) -> str:
    return text_of(record.get("st"))


def _home(space: Keyspace, id: str, record: dict[str, Any]) -> str:
    state, lane = _state(record), text_of(record.get("lane"))
    if (place := "" if _follows_jobs(record) else home(id, state)) is not None:
        return place
    if state == "blocked" and (is_ordered(id) or is_unique(id)):
        return "" if follows(space.values, id, record) else f"chain:{text_of(record.get('key', b''))}"
    if state == "ready":
        in_lane = id in space.values["lane"].get(lane, {})
        return f"lane:{lane}" if in_lane else f"ready:{text_of(record.get('queue', b'default'))}"
    if state == "running":
        return f"claims:{text_of(record.get('owner', b''))}"
    if state == "parked":
        return f"parked:{text_of(record.get('task', b''))}"
    return state


def _ids_of_the_shard(space: Keyspace) -> Iterator[str]:
    for family in ("job", "flow"):
        for id in space.values[family]:
            with contextlib.suppress(ValueError):  # a key of no id
                if shard_of(id) != int(space.shard):
                    yield f"{family} {id}: is on shard {space.shard}"


def _one_state_one_structure(space: Keyspace) -> Iterator[str]:
    places: dict[str, set[str]] = defaultdict(set)
    structures: dict[str, dict[str, int]] = {name: space.one(name) for name in ("scheduled", *FINAL)}
    for name in ("ready", "parked", "claims", "held", "chain", "lane"):
        structures |= {f"{name}:{hole}": members for hole, members in space.values[name].items()}
    for name, members in structures.items():
        # Of limited jobs their class stands in the line, and of all timers the first time.
        for id in (id for id in members if id[:1] != "~"):
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


def start_breaches(space: Keyspace) -> Iterator[str]:
    last = int(space.one("token") or 0)
    for owner, claims in space.values["claims"].items():
        for id, score in claims.items():
            token = text_of(space.values["job"].get(id, {}).get("token", b"none"))
            if token != str(score) and not is_orphan(space.values, id):
                yield f"job {id}: {owner} claims it with token {score}, its record says {token}"
            if score > last:
                yield f"job {id}: its token {score} is above the last one, {last}"
    for id, record in space.values["job"].items():
        running = _state(record) == "running"
        if not running and "owner" in record:
            yield f"job {id}: {_state(record)}, but still names an owner"
        asked = id in space.values["cancels"].get(text_of(record.get("owner")), set())
        if ("cancel" in record) != (running and asked):
            yield f"job {id}: {_state(record)}, its cancel flag and its owner's cancels disagree"


def owner_breaches(space: Keyspace) -> Iterator[str]:
    owners = set(space.one("owners"))
    for name in ("owner", "tasks", "claims", "cancels", "slots", "replaced"):
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
        if text_of(record.get("finished")) != str(space.one(name)[id]):
            yield f"job {id}: indexed as finished at {space.one(name)[id]}, its record differs"
    total = int(space.one("totals").get("bytes", 0))
    if total != size:
        yield f"totals: bytes says {total}, kept results and errors take {size}"
    for id in space.one("waited"):
        if id in kept:
            yield f"waited: {id} has finished, and its waiters were not told"


def queue_breaches(space: Keyspace) -> Iterator[str]:
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
    for queue in {field.removeprefix("~") for field in space.one("pauses")} - set(space.one("paused")):
        yield f"pauses:{queue}: the reason of a pause that is over"
    parking: set[str] = space.one("parking") or set()
    for task in parking ^ set(space.values["parked"]):
        yield f"parked:{task}: " + ("is empty, parking names it" if task in parking else "parking lacks it")
    for id in space.values["log"].keys() - space.values["job"].keys():
        yield f"log:{id}: its job is gone"


def order_breaches(space: Keyspace) -> Iterator[str]:
    records, turns = space.values["job"], space.values["turn"]
    for key in space.values["chain"].keys() - turns.keys():
        yield f"chain:{key}: jobs wait for a turn that no job has"
    for key, id in turns.items():
        record = records.get(id, {})
        if text_of(record.get("key")) != key or _state(record) in ("", "blocked", *FINAL):
            yield f"turn:{key}: {id} has it, which is {_state(record) or 'not stored'}"
    for id, record in records.items():
        key = text_of(record.get("key"))
        if is_ordered(id) and _state(record) in ("ready", "running", "parked") and turns.get(key) != id:
            yield f"job {id}: {_state(record)}, but {turns.get(key, 'no job')} has the turn of {key}"


def _blocked(space: Keyspace) -> Iterator[str]:
    waiting, total = sum(map(len, space.values["chain"].values())), int(space.one("totals").get("blocked", 0))
    waiting += sum(len(value) > LENGTH for value in space.values["unique"].values())
    waiting += sum(map(_follows_jobs, space.values["job"].values()))
    if waiting != total:
        yield f"totals: blocked says {total}, {waiting} jobs wait in chains, for their names or for other jobs"


def _follows_jobs(record: dict[str, Any]) -> bool:
    return "after" in record and _state(record) == "blocked"


def _after(space: Keyspace) -> Iterator[str]:
    records, behind = space.values["job"], space.values["after"]
    ended = {chore.split(":")[1] for chore in space.one("chores") if chore.startswith("after:")}
    for id in behind.keys() - ended:
        if _state(records.get(id, {})) in ("", *FINAL) or id not in space.one("waited"):
            yield f"after:{id}: jobs follow it, and nothing will free them at its end"
    for id, record in records.items():
        if _follows_jobs(record):
            left = [one for one in text_of(record["after"]).split() if id in behind.get(one, {})]
            if len(left) != int(record.get("pending", b"0")) or not left:
                yield f"job {id}: it waits for {text_of(record.get('pending'))} jobs, and {len(left)} will free it"


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


def schedule_breaches(space: Keyspace) -> Iterator[str]:
    names, records, ticking = set(space.one("schedules")), space.values["schedule"], space.one("ticking")
    for name in names ^ records.keys():
        yield f"schedule:{name}: " + ("has no record" if name in names else "is not among schedules")
    for name in space.values["ticks"].keys() - names:
        yield f"ticks:{name}: its schedule is gone"
    for name in set(ticking) - names:
        yield f"ticking: {name} is not a schedule"
    for name, record in records.items():
        still = "paused" in record or "orphaned" in record or "ended" in record
        if "paused" in record and name in ticking:
            yield f"schedule:{name}: is paused, but has a next tick"
        if not still and name not in ticking:
            yield f"schedule:{name}: is active, but has no next tick"


def name_breaches(values: Values, timed: set[str], now: int) -> Iterator[str]:
    """What is wrong with names. ``timed``: those that end by themselves, whatever their jobs. ``now``: microseconds."""
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
    value: str = values["unique"].get(text_of(record.get("unique")), "")
    return value[LENGTH + 1 :] == id and text_of(record.get("st")) == "blocked"


def _holds(record: dict[str, Any], now: int) -> bool:
    """Whether a job must have its name: one that expired before it started is claimed without it, to be ended."""
    expires, started = (int(text_of(record.get(name)) or 0) for name in ("expires", "token"))
    over = 0 < expires < (started or now)
    return text_of(record.get("st")) not in FINAL and not over


PARKED = 2**50  # in a class, lanes that are behind a gate have their turn above this


def gate_facts(raw: bytes | None) -> tuple[float, int, bool]:
    if raw is None:
        return 0.0, 0, False
    opens, _, _, held, flags = struct.unpack("<dddIB", raw[:29])
    return opens, held, bool(flags & 1)


def _lanes(values: Values) -> Iterator[str]:
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


def _classes(values: Values) -> Iterator[str]:
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


def _behind(values: Values, unit: str, gates: list[str]) -> bool:
    return any(unit in values["behind"].get(gate, set()) for gate in gates)


def _gates(values: Values) -> Iterator[str]:
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


def _closing(values: Values, limit: str, value: str) -> tuple[bool, int | None]:
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


def _overrides(values: Values) -> Iterator[str]:
    told = {name: int(fields.get("overrides", 0)) for name, fields in values["limit"].items()}
    for name in values["overrides"].keys() | told.keys():
        count = len(values["overrides"].get(name, {}))
        if told.get(name) != count:
            yield f"limit:{name}: says that it has {told.get(name)} overrides, there are {count}"
    for name in told.keys() ^ set(values["limits"].get("", {})):
        yield f"limit:{name}: is not both stored and among limits"


def _timers(values: Values) -> Iterator[str]:
    timers, told = values["timers"].get("", {}), values["scheduled"].get("", {}).get("~")
    if told != min(timers.values(), default=None):
        yield f"scheduled: the first timer is due {min(timers.values(), default=None)}, and it says {told}"


def lane_breaches(values: Values) -> Iterator[str]:
    for check in (_lanes, _classes, _gates, _timers, _overrides):
        yield from check(values)


_CHECKS: tuple[Callable[[Keyspace], Iterator[str]], ...] = (
    _ids_of_the_shard,
    _one_state_one_structure,
    start_breaches,
    owner_breaches,
    _finished,
    order_breaches,
    _after,
    _blocked,
    queue_breaches,
    _cached,
    _journals,
    schedule_breaches,
    lambda space: flow_breaches(space.values),
    lambda space: lane_breaches(space.values),
)


def breaches(space: Keyspace, ahead: int = 0) -> Iterator[str]:
    yield from space.violations
    for check in _CHECKS:
        yield from check(space)
    yield from name_breaches(space.values, space.timed, time.time_ns() // 1000 + ahead)


def violations(client: redis.Redis, namespace: str = "hr", *, ahead: int = 0) -> set[str]:
    """What in a namespace breaks a promise of the data model, a sentence each. ``ahead``: microseconds of a test."""
    return {breach for space in read(client, namespace) for breach in breaches(space, ahead)}


def assert_invariants(client: redis.Redis, namespace: str = "hr") -> None:
    """Fail if a job is not in exactly its state's structure, a counter is wrong or a key lacks owner and end.

    It may run beside workers: what a second look does not see again was a job on its way. Cost: walks the whole
    database; for tests only. Raises AssertionError: lists every violation.
    """
    found = violations(client, namespace)
    if found:
        found &= violations(client, namespace)
    if found:
        lines = "\n  ".join(sorted(found))
        raise AssertionError(f"{len(found)} broken invariants in namespace {namespace}:\n  {lines}")
