"""Checks for test suites: that a keyspace holds exactly the keys that its jobs, queues and workers explain. Reads only.

1. :func:`flow_breaches`: stored workflows: their nodes, counters, edges, views and chores explain each other
   (docs/design/workflows.md).
2. :func:`violations` and :func:`assert_invariants`: all checks: one state, one structure; counters equal the sets;
   every key has an owner or an end.

For tests and small stores: the checks walk every key, which no program in production may do.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import redis

from headrace.model.ids import (
    FINAL,
    code_in,
    flow_of,
    is_node,
    is_ordered,
    is_unique,
    node_id,
    number_of,
    number_of_code,
)
from headrace.model.job_record import JOURNAL_KEPT, parse_journal
from headrace.testing.keyspace_reading import Keyspace, followers, follows, lane_breaches, name_breaches, read, text_of

Values = Mapping[str, dict[str, Any]]

FINAL_WORKFLOW_STATES = ("succeeded", "failed", "cancelled")
FAILED = ("failed", "cancelled", "quarantined")
ENDED = ("succeeded", "skipped", *FAILED)
ACTIVE = ("ready", "scheduled", "running", "parked", "stopped")
# Chores that a workflow has not ended before.
COUNTED = ("walk", "roots", "retry", "cancel")


def _number(value: Any) -> int:
    text = text_of(value)
    return int(text) if text.lstrip("-").isdigit() else 0


class _Flow(msgspec.Struct):
    """One workflow with its nodes and the chores that are left of it."""

    id: str
    record: dict[str, Any]
    nodes: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict[str, dict[str, Any]])
    chores: list[list[str]] = msgspec.field(default_factory=list[list[str]])

    def text(self, name: str) -> str:
        return text_of(self.record.get(name))

    def number(self, name: str) -> int:
        return _number(self.record.get(name))

    def parts(self) -> dict[str, dict[str, Any]]:
        """Its nodes without those that a start stored which added nodes and did not succeed."""
        return {id: node for id, node in self.nodes.items() if self._is_part(id, node)}

    def _is_part(self, id: str, node: dict[str, Any]) -> bool:
        if "origin" not in node:
            return True
        grower = self.nodes.get(node_id(self.id, number_of_code(text_of(node["origin"]))), {})
        return "grown" in grower and _number(grower["reserved"]) <= number_of(id) <= _number(grower["grown"])


def _chore(text: str) -> list[str]:
    return text.split(":")


def _flows(values: Values) -> dict[str, _Flow]:
    found = {id: _Flow(id, record) for id, record in values["flow"].items()}
    for id, record in values["job"].items():
        if is_node(id) and flow_of(id) in found:
            found[flow_of(id)].nodes[id] = record
    for chore in map(_chore, values["chores"].get("", {})):
        id = flow_of(chore[1]) if chore[0] == "walk" else chore[1]
        if id in found:
            found[id].chores.append(chore)
    return found


def is_orphan(values: Values, id: str) -> bool:
    """Whether a claimed id is a node whose workflow was deleted while it ran: its outcome will be refused."""
    return is_node(id) and flow_of(id) not in values["flow"]


def home(id: str, state: str) -> str | None:
    """The structure in which a node's state says that it is, empty for none; None: as any job's."""
    if not is_node(id):
        return None
    if state == "stopped":
        return f"held:{flow_of(id)}"
    if state in ("failed", "quarantined"):
        return state
    return "" if state == "blocked" or state in ENDED else None


def _counters(flow: _Flow) -> Iterator[str]:
    jobs = [node for node in flow.parts().values() if not node.get("role")]
    states = Counter(text_of(node.get("st")) for node in jobs)
    expected = {name: states[name] for name in ENDED} | {
        "total": len(jobs),
        "hard": sum(text_of(node.get("st")) in FAILED and "soft" not in node for node in jobs),
        "active": sum(
            text_of(node.get("st")) in ACTIVE and text_of(node.get("role")) != "callback"
            for node in flow.nodes.values()
        )
        + sum(chore[0] in COUNTED for chore in flow.chores),
    }
    for name, count in expected.items():
        if flow.number(name) != count:
            yield f"flow {flow.id}: {name} says {flow.text(name) or 'nothing'}, its nodes and chores say {count}"


def _life(flow: _Flow) -> Iterator[str]:
    state, active = flow.text("st"), flow.number("active")
    if (state in FINAL_WORKFLOW_STATES) != ("finished" in flow.record):
        yield f"flow {flow.id}: {state}, but its end has {'a' if 'finished' in flow.record else 'no'} time"
    if state in FINAL_WORKFLOW_STATES and active:
        yield f"flow {flow.id}: {state}, but {active} are active"
    if state == "running" and not active:
        yield f"flow {flow.id}: running, but nothing is active"
    if (state == "stopped") != ("stopped" in flow.record):
        yield f"flow {flow.id}: {state}, which its flag of being stopped denies"
    for id in flow.nodes:
        if number_of(id) > flow.number("size"):
            yield f"job {id}: its number is above the size of its workflow, {flow.text('size')}"


def _edges(node: dict[str, Any]) -> list[tuple[str, str]]:
    text = text_of(node.get("children"))
    return [(text[at : at + 4], text[at + 4]) for at in range(0, len(text), 5)]


def _counted(node: dict[str, Any]) -> list[bool]:
    """Which of a node's edges have been counted, or will be by a chore that is left."""
    ended = text_of(node.get("st")) in ("succeeded", "skipped")
    return [ended or ("released" in node and policy != "s") for _, policy in _edges(node)]


