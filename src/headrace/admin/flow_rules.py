"""What must be true of stored workflows: nodes, counters, edges, views and chores explain each other. Pure.

:func:`flow_breaches` goes from the values of one shard to a list of faults; docs/design/workflows.md has the model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.admin.keyspace import Values, text_of
from headrace.model.ids import code_in, flow_of, is_node, node_id, number_of, number_of_code
from headrace.model.job import number

FINAL_WORKFLOW_STATES = ("succeeded", "failed", "cancelled")
FAILED = ("failed", "cancelled", "quarantined")
ENDED = ("succeeded", "skipped", *FAILED)
ACTIVE = ("ready", "scheduled", "running", "parked", "stopped")
COUNTED = ("walk", "roots", "retry", "cancel")  # chores that a workflow has not ended before


class _Flow(msgspec.Struct):
    id: str
    record: dict[str, Any]
    nodes: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict[str, dict[str, Any]])
    chores: list[list[str]] = msgspec.field(default_factory=list[list[str]])

    def text(self, name: str) -> str:
        return text_of(self.record.get(name))

    def number(self, name: str) -> int:
        return number(self.record.get(name))

    def parts(self) -> dict[str, dict[str, Any]]:
        return {id: node for id, node in self.nodes.items() if self._is_part(id, node)}

    def _is_part(self, id: str, node: dict[str, Any]) -> bool:
        if "origin" not in node:
            return True
        grower = self.nodes.get(node_id(self.id, number_of_code(text_of(node["origin"]))), {})
        return "grown" in grower and number(grower["reserved"]) <= number_of(id) <= number(grower["grown"])


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
    ended = text_of(node.get("st")) in ("succeeded", "skipped")
    return [ended or ("released" in node and policy != "s") for _, policy in _edges(node)]


def _left_to_count(flow: _Flow) -> Counter[str]:
    left: Counter[str] = Counter()
    for word, *rest in flow.chores:
        if word == "walk":
            id, first, state, released = rest
            good = state in ("succeeded", "skipped")
            for code, policy in _edges(flow.nodes.get(id, {}))[int(first) - 1 :]:
                left[code] += not (released == "failed" and policy != "s") if good else policy != "s"
    return left


def _pending(flow: _Flow) -> Iterator[str]:
    # A cancelled one starts nothing more, so no count is wrong.
    if flow.text("cancel"):
        return
    parts = flow.parts()
    waits = _left_to_count(flow)
    for node in parts.values():
        for (code, _), counted in zip(_edges(node), _counted(node), strict=True):
            waits[code] += not counted
    for id, node in parts.items():
        left, pending = waits[code_in(id)], node.get("pending")
        if number(pending) != left:
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
        yield f"waited: {flow.id} has ended, and its waiters were not told"
    key = f"{definition}:{flow.text('key')}"
    if flow.text("key") and state and state not in FINAL_WORKFLOW_STATES and values["live"].get(key) != flow.id:
        yield f"flow {flow.id}: lives, but live:{key} names {values['live'].get(key)}"


def _orphans(values: Values, flows: dict[str, _Flow]) -> Iterator[str]:
    dropping: dict[str, int] = defaultdict(lambda: 1 << 30)
    for word, *rest in map(_chore, values["chores"].get("", {})):
        if word == "drop":
            dropping[rest[0]] = int(rest[1])
        elif word not in (*COUNTED, "held", "abandon", "after"):
            yield f"chores: no chore is called {word}"
    for id in filter(is_node, values["job"]):
        if flow_of(id) not in flows and number_of(id) < dropping[flow_of(id)]:
            yield f"job {id}: its workflow is gone, and no chore will remove it"
    for name in ("broken", "undo", "held"):
        for id in values[name].keys() - flows.keys():
            if name != "held" or id not in dropping:
                yield f"{name}:{id}: its workflow is gone"


def _rows(values: Values, flows: dict[str, _Flow]) -> Iterator[str]:
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
            yield f"waited: {id} has ended, and its waiters were not told"


def flow_breaches(values: Values) -> Iterator[str]:
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
