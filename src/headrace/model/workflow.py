"""Facts about workflows: states, nodes, edges, graphs, and the stored record. Pure: no behaviour beyond checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from headrace.errors import CorruptRecord, WorkflowError
from headrace.model import codec
from headrace.model.form import Form
from headrace.model.headers import CORRELATION, TRACE, shown
from headrace.model.ids import flow_of, is_node, milliseconds_of
from headrace.model.job import Claim, number
from headrace.model.job_record import Finder, PlainReader, Record, ValueReader
from headrace.model.notation import EPOCH, Moment, utc

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


class NodeFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
        args: MessagePack of ``[args, kwargs]``, with a slot (``job_record.fill``) where a parent's output goes.
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


class Grown(msgspec.Struct, frozen=True, array_like=True):
    """What a runner says of a start that added nodes: its result, and these."""

    result: bytes
    graft: Graft


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
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
_grown = msgspec.msgpack.Decoder(Grown)


def pack_grown(result: bytes, graft: Graft) -> bytes:
    return _pack(Grown(result, graft))


def unpack_grown(data: bytes) -> Grown:
    return _grown.decode(data)


def pack_facts(facts: NodeFacts) -> bytes:
    return _pack(facts if facts.untold else msgspec.structs.astuple(facts)[:-1])


def parse_facts(data: bytes | None) -> NodeFacts:
    try:
        return _facts.decode(data or b"")
    except (msgspec.MsgspecError, ValueError):
        return NodeFacts("")


def cycle(parents: Sequence[Sequence[int]]) -> list[int]:
    """A cycle of a graph, each position followed by one of its children and the first one last; empty if none.
    ``parents``: positions of each node's parents. Linear in the edges and iterative: a chain of 100,000 nodes is a
    graph like any other.
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
    if isinstance(policy, str) and policy in LETTERS:
        return policy
    raise WorkflowError(f"on_failure must be one of {', '.join(LETTERS)}, not {policy!r}")


EMPTY = b"\x80"
_ENDS = ("succeeded", "failed", "cancelled", "quarantined", "skipped")
_STATES = {state.value.encode(): state for state in WorkflowState}


def flow_state(word: bytes) -> WorkflowState:
    """The state that a record names; an unreadable word counts as stopped, since nothing of it can be trusted."""
    return _STATES.get(word, WorkflowState.STOPPED)


