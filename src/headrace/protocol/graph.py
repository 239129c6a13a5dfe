"""What is said of workflows: create, start, stop, cancel, retry, expire, delete, tend, graft, read, page, watch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from headrace.model.form import Form
from headrace.model.ids import code_of, flow_of
from headrace.model.job import moment
from headrace.model.workflow import (
    FOR_EVER,
    LETTERS,
    Graft,
    Graph,
    NewNode,
    Policy,
)
from headrace.protocol.batches import fields_of, is_claimed
from headrace.protocol.keys import Keys
from headrace.protocol.replies import done_and_next
from headrace.protocol.script import Call, blob, load

# Nodes of one call, and bytes of their arguments after which it takes no more.
CHUNK = 250
CHUNK_BYTES = 1 << 20


# -- nodes as they are stored ---------------------------------------------------------------------------------------


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


def edges(children: Sequence[tuple[int, Policy]], base: int = 0) -> str:
    """Children as a record holds them: four digits and a policy's letter each."""
    return "".join(code_of(number + base) + LETTERS[policy] for number, policy in children)


def _row(node: NewNode, number: int, base: int = 0, extra: int = 0) -> tuple[str, list[Any]]:
    """A node's digits and fields; ``base``: of a graft's numbers, ``extra``: parents outside of it."""
    if node.role == "given":
        return code_of(number + base), ["st", "succeeded", "role", "given", "pending", 0, "result", blob(node.args)]
    # Nobody counts down to an undo or a callback.
    pending = 0 if node.role in ("undo", "callback") else node.waits + extra
    fields = [*_of_form(node.form), "args", blob(node.args), "pending", pending]
    if node.facts:
        fields += ("facts", blob(node.facts))
    if node.parents:
        fields += ("parents", "".join(code_of(parent + base) for parent in node.parents))
    if node.children:
        fields += ("children", edges(node.children, base))
    # Whatever comes after it copes with its failure, so that the workflow does not fail by it.
    if all(policy != "stop" for _, policy in node.children) if node.children else node.soft:
        fields += ("soft", 1)
    if node.role:
        fields += ("role", node.role)
    if node.undo:
        fields += ("undo", code_of(node.undo + base))
    return code_of(number + base), fields


def _end_of_chunk(nodes: Sequence[NewNode], first: int) -> int:
    """Number of the last node that goes into one call with ``first``."""
    size, last = 0, min(len(nodes), first + CHUNK - 1)
    for number in range(first, last + 1):
        node = nodes[number - 1]
        size += len(node.args) + len(node.form.headers) + 5 * len(node.children) + 4 * len(node.parents)
        if size > CHUNK_BYTES:
            return number
    return last


def _of_graph(graph: Graph) -> list[Any]:
    """The fields of a workflow's record."""
    roots = [n for n, node in enumerate(graph.nodes, 1) if not node.waits and node.role in ("", "join", "pass")]
    facts: list[Any] = [
        "total", sum(node.role == "" for node in graph.nodes),
        "args", blob(graph.args),
        "globals", blob(graph.globals),
        "ttl", graph.ttl,
        "roots", "".join(map(code_of, roots)),
    ]  # fmt: skip
    if graph.secrets:
        facts += ("secrets", graph.secrets)
    for name, number in (("on_success", graph.on_success), ("on_failure", graph.on_failure)):
        if number:
            facts += (name, code_of(number))
    return facts


# -- life -----------------------------------------------------------------------------------------------------------


class Created(msgspec.Struct, frozen=True):
    """The answer to a create.

    Attributes:
        word: ``ok``: complete; ``more``: send the nodes from ``next``; ``live``: ``id`` is the live one of this key.
    """

    word: str
    id: str
    next: int = 0


def create(keys: Keys, id: str, graph: Graph, first: int = 1) -> Call[Created]:
    """Store a graph's nodes from number ``first`` on, as many as one call takes; with the last it is complete.

    A workflow that is not completed within an hour is removed. Safe to repeat.

    Cost: one round trip, O(nodes).
    """
    last = _end_of_chunk(graph.nodes, first)
    complete = last == len(graph.nodes)
    facts = _of_graph(graph) if complete else []

    def created(reply: Any) -> Created:
        # Removed meanwhile, since its creator had paused for an hour: it begins anew.
        word, after = ("more", 1) if reply[0] == b"gone" else (reply[0].decode(), last + 1)
        return Created(word, reply[1].decode(), after)

    return load("flow_create").bind(
        keys,
        created,
        id=id,
        definition=graph.definition,
        key=graph.key,
        first=first,
        size=len(graph.nodes),
        last=int(complete),
        unstarted=graph.unstarted,
        facts=facts,
        nodes=[_row(graph.nodes[number - 1], number) for number in range(first, last + 1)],
    )


