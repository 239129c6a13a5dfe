"""The content of a picture: nodes, edges, layers, alike nodes as one box, and how states look. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.model.notation import duration

if TYPE_CHECKING:
    from headrace.model.workflow import Graph, NodeRecord

# A fan-out is drawn as one box when it is wider than the first of these; wider pictures need the next ones.
WIDTHS = (40, 10, 1)
# A picture of more boxes than this is collapsed unless the caller says otherwise.
MOST = 200

# A name's running number, or an item's of a map: at its end, or at the end of a nested workflow's part of it.
_RUNNING_NUMBER = re.compile(r"(?:-\d+|\[\d+\])(?=/|$)")
# What draws the eye first; other states come behind.
URGENCY = ("quarantined", "failed", "running", "stopped", "cancelled", "parked", "scheduled", "ready", "blocked")
_OVER = frozenset({"succeeded", "failed", "cancelled", "quarantined", "skipped"})
_SHOWN_AS_CODE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


# Not frozen, since that takes thrice as long to make, and a page makes a thousand of them. Nothing changes one.
@dataclass(slots=True)
class ViewNode:
    """One box.

    Attributes:
        number: unique within the view.
        label: the node's name, as its user wrote it: each form escapes it.
        state: a job's state, or empty in a picture of a definition that does not run.
        role: empty, ``join``, ``pass``, ``undo`` or ``callback``, as in :class:`headrace.model.workflow.NewNode`.
        states: how many nodes are in each state, when the box stands for several.
        hidden: states of jobs that the box stands for, too, and that its own numbers leave out.
        map: whether it fans out, or joins what was fanned out, and its items are named after it.
        began, ended: microseconds: of its last start; 0: none. Of several nodes: of the first, and of the last.
        crashes: starts that took their runner down.
        retries: starts after one that raised.
    """

    number: int
    label: str
    state: str = ""
    role: str = ""
    states: tuple[tuple[str, int], ...] = ()
    hidden: tuple[str, ...] = ()
    map: bool = False
    began: int = 0
    ended: int = 0
    crashes: int = 0
    retries: int = 0

    @property
    def count(self) -> int:
        return sum(count for _, count in self.states) or 1

    @property
    def counts(self) -> list[str]:
        """``3 failed``, ``20 ready``: how many nodes are in which state; empty for a single one."""
        return [f"{count} {state}" for state, count in self.states if state]

    @property
    def gravest(self) -> str:
        """The state in whose colour it is drawn: of several the one that draws the eye first."""
        return min((state for state, _ in self.states), key=urgency, default=self.state)

    @property
    def note(self) -> str:
        """``2.1 s, 1 crash``: how long it took, and what it survived, or not; empty where there is nothing to tell."""
        took = duration(self.ended - self.began) if 0 < self.began <= self.ended else ""
        crashes = f"{self.crashes:,} crash{'es' * (self.crashes != 1)}" if self.crashes else ""
        retries = f"{self.retries:,} {'retry' if self.retries == 1 else 'retries'}" if self.retries else ""
        return ", ".join(filter(None, (took, crashes, retries)))

    @property
    def beside(self) -> bool:
        """Whether it is not a part of the way from start to end: it only runs after a failure, or after the end."""
        return self.role in ("undo", "callback")


@dataclass(frozen=True, slots=True)
class View:
    """A graph to draw.

    Attributes:
        title: one line, any text.
        nodes: the boxes; numbers are unique.
        edges: from, to, and the policy (``stop``, ``continue``, ``skip``, or ``undo``).
    """

    title: str
    nodes: list[ViewNode] = field(default_factory=list[ViewNode])
    edges: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])

    @property
    def jobs(self) -> int:
        """How many jobs it has; joins are none, and what undoes a job or is called at the end is not counted."""
        return sum(node.count + len(node.hidden) for node in self.nodes if not node.role)


def urgency(state: str) -> int:
    return URGENCY.index(state) if state in URGENCY else len(URGENCY)


def printable(text: str) -> str:
    """A text on one line that no terminal obeys and no XML refuses; what has no look is shown as its code."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in _SHOWN_AS_CODE else c for c in text)


