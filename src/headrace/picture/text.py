"""A view for a terminal: an indented list of the nodes with their states, each layer below the one before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headrace.picture import theme
from headrace.picture.view import View, ViewNode, cells, describe, layers, shorten, tally

# Columns by which a layer stands to the right of the one before, and how many layers do at most.
INDENT, DEEPEST = 2, 12
MOST_REMARKS = 30
LONGEST = 26
NAMED = 3


def render(view: View, width: int) -> str:
    """The title, the list, and below it what its lines do not say: other policies, undoing, callbacks."""
    states = ", ".join(f"{theme.look(state).glyph} {count} {state}" for state, count in tally(view.nodes) if count)
    title = [
        shorten(view.title, width),
        _cut(describe(view).partition(":")[0] + (f": {states}" if states else ""), width),
    ]
    lines = [
        *title,
        "",
        *_list(view, width),
        *_remarks(view, width),
    ]
    return "".join(line.rstrip() + "\n" for line in lines)


def _glyph(node: ViewNode) -> str:
    return theme.look(node.gravest).glyph


def _states(node: ViewNode) -> str:
    return ", ".join(node.counts) or node.state


def _list(view: View, width: int) -> list[str]:
    layer = layers(view)
    names = {node.number: node.label for node in view.nodes}
    parents: defaultdict[int, list[str]] = defaultdict(list)
    for parent, child, _ in view.edges:
        parents[child].append(names[parent])
    rows: list[tuple[str, ...]] = []
    for node in sorted(view.nodes, key=lambda node: (layer[node.number], node.number)):
        after = parents[node.number]
        name = " " * INDENT * min(layer[node.number], DEEPEST) + _name(node, LONGEST + 10)
        rows.append((name, _states(node), node.note, f"after {_some(after)}" if after else ""))
    # A definition that does not run has no states, and takes no time.
    widths = [max((cells(row[column]) for row in rows), default=0) for column in range(4)]
    return [
        _cut("  ".join(_pad(text, size) for text, size in zip(row, widths, strict=True) if size), width) for row in rows
    ]


def _name(node: ViewNode, longest: int) -> str:
    role = f" ({node.role})" if node.role else ""
    return f"{_glyph(node)} {shorten(node.label, longest)}{role}".strip()


def _some(names: Sequence[str]) -> str:
    """The first few names and how many more; running numbers are kept, since each is one node."""
    more = len(names) - NAMED
    return ", ".join(shorten(name, LONGEST) for name in names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _remarks(view: View, width: int) -> list[str]:
    names = {node.number: node.label for node in view.nodes}
    parents: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for parent, child, policy in view.edges:
        if policy != "stop":
            parents[policy, child].append(names[parent])
    lines = [
        f"{policy}: {_some(group)} → {shorten(names[child], LONGEST)}" for (policy, child), group in parents.items()
    ]
    lines += [
        f"at the end: {f'{_glyph(node)} {shorten(node.label, LONGEST)}'.strip()}"
        for node in view.nodes
        if node.role == "callback"
    ]
    shown = lines[:MOST_REMARKS]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    return ["", *(_cut(line, width) for line in shown)] if shown else []


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def _cut(text: str, width: int) -> str:
    if cells(text.rstrip()) <= width:
        return text
    while cells(text) > width - 1:
        text = text[:-1]
    return text + "…"