def start(keys: Keys, id: str, names: Sequence[int] = ()) -> Call[str]:
    """Line up all roots of a workflow, or the nodes of these numbers instead (at most 500); go on if it was stopped.

    Returns:
        ``running``, ``missing``, or the final state that it is in.

    Cost: one round trip, O(roots), at most 500 of them; the rest are a chore.
    """
    return load("flow_start").bind(keys, bytes.decode, id=id, names=[code_of(number) for number in names])


def stop(keys: Keys, id: str) -> Call[str]:
    """Start no more nodes of a workflow; what runs goes on.

    Returns:
        ``stopped``, ``missing``, or the final state that it is in.

    Cost: one round trip, O(log workflows), whatever the number of nodes.
    """
    return load("flow_stop").bind(keys, bytes.decode, id=id)


def cancel(keys: Keys, id: str) -> Call[str]:
    """Start no more nodes of a workflow, and have those that run stopped; a chore goes from node to node.

    Returns:
        ``asked``, ``missing``, or the final state that it is in.

    Cost: one round trip; :func:`tend` does the work.
    """
    return load("flow_cancel").bind(keys, bytes.decode, id=id)


def retry_failed(keys: Keys, id: str) -> Call[str]:
    """Run the failed, cancelled and quarantined nodes of a workflow again, with fresh budgets, and go on from there.

    Returns:
        ``running``, ``missing``, ``live`` (another one of its key lives), ``undone`` (it went back already), or
        the state in which there is nothing to retry.

    Cost: one round trip, O(failed nodes), at most 250 of them; the rest are a chore.
    """
    return load("flow_retry").bind(keys, bytes.decode, id=id)


def expire(keys: Keys, id: str, ttl: int) -> Call[str]:
    """Say how long a workflow stays after its end, microseconds; negative: for ever. Counts from now if it has ended.

    Returns:
        ``ok`` or ``missing``.

    Cost: one round trip.
    """
    return load("flow_expire").bind(keys, bytes.decode, id=id, ttl=max(FOR_EVER, ttl))


def delete(keys: Keys, id: str) -> Call[str]:
    """Remove a workflow in whatever state; nodes that run are asked to stop, and their outcomes are refused.

    Returns:
        ``ok`` or ``missing``.

    Cost: one round trip, O(nodes), at most 500 of them; the rest are a chore.
    """
    return load("flow_delete").bind(keys, bytes.decode, id=id)


def lapse(keys: Keys, limit: int) -> Call[tuple[int, int, int]]:
    """Remove up to ``limit`` workflows whose retention is over, each wholly.

    Returns:
        how many, server time, and when the next one is due (0: none).

    Cost: one round trip, O(limit), at most 50 of them.
    """
    return load("lapse").bind(keys, done_and_next, limit=min(limit, 500))


def tend(keys: Keys, limit: int = 400) -> Call[tuple[int, int, int]]:
    """Do a piece of what is left to do of long verbs, oldest first.

    Returns:
        how many chores are left and due, server time, and when the next one is due (0: none is left); microseconds.

    Cost: one round trip, O(limit).
    """
    return load("tend").bind(keys, lambda reply: (reply[0], reply[2], moment(reply[3])), limit=limit)


# -- growing --------------------------------------------------------------------------------------------------------


def reserve(keys: Keys, owner: str, id: str, token: int, amount: int) -> Call[int]:
    """Numbers for what a running node adds.

    Returns:
        the first one; 0: its start is not the newest, or its workflow is gone or cancelled; -1: it has none left.

    Cost: one round trip.
    """
    return load("reserve").bind(
        keys, lambda reply: int(reply[0]), owner=owner, id=id, flow_id=flow_of(id), token=token, amount=amount
    )


def graft(
    keys: Keys, owner: str, id: str, token: int, added: Graft, base: int, first: int = 1
) -> tuple[Call[str], int]:
    """Store a graft's nodes from number ``first`` on, as many as one call takes; a settle as ``grown`` links them.

    Args:
        base: one less than the first number that was reserved.

    Returns:
        the call (``ok`` or ``stale``), and the number to go on with; beyond the last node when that was all.

    Cost: one round trip, O(nodes).
    """
    last = _end_of_chunk(added.nodes, first)
    # What has no parent in the graft waits for the node that grows; so does a join that nothing leads to.
    rows = [
        _row(node, number, base, extra=int(not node.waits and node.role not in ("undo", "callback")))
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
        link = [code_of(added.join + base), edges(roots, base), jobs, int(added.gather)]
    call = load("graft").bind(keys, bytes.decode, owner=owner, id=id, token=token, nodes=rows, link=link)
    return call, last + 1
