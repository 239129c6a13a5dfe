"""A map as one box: the node that fans out, what it fanned out to, and what waits for all of that. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from headrace.picture.view import View, ViewNode, layers, states_of, together

_ITEM = re.compile(r"\[\d+\]")


def together_by_map(view: View) -> View:
    """Draw each map, with all that its items consist of, as one box that says how many items there are.

    A map stays as it is where that would close a circle: when something between two of its items was named.
    """
    bases = {node.label for node in view.nodes if node.map}
    if not bases:
        return view
    members: defaultdict[str, list[ViewNode]] = defaultdict(list)
    for node in view.nodes:
        if base := _base(node.label, bases):
            members[base].append(node)
    place = {node.number: group[0].number for group in members.values() for node in group}
    boxes = {group[0].number: _box(base, group) for base, group in members.items()}
    nodes = [boxes.get(node.number, node) for node in view.nodes if place.get(node.number, node.number) == node.number]
    known = {node.number for node in view.nodes}
    whole = [edge for edge in view.edges if edge[0] in known and edge[1] in known]
    edges = {(place.get(a, a), place.get(b, b), policy): None for a, b, policy in whole}
    merged = View(view.title, nodes, [edge for edge in edges if edge[0] != edge[1]])
    # Layers go up along every edge but those of a circle.
    layer = layers(merged)
    return merged if all(layer[a] < layer[b] for a, b, _ in merged.edges) else view


def _base(label: str, bases: set[str]) -> str:
    """The outermost map that a node belongs to; empty: none."""
    for found in re.finditer(r"\[", label):
        if label[: found.start()] in bases:
            return label[: found.start()]
    return label if label in bases else ""


def _box(base: str, group: Sequence[ViewNode]) -> ViewNode:
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
