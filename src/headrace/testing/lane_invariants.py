"""Checks of a store's lanes and gates, part of :mod:`headrace.testing.keyspaces`: what waits waits for a closed gate.

Pure: from what was read of one shard to what is wrong with it. Tells the layout of lanes once more, in Python.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.model.limit_rules import gates_of, overrides_of, own_gates, shared_gates
from headrace.testing.keyspace_reading import text_of

# In a class, lanes that are behind a gate have their turn above this.
PARKED = 2**50
Values = Mapping[str, Mapping[str, Any]]


def class_of(lane: str) -> str:
    """The class of a lane: its queue and its limits."""
    return "|".join(lane.split("|")[:2])


def gate_facts(raw: bytes | None) -> tuple[float, int, bool]:
    """When the next job may start, how many run, whether anything waits."""
    if raw is None:
        return 0.0, 0, False
    opens, _, _, held, flags = struct.unpack("<dddIB", raw[:29])
    return opens, held, bool(flags & 1)


def lane_breaches(values: Values) -> Iterator[str]:
    """What is wrong with the lanes and gates of a shard, a sentence each."""
    yield from _lanes(values)
    yield from _classes(values)
    yield from _gates(values)
    yield from _timers(values)
    yield from _overrides(values)


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
        limit, _, value = gate.partition(":")
        paused, most = _closing(values, limit, value)
        # Numbers that changed have its classes looked at, a piece at a time.
        seen = any(timer.startswith("lanes:") and limit in timer.partition("|")[2] for timer in timers)
        if waits and not (f"gate:{gate}" in timers or seen or paused or (most is not None and count >= most)):
            yield f"gate:{gate}: is open, and something waits behind it"


def _closing(values: Values, limit: str, value: str) -> tuple[bool, int | None]:
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