def clean(view: View) -> View:
    """The same graph with printable texts, each edge once, and no edge without both its nodes. Nodes are read in chunks
    while workflows grow and are deleted, so an edge may lead to a node that was not read.
    """
    nodes = [
        node if (label := printable(node.label)) == node.label else replace(node, label=label) for node in view.nodes
    ]
    known = {node.number for node in nodes}
    edges = {(a, b, policy): None for a, b, policy in view.edges if {a, b} <= known and a != b}
    return View(printable(view.title), nodes, list(edges))


def layers(view: View) -> dict[int, int]:
    """The layer of each node: one more than its parents'. O(nodes + edges). A cycle is the last layer."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    pending: Counter[int] = Counter()
    for parent, child, _ in view.edges:
        children[parent].append(child)
        pending[child] += 1
    layer = {node.number: 0 for node in view.nodes if not pending[node.number]}
    line = list(layer)
    for number in line:
        for child in children[number]:
            layer[child] = max(layer.get(child, 0), layer[number] + 1)
            pending[child] -= 1
            if not pending[child]:
                line.append(child)
    last = max((layer[number] for number in line), default=-1) + 1
    reached = set(line)
    return {node.number: layer[node.number] if node.number in reached else last for node in view.nodes}


def collapse(view: View, most: int = MOST) -> View:
    """Draw alike nodes (one name but for the running number, one layer, one role) as one box. Fan-outs of more than 40
    always; those of more than 10, and then all, only while more than ``most`` boxes are left. Every edge leads to a
    later layer, so boxes never form a cycle.
    """
    layer = layers(view)
    groups: defaultdict[tuple[int, str, str], list[ViewNode]] = defaultdict(list)
    for node in view.nodes:
        groups[layer[node.number], _RUNNING_NUMBER.sub("", node.label), node.role].append(node)
    sizes = [len(group) for group in groups.values()]
    width = next((w for w in WIDTHS if sum(1 if size > w else size for size in sizes) <= most), WIDTHS[-1])
    place: dict[int, int] = {}
    nodes: list[ViewNode] = []
    for (_, name, _), group in groups.items():
        merged = [together(f"{name} \N{MULTIPLICATION SIGN} {len(group)}", group)] if len(group) > width else group
        nodes += merged
        place |= {node.number: group[0].number if len(merged) < len(group) else node.number for node in group}
    nodes.sort(key=lambda node: node.number)
    return clean(View(view.title, nodes, [(place[a], place[b], policy) for a, b, policy in view.edges]))


def around(view: View, number: int, steps: int, most: int) -> View:
    """The boxes that are at most this many steps from one, and their edges; the nearest ones, where there are more."""
    near: defaultdict[int, list[int]] = defaultdict(list)
    for parent, child, _ in view.edges:
        near[parent].append(child)
        near[child].append(parent)
    found = {number: 0}
    line = [number]
    for one in line:
        for other in near[one] if found[one] < steps else ():
            if other not in found and len(found) < most:
                found[other] = found[one] + 1
                line.append(other)
    return clean(View(view.title, [node for node in view.nodes if node.number in found], view.edges))


def together(name: str, group: Sequence[ViewNode]) -> ViewNode:
    states = states_of(group)
    began = min((node.began for node in group if node.began), default=0)
    # While one of them runs, or is still to run, the time that they take is unknown.
    over = all(state in _OVER for state, _ in states)
    return ViewNode(
        group[0].number, name, states[0][0], group[0].role, states,
        tuple(state for node in group for state in node.hidden),
        began=began,
        ended=max(node.ended for node in group) if over else 0,
        crashes=sum(node.crashes for node in group),
        retries=sum(node.retries for node in group),
    )  # fmt: skip


def states_of(group: Iterable[ViewNode]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for node in group:
        for state, count in node.states or ((node.state, 1),):
            counts[state] += count
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def tally(nodes: Iterable[ViewNode]) -> list[tuple[str, int]]:
    """How many jobs are in each state, most first; those without a state, as in a definition, are left out. Joins are
    no jobs, and what undoes a job or is called at the end does not belong to the workflow: a state that only such nodes
    have has the number 0.
    """
    counts: Counter[str] = Counter()
    for node in nodes:
        for state, count in (*(node.states or ((node.state, 1),)), *((state, 1) for state in node.hidden)):
            counts[state] += 0 if node.role else count
    del counts[""]
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def ends(view: View) -> tuple[list[int], list[int]]:
    main = [node.number for node in view.nodes if not node.beside]
    inner = set(main)
    edges = [(a, b) for a, b, _ in view.edges if a in inner and b in inner]
    entered, left = {b for _, b in edges}, {a for a, _ in edges}
    return [n for n in main if n not in entered], [n for n in main if n not in left]


def describe(view: View) -> str:
    count = view.jobs
    states = ", ".join(f"{number} {state}" for state, number in tally(view.nodes) if number)
    return f"{count} job{'' if count == 1 else 's'}" + (f": {states}" if states else "")


def shorten(text: str, longest: int) -> str:
    """The text, or its beginning and its end: nested names differ at both."""
    if len(text) <= longest:
        return text
    tail = longest // 2 - 1
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def of_graph(graph: Graph, title: str = "") -> View:
    """What a definition results in, before anything runs: boxes have no state."""
    from headrace.model.workflow import parse_facts

    view = View(title or graph.definition)
    found = [parse_facts(node.facts) for node in graph.nodes]
    names = {facts.name for facts in found}
    for number, (node, facts) in enumerate(zip(graph.nodes, found, strict=True), 1):
        name = _label(facts.name, node.form.task, node.role)
        maps = facts.map or _joins_items(facts.name, node.role, names)
        if node.role != "given":
            view.nodes.append(ViewNode(number, name, role=node.role, map=maps))
        view.edges.extend((number, child, policy) for child, policy in node.children)
        if node.undo:
            view.edges.append((number, node.undo, "undo"))
    return view


def of_nodes(title: str, records: Iterable[NodeRecord]) -> View:
    """A workflow as stored. The records may be a part of it: edges to the others are left out."""
    view = View(title)
    stored = list(records)
    names = {node.facts.name for node in stored}
    for node in stored:
        maps = node.facts.map or _joins_items(node.facts.name, node.role, names)
        view.nodes.append(_box(node, maps=maps))
        view.edges.extend((node.number, child, policy) for child, policy in node.children)
        if node.role == "undo":
            # Not a child in the store, since it must not wait there: it lines up by hand after a failure.
            view.edges.extend((parent, node.number, "undo") for parent in node.parents)
    return view


def _box(node: NodeRecord, *, maps: bool) -> ViewNode:
    job = node.job
    began = job.started_us if job.attempt else 0
    return ViewNode(
        node.number, _label(node.facts.name, job.task, node.role), str(job.state), node.role, map=maps,
        began=began,
        ended=job.finished_us if began else 0,
        crashes=job.crashes,
        # The last one that raised was followed by none.
        retries=max(0, job.failures - (job.state == "failed")),
    )  # fmt: skip


def _joins_items(name: str, role: str, names: Collection[str]) -> bool:
    return role == "join" and f"{name}[0]" in names


def _label(name: str, task: str, role: str) -> str:
    """A job's name; of what undoes a job or is called at the end, the task's, since its name says no more than that."""
    short = task.rpartition(".")[2]
    if role == "undo":
        return short or name
    if role == "callback":
        return f"{short} {name}".strip()
    return name or short or role


_ITEM = re.compile(r"\[\d+\]")


def together_by_map(view: View) -> View:
    """Draw each map, with all that its items consist of, as one box that says how many items there are. A map stays as
    it is where that would close a circle: when something between two of its items was named.
    """
    bases = {node.label for node in view.nodes if node.map}
    if not bases:
        return view
    members: defaultdict[str, list[ViewNode]] = defaultdict(list)
    for node in view.nodes:
        if base := _base(node.label, bases):
            members[base].append(node)
    place = {node.number: group[0].number for group in members.values() for node in group}
    boxes = {group[0].number: _box_of_map(base, group) for base, group in members.items()}
    nodes = [boxes.get(node.number, node) for node in view.nodes if place.get(node.number, node.number) == node.number]
    known = {node.number for node in view.nodes}
    whole = [edge for edge in view.edges if edge[0] in known and edge[1] in known]
    edges = {(place.get(a, a), place.get(b, b), policy): None for a, b, policy in whole}
    merged = View(view.title, nodes, [edge for edge in edges if edge[0] != edge[1]])
    # Layers go up along every edge but those of a circle.
    layer = layers(merged)
    return merged if all(layer[a] < layer[b] for a, b, _ in merged.edges) else view


def _base(label: str, bases: set[str]) -> str:
    for found in re.finditer(r"\[", label):
        if label[: found.start()] in bases:
            return label[: found.start()]
    return label if label in bases else ""


def _box_of_map(base: str, group: Sequence[ViewNode]) -> ViewNode:
    head = next((node for node in group if node.label == base), group[0])
    items = sum(_ITEM.fullmatch(node.label.removeprefix(base)) is not None for node in group)
    jobs = [node for node in group if not node.role and node is not head]
    known = f"{items:,}" if items or head.state == "succeeded" else "n"
    box = together(f"{base} \N{MULTIPLICATION SIGN} {known}", [head, *jobs])
    own = "" if head.role else head.state
    if not jobs:
        return replace(box, number=group[0].number, state=head.state, role="", states=(), map=True)
    # The job that fanned out is done before its items are: it would be one too many among their numbers.
    return replace(box, number=group[0].number, role="", states=states_of(jobs), hidden=(own,) * (not head.role))


@dataclass(frozen=True, slots=True)
class Look:
    """One state's look.

    Attributes:
        fill, line: colours of box and border; the tints differ in lightness too, for those who see few hues.
        glyph: one character for terminals, of width one in every font that has it.
        icon: SVG path in a square of 12, stroked and not filled; empty: none.
        dashed: the border is broken: nothing has happened here yet, and maybe never will.
    """

    fill: str
    line: str
    glyph: str = " "
    icon: str = ""
    dashed: bool = False


_CLOCK = "M6 1.5a4.5 4.5 0 1 0 .01 0M6 3.5V6l2 1.5"
LOOKS = {
    "succeeded": Look("#cfeadd", "#00734f", "✓", "M1.5 6.5 4.5 9.5 10.5 2.5"),
    "running": Look("#cfe4f7", "#0062a8", "▶", "M3 1.5 10 6 3 10.5z"),
    "ready": Look("#eef5fb", "#4a7fa8", "○", "M6 2a4 4 0 1 0 .01 0"),
    "scheduled": Look("#e9e4f5", "#66529c", "◷", _CLOCK),
    "blocked": Look("#f4f5f6", "#8a929a", "·", "M3 6h.01M6 6h.01M9 6h.01", dashed=True),
    "parked": Look("#f2e6ee", "#96507c", "‖", "M4 2v8M8 2v8"),
    "stopped": Look("#e3e5e8", "#4f5963", "■", "M2.5 2.5h7v7h-7z"),
    "skipped": Look("#fafafa", "#8a929a", "»", "M2 2 6 6 2 10M6.5 2l4 4-4 4", dashed=True),
    "cancelled": Look("#f8ecc2", "#806000", "⊘", "M6 1.5a4.5 4.5 0 1 0 .01 0M3 9 9 3"),
    "failed": Look("#f9cfbb", "#b02f00", "✗", "M2 2 10 10M10 2 2 10"),
    "quarantined": Look("#e8a49a", "#7c1409", "!", "M6 1.5V7M6 10v.01"),
}
PLAIN = Look("#ffffff", "#57606a")

INK = "#1f2328"
FAINT = "#57606a"
STRUCK = "#8f2700"
LINE = "#6e7781"


def look_of(state: str) -> Look:
    return LOOKS.get(state, PLAIN)