def _left_to_count(flow: _Flow) -> Counter[str]:
    """By a child's digits, how often chores will count it down."""
    left: Counter[str] = Counter()
    for word, *rest in flow.chores:
        if word == "walk":
            id, first, state, released = rest
            good = state in ("succeeded", "skipped")
            for code, policy in _edges(flow.nodes.get(id, {}))[int(first) - 1 :]:
                left[code] += not (released == "failed" and policy != "s") if good else policy != "s"
    return left


def _pending(flow: _Flow) -> Iterator[str]:
    # A cancelled one starts nothing more, so that nobody counts.
    if flow.text("cancel"):
        return
    parts = flow.parts()
    waits = _left_to_count(flow)
    for node in parts.values():
        for (code, _), counted in zip(_edges(node), _counted(node), strict=True):
            waits[code] += not counted
    for id, node in parts.items():
        left, pending = waits[code_in(id)], node.get("pending")
        if _number(pending) != left:
            yield f"job {id}: waits for {text_of(pending)} parents, {left} are not counted yet"


def _broken(flow: _Flow, values: Values) -> Iterator[str]:
    jobs = {id: node for id, node in flow.parts().items() if not node.get("role")}
    known = set(values["broken"].get(flow.id, {}))
    failed = {id for id, node in jobs.items() if text_of(node.get("st")) in FAILED}
    for id in known - failed if flow.text("cancel") else known ^ failed:
        state = text_of(jobs.get(id, {}).get("st"))
        yield f"job {id}: {state}, but {'is' if id in known else 'is not'} in broken"
    undone = set(values["undo"].get(flow.id, {}))
    can = {id for id, node in jobs.items() if "undo" in node and text_of(node.get("st")) == "succeeded"}
    if flow.text("st") in FINAL_WORKFLOW_STATES:
        can = set[str]()
    for id in undone - can if flow.text("undoing") else undone ^ can:
        yield f"job {id}: {'is' if id in undone else 'is not'} in undo, which its state denies"


def _listed(flow: _Flow, values: Values) -> Iterator[str]:
    state, definition = flow.text("st"), flow.text("definition")
    wanted = {"|", f"|{state}", f"{definition}|", f"{definition}|{state}"} if state else set[str]()
    there = {view for view, members in values["flows"].items() if flow.id in members}
    for view in wanted ^ there:
        yield f"flow {flow.id}: {state or 'no state'}, but {'is' if view in there else 'is not'} in the view {view}"
    for view in there:
        if values["flows"][view][flow.id] != flow.number("created"):
            yield f"flow {flow.id}: the view {view} has another time of creation than its record"
    lapse = values["lapses"].get("", {}).get(flow.id)
    if state in FINAL_WORKFLOW_STATES:
        lapses = [flow.number("ttl") >= 0]
    elif state == "stopped":
        # It may have been stopped before it was started.
        lapses = [False, "unstarted" in flow.record]
    else:
        lapses = [state == "pending" and "unstarted" in flow.record]
    if (lapse is not None) not in lapses:
        yield f"flow {flow.id}: {state}, with a time to live of {flow.text('ttl')}, lapses {lapse or 'never'}"
    if state in FINAL_WORKFLOW_STATES and lapse is not None and lapse < flow.number("finished") + flow.number("ttl"):
        yield f"flow {flow.id}: lapses before its time to live has passed since its end"
    if flow.id in values["waited"].get("", {}) and state in FINAL_WORKFLOW_STATES:
        yield f"waited: {flow.id} has ended, and nobody was told"
    key = f"{definition}:{flow.text('key')}"
    if flow.text("key") and state and state not in FINAL_WORKFLOW_STATES and values["live"].get(key) != flow.id:
        yield f"flow {flow.id}: lives, but live:{key} names {values['live'].get(key)}"


