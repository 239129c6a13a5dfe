"""A view for a terminal: boxes and lines where the graph is small enough to be taken in, else a table by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headrace.picture import theme
from headrace.picture.text_layout import sketch
from headrace.picture.view import View, ViewNode, cells, describe, layers, shorten, tally

MOST_BOXES = 30
LONGEST = 26
NAMED = 3


def render(view: View, width: int) -> str:
    """The title, the graph, and below it what its lines do not say: other policies, undoing, callbacks.

    Up to 30 boxes that fit the width are drawn; more are listed, one line each.
    """
    drawn = _draw(view, width) if 0 < len(view.nodes) <= MOST_BOXES else None
    states = ", ".join(f"{theme.look(state).glyph} {count} {state}" for state, count in tally(view.nodes) if count)
    title = [
        shorten(view.title, width),
        _cut(describe(view).partition(":")[0] + (f": {states}" if states else ""), width),
    ]
    lines = [
        *title,
        "",
        *(drawn if drawn is not None else _table(view, width) if view.nodes else []),
        *_remarks(view, width),
    ]
    return "".join(line.rstrip() + "\n" for line in lines)


def _draw(view: View, width: int) -> list[str] | None:
    main = {node.number: node for node in view.nodes if not node.beside}
    texts = {number: _texts(node) for number, node in main.items()}
    inner = View("", list(main.values()), [edge for edge in view.edges if edge[0] in main and edge[1] in main])
    lines = sketch(texts, [(a, b) for a, b, _ in inner.edges], layers(inner))
    return lines if lines is not None and all(cells(line) <= width for line in lines) else None


def _texts(node: ViewNode) -> list[str]:
    name = shorten(node.label, LONGEST)
    sign = _glyph(node)
    lines = [f"{sign} {name}" if sign.strip() else name]
    return lines + [_states(node)] * bool(node.states and node.state) + [node.note] * bool(node.note)


def _glyph(node: ViewNode) -> str:
    return theme.look(node.gravest).glyph


def _states(node: ViewNode) -> str:
    return ", ".join(node.counts) or node.state


def _table(view: View, width: int) -> list[str]:
    layer = layers(view)
    names = {node.number: node.label for node in view.nodes}
    parents: defaultdict[int, list[str]] = defaultdict(list)
    for parent, child, _ in view.edges:
        parents[child].append(names[parent])
    rows = [("layer", "node", "state", "took", "after")]
    before = -1
    for node in sorted(view.nodes, key=lambda node: (layer[node.number], node.number)):
        depth = layer[node.number]
        role = f" ({node.role})" if node.role else ""
        name = f"{_glyph(node)} {shorten(node.label, LONGEST + 10)}{role}".strip()
        layer_of = str(depth + 1) if depth != before else ""
        rows.append((layer_of, name, _states(node), node.note, _some(parents[node.number])))
        before = depth
    # A definition that does not run has no states, and takes no time.
    filled = [any(row[column] for row in rows[1:]) for column in range(5)]
    shown = [[text * use for text, use in zip(row, filled, strict=True)] for row in rows]
    widths = [max(cells(row[column]) for row in shown) for column in range(5)]
    return [
        _cut("  ".join(_pad(text, size) for text, size in zip(row, widths, strict=True) if size), width)
        for row in shown
    ]


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
    lines += [f"at the end: {_texts(node)[0]}" for node in view.nodes if node.role == "callback"]
    shown = lines[:MOST_BOXES]
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} more")
    return ["", *(_cut(line, width) for line in shown)] if shown else []


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def _cut(text: str, width: int) -> str:
    """The text in a width; a wide character that does not fit whole goes."""
    if cells(text.rstrip()) <= width:
        return text
    while cells(text) > width - 1:
        text = text[:-1]
    return text + "…"
