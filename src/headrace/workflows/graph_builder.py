"""The nodes of one graph while it is defined, and the graph that they make. Pure: it knows no task and no server.

Owns names, edges and their limits; who may be meant by a reference is scope.py's to say. Everything here is iterative
and linear in nodes and edges, however deep the graph is.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.errors import WorkflowError
from headrace.model.form import UNTOLD, Form
from headrace.model.workflow import (
    LETTERS,
    MAX_EDGES,
    MAX_NODES,
    Graft,
    NewNode,
    NodeFacts,
    Policy,
    Role,
    cycle,
    pack_facts,
)

# An undo gets what its node returned, the output of its only parent.
UNDO_ARGS = b"\x92\x91\xd4\x07\x00\x80"
NO_FORM = Form("")
# Names of a cycle that an error tells.
TOLD = 12


class NodeSpec(msgspec.Struct, eq=False):
    """One node to be.

    Attributes:
        edges: position of each parent, in edge order -> the policy that was given for this edge; None: the parent's.
        on_failure: policy of the edges that lead on from here.
        of_items: of a map: policy of the edges from its items to their join.
        when: position in ``edges`` of the condition; -1: none.
        heads: rows that an edge to this one leads to instead, where it stands for several.
        undo: form of the job that undoes it.
        first: where the rows begin that this one stands for, whose names begin with its name. -1: it is one itself.
    """

    name: str
    task: str
    form: Form = NO_FORM
    args: bytes = b""
    edges: dict[int, Policy | None] = msgspec.field(default_factory=dict[int, "Policy | None"])
    on_failure: Policy = "stop"
    role: Role = ""
    map: bool = False
    of_items: Policy = "stop"
    when: int = -1
    heads: tuple[int, ...] = ()
    undo: Form | None = None
    first: int = -1


class GraphBuilder:
    """All rows of one graph, those of nested definitions included.

    Attributes:
        rows: in the order of their definition.
        names: full name -> position.
        known: by the identity of a value that is meant for many nodes, the value and what they take for it.
    """

    def __init__(self, definition: str) -> None:
        self.definition = definition
        self.rows: list[NodeSpec] = []
        self.names: dict[str, int] = {}
        self._edges = 0
        self._numbers: dict[str, int] = {}
        # Names without a number, of nodes that were not given one: a second one of the kind numbers the first.
        self.bare: set[str] = set()
        self.known: dict[int, tuple[object, object]] = {}

    def fresh(self, stem: str) -> str:
        """A name for a node that was given none: ``stem``, or ``stem-1``, ``stem-2``, ... where there are several."""
        number = self._numbers.get(stem, 0)
        if not number and stem not in self.names:
            self._numbers[stem] = 1
            self.bare.add(stem)
            return stem
        self._number(stem)
        while True:
            number += 1
            name = f"{stem}-{number}"
            if name not in self.names:
                self._numbers[stem] = number
                return name

    def _number(self, stem: str) -> None:
        place, name = self.names.get(stem, -1), f"{stem}-1"
        if stem not in self.bare or place < 0 or name in self.names:
            return
        self.bare.discard(stem)
        first = self.rows[place].first
        for at in range(place if first < 0 else first, place + 1):
            old = self.rows[at].name
            new = self.rows[at].name = name + old[len(stem) :]
            del self.names[old]
            self.names[new] = at
            if old in self.bare:
                self.bare.discard(old)
                self.bare.add(new)
                self._numbers[new] = self._numbers.pop(old)

    def check_free(self, name: str) -> None:
        self._number(name)
        if name in self.names:
            raise WorkflowError(
                f"workflow {self.definition} has a node {name!r} already (of {self.rows[self.names[name]].task}): "
                f"names are unique in a graph; give name= another, or leave it out"
            )

    def add(self, row: NodeSpec) -> int:
        """Take a row; its position. Raises WorkflowError: its name is taken; there are too many nodes or edges."""
        if row.name in self.names:
            self.check_free(row.name)
        place = len(self.rows)
        if place >= MAX_NODES:
            raise WorkflowError(
                f"workflow {self.definition} has more than {MAX_NODES:,} nodes (at {row.name!r}): give each node "
                f"more to do, or let nodes create workflows of their own"
            )
        self.rows.append(row)
        self.names[row.name] = place
        self._grew(len(row.edges), row)
        return place

    def link(self, parent: int, child: int, policy: Policy | None) -> None:
        """Make the edge, or give it its policy. Raises WorkflowError: to itself; another policy; too many edges."""
        row = self.rows[child]
        if parent == child:
            raise WorkflowError(
                f"node {row.name!r} of workflow {self.definition} waits for itself: it would never start"
            )
        if parent not in row.edges:
            self._grew(1, row)
        self.agree(row.edges, parent, policy)

    def agree(self, edges: dict[int, Policy | None], parent: int, policy: Policy | None) -> None:
        """Put a parent among edges, with this edge's policy if one was given. Raises WorkflowError: it had another."""
        known = edges.get(parent)
        if known and policy and known != policy:
            raise WorkflowError(
                f"one edge from {self.rows[parent].name!r} was given two policies: say on_failure(...) once for each "
                f"node that follows"
            )
        edges[parent] = policy or known

    def check_acyclic(self) -> None:
        # Without references forward every edge leads from an earlier row to a later one.
        if all(parent < place for place, row in enumerate(self.rows) for parent in row.edges):
            return
        found = cycle([list(row.edges) for row in self.rows])
        if found:
            names = [self.rows[place].name for place in found]
            if len(names) > TOLD:
                names[TOLD - 1 : -1] = [f"({len(names) - TOLD} more)"]
            raise WorkflowError(
                f"nodes of workflow {self.definition} wait for each other: {' -> '.join(names)}; none could start"
            )

    def _grew(self, edges: int, row: NodeSpec) -> None:
        self._edges += edges
        if self._edges > MAX_EDGES:
            raise WorkflowError(
                f"workflow {self.definition} has more than {MAX_EDGES:,} edges (at {row.name!r}): put a node between "
                f"those that all wait for the same ones"
            )