class WorkflowRecord(msgspec.Struct, frozen=True):
    """A workflow as stored. Each time is there twice, as in :class:`headrace.Record`.

    Attributes:
        id: the workflow's.
        lapses_us: when it will be removed; 0: it has not ended, or is kept for ever. Before its start it is set, too.
        first_failed: what is stored of the node that failed first; :attr:`failed_node` names it.
        fields: every stored field, undecoded; a page leaves arguments and globals out.
        finder: gives what reads the arguments of a definition's workflows; None: they are read plain.
    """

    id: str
    lapses_us: int
    first_failed: bytes
    fields: dict[str, bytes]
    finder: Finder | None = None

    started = Moment()
    finished = Moment()
    lapses = Moment()

    @property
    def definition(self) -> str:
        """The definition's name."""
        return self.fields.get("definition", b"").decode("utf-8", "replace")

    @property
    def state(self) -> WorkflowState:
        """Where it is; see :func:`flow_state`."""
        return flow_state(self.fields.get("st", b""))

    @property
    def created_us(self) -> int:
        """When it was complete, microseconds."""
        return number(self.fields.get("created")) or milliseconds_of(self.id) * 1000

    @property
    def created(self) -> datetime:
        """When it was complete."""
        return utc(self.created_us) or EPOCH

    @property
    def started_us(self) -> int:
        """When it was started first, microseconds; 0: it was not."""
        return number(self.fields.get("started"))

    @property
    def finished_us(self) -> int:
        """When it ended last, microseconds; 0: it has not."""
        return number(self.fields.get("finished"))

    @property
    def total(self) -> int:
        """Nodes that count: all but undo and callback nodes."""
        return number(self.fields.get("total"))

    @property
    def active(self) -> int:
        """Nodes that are ready, scheduled, running, parked or held."""
        return number(self.fields.get("active"))

    @property
    def counts(self) -> dict[str, int]:
        """Nodes by final state: succeeded, failed, cancelled, quarantined, skipped."""
        return {state: number(self.fields.get(state)) for state in _ENDS}

    @property
    def packed_args(self) -> bytes:
        """MessagePack of ``[args, kwargs]`` as the definition got them; empty on a page."""
        return self.fields.get("args", b"")

    @property
    def args(self) -> tuple[Any, ...]:
        """The definition's arguments by position, decoded at each access; none on a page. Raises ArgumentError: they do
        not fit the definition as it is here; ``packed_args`` has the bytes. Raises CorruptRecord: no create wrote these
        bytes.
        """
        return self._unpacked()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments by name; see :attr:`args`."""
        return self._unpacked()[1]

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by the names of the definition's parameters, as :attr:`headrace.Record.arguments`."""
        return self._reader.by_name(*self._unpacked())

    @property
    def globals(self) -> dict[str, Any]:
        """What all nodes that take it were given, as plain values; none on a page. Raises CorruptRecord: unreadable."""
        try:
            return dict(codec.decode(self.fields.get("globals", EMPTY)))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise CorruptRecord(f"the stored globals of workflow {self.id} cannot be read ({error})") from None

    @property
    def key(self) -> str:
        """At most one live workflow of its definition has it; empty: any number."""
        return self.fields.get("key", b"").decode("utf-8", "replace")

    @property
    def ttl(self) -> int:
        """Microseconds that it stays after its end; -1: for ever, as it does where the length cannot be read."""
        ttl = self.fields.get("ttl", b"")
        return int(ttl) if ttl.isdigit() else FOR_EVER

    @property
    def failed_node(self) -> str:
        """Name of the node that failed first; empty: none."""
        return parse_facts(self.first_failed).name if self.first_failed else ""

    @property
    def done(self) -> int:
        """How many nodes have ended, however they did."""
        return sum(number(self.fields[state]) for state in _ENDS if state in self.fields)

    @property
    def progress(self) -> float:
        """Share of the nodes that have ended, from 0 to 1."""
        total = self.total
        return min(1.0, self.done / total) if total else 0.0

    @property
    def secrets(self) -> str:
        """Where its secret arguments stand; see :mod:`headrace.model.hidden_values`."""
        return f"{self.fields.get('secrets', b'').decode('utf-8', 'replace')} {self._reader.secrets}".strip()

    def read_with(self, finder: Finder) -> WorkflowRecord:
        """The same record, whose arguments are read by what ``finder`` gives for its definition."""
        return msgspec.structs.replace(self, finder=finder)

    def __repr__(self) -> str:
        # Without its arguments, as a record of a job: records end up in logs.
        return f"<WorkflowRecord {self.id} of {self.definition}, {self.state}, {self.done} of {self.total} jobs>"

    def _unpacked(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        plain = codec.sealed_part(self.packed_args) is not None
        reader = PlainReader(self.definition) if plain else self._reader
        return reader.unpack(self.packed_args) if self.packed_args else ((), {})

    @property
    def _reader(self) -> ValueReader:
        return PlainReader(self.definition) if self.finder is None else self.finder(f"workflow:{self.definition}")


def log_fields(claim: Claim, headers: Mapping[str, str] | None = None) -> dict[str, str | int]:
    headers = shown(claim.headers) if headers is None else headers
    fields: dict[str, str | int] = {
        "job": claim.id, "task": claim.task, "queue": claim.queue, "attempt": claim.attempt,
        "correlation": correlation_of(claim.id, headers),
    }  # fmt: skip
    if is_node(claim.id):
        fields |= {"workflow": flow_of(claim.id), "node": parse_facts(claim.facts).name}
    if trace := trace_id_of(headers):
        fields["trace_id"] = trace
    return fields


def correlation_of(id: str, headers: Mapping[str, str]) -> str:
    """What all work that one piece of work led to has in common. The header that it inherited or was given; else the id
    of the sender's trace; else of its workflow; or its own id.
    """
    return headers.get(CORRELATION) or trace_id_of(headers) or (flow_of(id) if is_node(id) else id)


def trace_id_of(headers: Mapping[str, str]) -> str:
    """The trace of the sender, 32 hexadecimal digits, as W3C Trace Context has it; empty for none."""
    parts = headers.get(TRACE, "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else ""
