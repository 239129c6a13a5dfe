"""Calls about workflows: their life, their growth, and what is read of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from headrace.model.form import Form
from headrace.model.ids import code_of, flow_of, node_id, number_of_code, siblings_of
from headrace.model.job import moment, number
from headrace.model.job_record import Finder, Record
from headrace.model.workflow import (
    EMPTY,
    FOR_EVER,
    LETTERS,
    POLICIES,
    Graft,
    Graph,
    NewNode,
    NodeRecord,
    Policy,
    WorkflowRecord,
    WorkflowState,
    flow_state,
    parse_facts,
)
from headrace.protocol.index_pages import FIRST, Slice, rows_of
from headrace.protocol.keys import Keys
from headrace.protocol.produce import LISTED_ARGS, fields_of, is_claimed, records_of
from headrace.protocol.script import Call, blob, done_and_next, load, pairs, text_of, texts_of

# Nodes of one call, and bytes of their arguments after which it takes no more.
CHUNK = 250
CHUNK_BYTES = 1 << 20


# Most nodes of a workflow have one of a few forms.
@lru_cache(256)
def _of_form(form: Form) -> tuple[Any, ...]:
    fields: list[Any] = ["task", form.task, "queue", form.queue]
    if form.options:
        fields += ("options", blob(form.options))
    if form.delay:
        fields += ("delay", form.delay)
    fields += fields_of(form)
    if is_claimed(form):
        # A claim of a node reads its options anyway, these only where the record says that there is more.
        fields += ("more", 1)
    return tuple(fields)


def packed_edges(children: Sequence[tuple[int, Policy]], base: int = 0) -> str:
    return "".join(code_of(number + base) + LETTERS[policy] for number, policy in children)


def _has_encrypted(keys: Keys, nodes: Sequence[NewNode]) -> bool:
    return keys.seal is not None and keys.seal.encrypting and any(node.form.secrets for node in nodes)


def _row(
    keys: Keys, id: str, node: NewNode, number: int, base: int = 0, extra: int = 0, *, hides: bool = False
) -> tuple[str, list[Any]]:
    args = node.args
    if node.role == "given":
        if keys.seal is not None and hides:
            args = keys.seal.encrypted("result", "", node_id(id, number + base), args)
        return code_of(number + base), ["st", "succeeded", "role", "given", "pending", 0, "result", blob(args)]
    # No count leads to an undo or a callback.
    pending = 0 if node.role in ("undo", "callback") else node.waits + extra
    if keys.seal is not None and node.form.task:
        args = keys.seal.arguments(node.form, node_id(id, number + base), args)
    fields = [*_of_form(node.form), "args", blob(args), "pending", pending]
    if node.facts:
        fields += ("facts", blob(node.facts))
    if node.parents:
        fields += ("parents", "".join(code_of(parent + base) for parent in node.parents))
    if node.children:
        fields += ("children", packed_edges(node.children, base))
    # Whatever comes after it copes with its failure, so that the workflow does not fail by it.
    if all(policy != "stop" for _, policy in node.children) if node.children else node.soft:
        fields += ("soft", 1)
    if node.role:
        fields += ("role", node.role)
    if node.undo:
        fields += ("undo", code_of(node.undo + base))
    return code_of(number + base), fields


def _end_of_chunk(nodes: Sequence[NewNode], first: int) -> int:
    size, last = 0, min(len(nodes), first + CHUNK - 1)
    for place in range(first, last + 1):
        node = nodes[place - 1]
        size += len(node.args) + len(node.form.headers) + 5 * len(node.children) + 4 * len(node.parents)
        if size > CHUNK_BYTES:
            return place
    return last


def _of_graph(keys: Keys, id: str, graph: Graph, *, hides: bool) -> list[Any]:
    roots = [n for n, node in enumerate(graph.nodes, 1) if not node.waits and node.role in ("", "join", "pass")]
    args = graph.args
    if keys.seal is not None and hides:
        args = keys.seal.encrypted("args", graph.definition, id, args)
    facts: list[Any] = [
        "total", sum(node.role == "" for node in graph.nodes),
        "args", blob(args),
        "globals", blob(EMPTY if hides else graph.globals),
        "ttl", graph.ttl,
        "roots", "".join(map(code_of, roots)),
    ]  # fmt: skip
    if graph.secrets:
        facts += ("secrets", graph.secrets)
    for name, node in (("on_success", graph.on_success), ("on_failure", graph.on_failure)):
        if node:
            facts += (name, code_of(node))
    return facts


class Created(msgspec.Struct, frozen=True):
    """The answer to a create: ``ok``: complete; ``more``: send nodes from ``next``; ``live``: ``id`` has this key."""

    word: str
    id: str
    next: int = 0


def create(keys: Keys, id: str, graph: Graph, first: int = 1) -> Call[Created]:
    """Store a graph's nodes from ``first`` on; what is incomplete after an hour is removed. Safe to repeat."""
    last = _end_of_chunk(graph.nodes, first)
    complete = last == len(graph.nodes)
    hides = _has_encrypted(keys, graph.nodes)
    facts = _of_graph(keys, id, graph, hides=hides) if complete else []

    def created(reply: Any) -> Created:
        # Removed meanwhile, since its creator had paused for an hour: it begins anew.
        word, after = ("more", 1) if reply[0] == b"gone" else (reply[0].decode(), last + 1)
        return Created(word, reply[1].decode(), after)

    return load("flow_create").bind(
        keys, created, id=id, definition=graph.definition, key=graph.key, first=first, size=len(graph.nodes),
        last=int(complete), unstarted=graph.unstarted, facts=facts,
        nodes=[_row(keys, id, graph.nodes[number - 1], number, hides=hides) for number in range(first, last + 1)],
    )  # fmt: skip