def heads(builder: GraphBuilder, places: Iterable[int]) -> list[int]:
    among = set(places)
    return [place for place in sorted(among) if among.isdisjoint(builder.rows[place].edges)]


def leaves(builder: GraphBuilder, places: Iterable[int]) -> list[int]:
    among = list(places)
    parents = {parent for place in among for parent in builder.rows[place].edges}
    return [place for place in among if place not in parents]


def soften(builder: GraphBuilder, places: Iterable[int]) -> None:
    """Let a failure among some rows skip what waits for it, not stop it: so each ends, and their followers go on."""
    among = set(places)
    for place in among:
        row = builder.rows[place]
        for parent, policy in row.edges.items():
            if parent in among and (policy or builder.rows[parent].on_failure) == "stop":
                row.edges[parent] = "skip"
        if row.map and row.of_items == "stop":
            row.of_items = "skip"


def onward(row: NodeSpec, policy: Policy) -> Policy:
    return policy if row.on_failure == "stop" else row.on_failure


def nodes(builder: GraphBuilder) -> list[NewNode]:
    """The rows as nodes to store, then the nodes that undo some. Raises WorkflowError: some wait for each other."""
    builder.check_acyclic()
    rows = builder.rows
    children: list[list[tuple[int, Policy]]] = [[] for _ in rows]
    values = {place for place, row in enumerate(rows) if row.role == "given"}
    for place, row in enumerate(rows):
        for parent, policy in row.edges.items():
            if parent not in values:
                children[parent].append((place + 1, policy or rows[parent].on_failure))
    made: list[NewNode] = []
    undos: list[NewNode] = []
    for place, row in enumerate(rows):
        if row.role == "given":
            made.append(NewNode(NO_FORM, row.args, role="given"))
            continue
        number = 0
        if row.undo is not None:
            facts = pack_facts(NodeFacts(f"{row.name} (undo)", builder.definition))
            undos.append(NewNode(row.undo, UNDO_ARGS, (place + 1,), (), facts, "undo"))
            number = len(rows) + len(undos)
        above = tuple([parent + 1 for parent in row.edges])
        facts, soft = _facts(builder, row), row.on_failure != "stop"
        given = len(values & row.edges.keys()) if values else 0
        made.append(NewNode(row.form, row.args, above, tuple(children[place]), facts, row.role, number, soft, given))
    return made + undos


def graft(builder: GraphBuilder, prefix: str, on_failure: Policy, *, gather: bool) -> Graft:
    """The rows as what a running node adds: they, what undoes them, and a join that waits for all leaves. ``prefix``:
    of the nodes' names. ``on_failure``: what a failure among the last of them means for the join. Raises WorkflowError:
    some wait for each other.
    """
    ends = leaves(builder, range(len(builder.rows)))
    role: Role = "pass" if gather and len(ends) == 1 else "join"
    made = nodes(builder)
    join = len(made) + 1
    for place in ends:
        made[place] = msgspec.structs.replace(made[place], children=((join, onward(builder.rows[place], on_failure)),))
    facts = pack_facts(NodeFacts(builder.fresh(f"{prefix}join"), builder.definition))
    made.append(NewNode(NO_FORM, b"", tuple([place + 1 for place in ends]), (), facts, role))
    return Graft(tuple(made), join, gather)


def _facts(builder: GraphBuilder, row: NodeSpec) -> bytes:
    if not row.map:
        return pack_facts(NodeFacts(row.name, builder.definition, when=row.when))
    form = row.form
    told = (LETTERS[row.of_items], form.priority, form.max_crashes)
    untold = {name: value for name in UNTOLD if (value := getattr(form, name))}
    return pack_facts(NodeFacts(row.name, builder.definition, True, row.when, *told, untold))
