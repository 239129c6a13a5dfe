"""Facts about workflows: states, nodes, edges, graphs and what is stored of them. Pure: no behaviour beyond checks.

How a graph is defined is builder.py's, what happens to it is the scripts'; docs/design/workflows.md tells the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

import msgspec

from headrace.errors import WorkflowError
from headrace.model.form import Form
from headrace.model.job_record import Record

Policy = Literal["stop", "continue", "skip"]
# What records store of a policy: a graph of a million edges must not say a million words.
LETTERS: dict[Policy, str] = {"stop": "s", "continue": "c", "skip": "k"}
POLICIES: dict[str, Policy] = {letter: policy for policy, letter in LETTERS.items()}

Role = Literal["", "join", "pass", "undo", "callback", "given"]

# A node's number has four digits of 32 in its id, and a graph that grows needs numbers too.
MAX_NODES = 100_000
MAX_EDGES = 1_000_000

FOR_EVER = -1


class WorkflowState(StrEnum):
    """Where a workflow is."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({WorkflowState.SUCCEEDED, WorkflowState.FAILED, WorkflowState.CANCELLED})


class NodeFacts(msgspec.Struct, frozen=True, array_like=True):
    """What only Python reads of a node, packed in the field ``facts`` of its record.

    Attributes:
        name: unique in its graph.
        definition: the workflow's name.
        map: the node fans out over a list, its first argument, instead of running its task.
        when: position in its parents of the node whose output decides whether it runs; -1: it runs.
        letter: of a map: :attr:`policy` as records store it.
        priority, max_crashes: of a map: as in its items' form, since a claim does not tell them.
        untold: of a map: the other options of its items' form that a claim does not tell.
    """

    name: str
    definition: str = ""
    map: bool = False
    when: int = -1
    letter: str = "s"
    priority: int = 0
    max_crashes: int = 0
    untold: dict[str, Any] = {}

    @property
    def policy(self) -> Policy:
        """Of a map: the policy of the edges from its items to their join."""
        return POLICIES.get(self.letter, "stop")


class NewNode(msgspec.Struct, frozen=True, gc=False):
    """One node to store; numbers count from 1 within its graph, in the order of the graph's nodes.

    Attributes:
        form: as of any job; ``delay`` counts from the moment its parents are done.
        args: MessagePack of ``[args, kwargs]``, with a slot where a parent's output goes
            (:func:`headrace.model.slots.fill`).
        parents: numbers, in edge order: slots and ``when`` are positions in it.
        children: number of each, and the policy of the edge to it.
        facts: packed :class:`NodeFacts`.
        role: empty: a job. ``join``: no job, its output is the list of its parents' outputs. ``pass``: no job, its
            output is its only parent's. ``undo``, ``callback``: jobs that are not part of the run, and not counted.
            ``given``: no job, but a value that several nodes take, which is its ``args``; it is done from the start.
        undo: number of the node that undoes this one; 0: none.
        soft: the workflow does not fail by its failure, though nothing follows that copes with it.
        given: how many of its parents have this role: it does not wait for them.
    """

    form: Form
    args: bytes
    parents: tuple[int, ...] = ()
    children: tuple[tuple[int, Policy], ...] = ()
    facts: bytes = b""
    role: Role = ""
    undo: int = 0
    soft: bool = False
    given: int = 0

    @property
    def waits(self) -> int:
        """How many parents it waits for."""
        return len(self.parents) - self.given


class Graph(msgspec.Struct, frozen=True):
    """What a definition resulted in, ready to store.

    Attributes:
        definition: the workflow's name.
        nodes: node ``n`` is ``nodes[n - 1]``.
        args: MessagePack of ``[args, kwargs]`` as the definition got them, for people.
        globals: MessagePack of a dictionary, for people: each node has its share in its arguments.
        on_success, on_failure: numbers of callback nodes; 0: none.
        key: at most one live workflow of this definition has it; empty: any number.
        ttl: microseconds that it stays after its end; -1: for ever.
        unstarted: microseconds that it waits for its start before it is removed; -1: for ever.
        secrets: which arguments are never shown.
    """

    definition: str
    nodes: tuple[NewNode, ...]
    args: bytes = b"\x92\x90\x80"
    globals: bytes = b"\x80"
    on_success: int = 0
    on_failure: int = 0
    key: str = ""
    ttl: int = FOR_EVER
    unstarted: int = FOR_EVER
    secrets: str = ""


class Graft(msgspec.Struct, frozen=True):
    """Nodes that a running node adds, to be stored before its end is.

    Attributes:
        nodes: numbered from 1 within the graft; the last one is the join, a child of all that were leaves.
        join: the join's number, which is ``len(nodes)``: the growing node's children will wait for it.
        gather: whether the growing node's output is the join's, rather than what its function returned.
    """

    nodes: tuple[NewNode, ...]
    join: int
    gather: bool


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as stored.

    Attributes:
        pending: parents that it waits for.
        parents, children: as in :class:`NewNode`.
    """

    number: int
    job: Record
    facts: NodeFacts
    role: str
    pending: int
    parents: tuple[int, ...]
    children: tuple[tuple[int, Policy], ...]


class Payload(msgspec.Struct, frozen=True):
    """What a node got from one of its direct parents.

    Attributes:
        id: of the parent's job.
        name: the parent's, unique in its graph.
        task: the parent's; empty for one that stands for several.
        state: how it ended.
        output: what it returned, as plain values; None when it did not succeed.
    """

    id: str
    name: str
    task: str
    state: str
    output: Any


_pack = msgspec.msgpack.Encoder().encode
_facts = msgspec.msgpack.Decoder(NodeFacts)


def pack_facts(facts: NodeFacts) -> bytes:
    return _pack(facts if facts.untold else msgspec.structs.astuple(facts)[:-1])


def parse_facts(data: bytes | None) -> NodeFacts:
    """The stored facts; alien bytes become facts without a name rather than raise."""
    try:
        return _facts.decode(data or b"")
    except (msgspec.MsgspecError, ValueError):
        return NodeFacts("")


def cycle(parents: Sequence[Sequence[int]]) -> list[int]:
    """A cycle of a graph, each position followed by one of its children and the first one last; empty if none.

    Args:
        parents: positions of each node's parents.

    Linear in the edges and iterative: a chain of 100,000 nodes is a graph like any other.
    """
    children: list[list[int]] = [[] for _ in parents]
    for node, above in enumerate(parents):
        for parent in above:
            children[parent].append(node)
    waits = [len(above) for above in parents]
    free = [node for node, count in enumerate(waits) if not count]
    for node in free:
        for child in children[node]:
            waits[child] -= 1
            if not waits[child]:
                free.append(child)  # the list is the queue that is walked
    stuck = {node for node, count in enumerate(waits) if count}
    if not stuck:
        return []
    # Each of them waits for another of them, so that a walk upwards must meet itself.
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = min(stuck)
    while node not in seen:
        seen[node] = len(walk)
        walk.append(node)
        node = next(parent for parent in parents[node] if parent in stuck)
    return [node, *reversed(walk[seen[node] :])]


def check_policy(policy: object) -> Policy:
    """One of the three policies.

    Raises:
        WorkflowError: there is no such policy.
    """
    if isinstance(policy, str) and policy in LETTERS:
        return policy
    raise WorkflowError(f"on_failure must be one of {', '.join(LETTERS)}, not {policy!r}")