def start(keys: Keys, id: str, names: Sequence[int] = ()) -> Call[str]:
    """Line up all roots of a workflow, or the nodes of these numbers instead (at most 500); go on if it was stopped.
    Returns ``running``, ``missing``, or its final state. 500 roots are lined up at once; the rest are a chore.
    """
    return load("flow_start").bind(keys, bytes.decode, id=id, names=[code_of(number) for number in names])


def stop(keys: Keys, id: str) -> Call[str]:
    """Start no more nodes; what runs goes on. Returns ``stopped``, ``missing``, or its final state."""
    return load("flow_stop").bind(keys, bytes.decode, id=id)


def cancel(keys: Keys, id: str) -> Call[str]:
    """Start no more nodes, and have a chore stop those that run: ``asked``, ``missing``, or its final state."""
    return load("flow_cancel").bind(keys, bytes.decode, id=id)


def retry_failed(keys: Keys, id: str) -> Call[str]:
    """Run the failed, cancelled and quarantined nodes again, with fresh budgets; 250 at once, the rest are a chore.
    Returns ``running``, ``missing``, ``live`` (another one of its key lives), ``undone`` (it went back already), or the
    state in which there is nothing to retry.
    """
    return load("flow_retry").bind(keys, bytes.decode, id=id)


def expire(keys: Keys, id: str, ttl: int) -> Call[str]:
    return load("flow_expire").bind(keys, bytes.decode, id=id, ttl=max(FOR_EVER, ttl))


def delete(keys: Keys, id: str) -> Call[str]:
    """Remove a workflow in whatever state, 500 nodes at once; nodes that run are asked to stop, and then refused."""
    return load("flow_delete").bind(keys, bytes.decode, id=id)


def lapse(keys: Keys, limit: int) -> Call[tuple[int, int, int]]:
    """Remove up to ``limit`` workflows whose retention is over; how many, server time, when the next is due."""
    return load("lapse").bind(keys, done_and_next, limit=min(limit, 500))


def tend(keys: Keys, ttl: int, limit: int = 400) -> Call[tuple[int, int, int]]:
    """Do a piece of what is left to do of long verbs, oldest first. Returns how many chores are left and due, server
    time, and when the next one is due (0: none is left). ``ttl``: microseconds that a job stays which cannot follow
    another one any more.
    """
    return load("tend").bind(keys, lambda reply: (reply[0], reply[2], moment(reply[3])), limit=limit, ttl=ttl)


def reserve(keys: Keys, owner: str, id: str, token: int, amount: int) -> Call[int]:
    """The first number for what a running node adds; 0: its start is old, or its workflow gone; -1: none is left."""
    return load("reserve").bind(
        keys, lambda reply: int(reply[0]), owner=owner, id=id, flow_id=flow_of(id), token=token, amount=amount
    )


def graft(
    keys: Keys, owner: str, id: str, token: int, added: Graft, base: int, first: int = 1
) -> tuple[Call[str], int]:
    """Store a graft's nodes from number ``first`` on, as many as one call takes; a settle as ``grown`` links them.
    ``base`` is one less than the first reserved number. Returns the call (``ok`` or ``stale``), and the number to go on
    with.
    """
    last = _end_of_chunk(added.nodes, first)
    hides = _has_encrypted(keys, added.nodes)
    # What has no parent in the graft waits for the node that grows; so does a join that nothing leads to.
    rows = [
        _row(keys, id, node, number, base, int(not node.waits and node.role not in ("undo", "callback")), hides=hides)
        for number, node in enumerate(added.nodes[first - 1 : last], first)
    ]
    link: list[Any] = []
    if last == len(added.nodes):
        roots: list[tuple[int, Policy]] = [
            (n, "stop") for n, node in enumerate(added.nodes, 1) if not node.waits and node.role in ("", "join", "pass")
        ]
        if not added.gather:
            # It stands for the node that grows, too, which was not skipped.
            rows[-1][1].extend(("skips", -1))
        jobs = sum(node.role == "" for node in added.nodes)
        link = [code_of(added.join + base), packed_edges(roots, base), jobs, int(added.gather)]
    call = load("graft").bind(keys, bytes.decode, owner=owner, id=id, token=token, nodes=rows, link=link)
    return call, last + 1