def _orphans(values: Values, flows: dict[str, _Flow]) -> Iterator[str]:
    """What outlived its workflow."""
    dropping: dict[str, int] = defaultdict(lambda: 1 << 30)
    for word, *rest in map(_chore, values["chores"].get("", {})):
        if word == "drop":
            dropping[rest[0]] = int(rest[1])
        elif word not in (*COUNTED, "held", "abandon", "errand"):
            yield f"chores: no chore is called {word}"
    for id in filter(is_node, values["job"]):
        if flow_of(id) not in flows and number_of(id) < dropping[flow_of(id)]:
            yield f"job {id}: its workflow is gone, and no chore will remove it"
    for name in ("broken", "undo", "held"):
        for id in values[name].keys() - flows.keys():
            if name != "held" or id not in dropping:
                yield f"{name}:{id}: its workflow is gone"


def _rows(values: Values, flows: dict[str, _Flow]) -> Iterator[str]:
    """Rows of lists that lead nowhere, and waiters whom nobody told."""
    listed = {id for members in values["flows"].values() for id in members}
    for id in (listed | values["lapses"].get("", {}).keys()) - flows.keys():
        yield f"flow {id}: is listed, but has no record"
    for key, id in values["live"].items():
        flow = flows.get(id)
        if (
            flow is None
            or flow.text("st") in FINAL_WORKFLOW_STATES
            or key != f"{flow.text('definition')}:{flow.text('key')}"
        ):
            yield f"live:{key}: names {id}, which does not live under that key"
    for id in filter(is_node, values["waited"].get("", {})):
        if text_of(values["job"].get(id, {}).get("st")) in ENDED:
            yield f"waited: {id} has ended, and nobody was told"


def flow_breaches(values: Values) -> Iterator[str]:
    """Everything in a shard's workflows that breaks a promise of the data model, a sentence each."""
    flows = _flows(values)
    for flow in flows.values():
        yield from _listed(flow, values)
        if flow.text("st"):
            yield from _counters(flow)
            yield from _life(flow)
            yield from _pending(flow)
            yield from _broken(flow, values)
        elif not any(chore[0] == "abandon" for chore in flow.chores):
            yield f"flow {flow.id}: is not complete, and no chore will remove it"
    yield from _orphans(values, flows)
    yield from _rows(values, flows)


def _state(record: dict[str, Any]) -> str:
    return text_of(record.get("st"))


def _structures(space: Keyspace) -> dict[str, dict[str, int]]:
    """Every structure that a state may name, by its key's name: members with their scores."""
    found: dict[str, dict[str, int]] = {name: space.one(name) for name in ("scheduled", *FINAL)}
    for name in ("ready", "parked", "claims", "held", "chain", "lane"):
        found |= {f"{name}:{hole}": members for hole, members in space.values[name].items()}
    # Of limited jobs their class stands in the line, and of all timers the first time.
    return {name: {id: at for id, at in members.items() if id[:1] != "~"} for name, members in found.items()}


def _home(space: Keyspace, id: str, record: dict[str, Any]) -> str:
    """The structure in which a record's state says that it is; empty for none."""
    state, lane = _state(record), text_of(record.get("lane"))
    if (place := home(id, state)) is not None:
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


def _owners(space: Keyspace) -> Iterator[str]:
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
    for queue in {field.removeprefix("~") for field in space.one("pauses")} - set(space.one("paused")):
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
        if text_of(record.get("key")) != key or _state(record) in ("", "blocked", *FINAL):
            yield f"turn:{key}: {id} has it, which is {_state(record) or 'not stored'}"
    for id, record in records.items():
        key = text_of(record.get("key"))
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
)


def violations(client: redis.Redis, namespace: str = "hr", *, ahead: int = 0) -> set[str]:
    """Everything in a namespace that breaks a promise of the data model, a sentence each; empty is good.

    Args:
        ahead: microseconds by which the time of a test is ahead.
    """
    found = set[str]()
    for space in read(client, namespace):
        found |= space.violations
        found.update(*(check(space) for check in _CHECKS))
        found.update(name_breaches(space.values, space.timed, time.time_ns() // 1000 + ahead))
    return found


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