# Bytes of outputs that one reply brings.
OUTPUT_BYTES = 4 << 20


class NodeOutput(msgspec.Struct, frozen=True):
    """What one node returned.

    Attributes:
        result: MessagePack; None when it has none.
        sources: ids of the nodes whose outputs stand for its own; None: its own counts.
        many: whether they stand for it as a list.
    """

    facts: bytes
    task: str
    state: str
    result: bytes | None
    sources: list[str] | None = None
    many: bool = False

    @property
    def name(self) -> str:
        return parse_facts(self.facts).name


def outputs(keys: Keys, ids: Sequence[str]) -> Call[list[NodeOutput]]:
    def parsed(reply: Any) -> list[NodeOutput]:
        return [_output(id, row) for id, row in zip(ids, reply, strict=False)]

    return load("outputs").bind(keys, parsed, ids=list(ids), most=OUTPUT_BYTES)


def _output(id: str, row: list[Any]) -> NodeOutput:
    task, state, facts, role, gather, parents, result = row
    codes = (gather or parents or b"").decode() if gather or role in (b"join", b"pass") else None
    sources = None if codes is None else siblings_of(id, codes)
    many = not gather and role == b"join"
    return NodeOutput(facts or b"", text_of(task), text_of(state or b"missing"), result, sources, many)


def _flow(row: Any) -> WorkflowRecord | None:
    id, lapses, failed, flat = row
    return WorkflowRecord(id.decode(), moment(lapses), failed, pairs(flat)) if flat else None


def read_flows(keys: Keys, ids: Sequence[str]) -> Call[list[WorkflowRecord | None]]:
    return load("flow_read").bind(keys, lambda reply: [_flow(row) for row in reply], ids=list(ids))


def read_nodes(
    keys: Keys, id: str, numbers: Sequence[int], finder: Finder | None = None, *, lean: bool = False
) -> Call[list[NodeRecord | None]]:
    """What is stored of up to 500 nodes of one workflow; None where nothing is. ``lean``: see :func:`produce.read`."""

    def parsed(reply: Any) -> list[NodeRecord | None]:
        jobs = records_of(reply, finder)
        return [None if job is None else node_of(job, nth) for nth, job in zip(numbers, jobs, strict=True)]

    most = LISTED_ARGS if lean else 0
    return load("read").bind(keys, parsed, ids=[node_id(id, number) for number in numbers], most=most)


def node_of(job: Record, nth: int) -> NodeRecord:
    fields = job.fields
    parents, children = text_of(fields.get("parents")), text_of(fields.get("children"))
    above = tuple(number_of_code(parents[n : n + 4]) for n in range(0, len(parents), 4))
    below: tuple[tuple[int, Policy], ...] = tuple(
        (number_of_code(children[n : n + 4]), POLICIES.get(children[n + 4], "stop")) for n in range(0, len(children), 5)
    )
    facts, role = parse_facts(fields.get("facts")), text_of(fields.get("role"))
    return NodeRecord(nth, job, facts, role, number(fields.get("pending")), above, below)


class FlowPage(msgspec.Struct, frozen=True):
    """A piece of the ``count`` workflows of a view.

    Attributes:
        seen: ids of the index in this piece with their times of creation, dangling ones included, for a cursor.
        rows: their records, without arguments and globals.
    """

    count: int
    seen: list[tuple[str, int]]
    rows: list[WorkflowRecord]


def _flow_page(reply: Any) -> FlowPage:
    count, seen, names, rows = reply
    # Their names come once: a page is to be read in little more than a millisecond.
    named = texts_of(names)
    records: list[WorkflowRecord] = []
    for id, lapses, failed, values in rows:
        fields = {name: value for name, value in zip(named, values, strict=False) if value is not None}
        records.append(WorkflowRecord(text_of(id), moment(lapses), failed, fields))
    return FlowPage(count, rows_of(seen), records)


def flow_page(keys: Keys, definition: str = "", state: str = "", piece: Slice = FIRST) -> Call[FlowPage]:
    """At most 500 workflows by creation; a row without a record is dropped."""
    arguments = piece.arguments | {"limit": min(piece.limit, 500)}
    return load("flow_page").bind(keys, _flow_page, view=f"{definition}|{state}", **arguments)


def flow_count(keys: Keys, definition: str = "", state: str = "") -> Call[int]:
    return load("flow_count").bind(keys, int, view=f"{definition}|{state}")


def watch_flow(keys: Keys, id: str, wait: int) -> Call[WorkflowState | None]:
    """A workflow's state; for ``wait`` microseconds its end is announced on ``done:<id>``: subscribe before."""
    return load("flow_watch").bind(
        keys, lambda reply: None if reply == b"missing" else flow_state(reply), id=id, wait=wait
    )
