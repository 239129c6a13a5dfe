"""A view for a terminal: boxes and lines where the graph is small, else a table by layer.

1. :func:`sketch`: a small graph in boxes and lines of text, layer below layer. Decides places and draws.
2. :func:`render`: chooses the form, and decides the texts.

Between two layers, all nodes that lead to the same children share one *bus*: lines down from each of them onto a row,
and down from that row to each child. Where lines of two buses cross, the vertical one is drawn through, and they do not
touch. A line that passes layers by goes through them as an item of width one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.picture import theme
from headrace.picture.view import View, ViewNode, cells, describe, layers, shorten, tally

UP = 1
DOWN = 2
LEFT = 4
RIGHT = 8
_LINES = {
    UP: "│", DOWN: "│", UP | DOWN: "│", LEFT: "─", RIGHT: "─", LEFT | RIGHT: "─",
    UP | RIGHT: "└", UP | LEFT: "┘", DOWN | RIGHT: "┌", DOWN | LEFT: "┐",
    UP | DOWN | RIGHT: "├", UP | DOWN | LEFT: "┤", UP | LEFT | RIGHT: "┴", DOWN | LEFT | RIGHT: "┬",
    UP | DOWN | LEFT | RIGHT: "┼",
}  # fmt: skip
SPACE = 2
ROUNDS = 6


@dataclass(slots=True, eq=False)
class Item:
    """A box, or a line that passes a layer by (no lines of text).

    Attributes:
        lines: what the box says.
        wants: the nodes that it still has to lead to.
        x, width: columns.
    """

    lines: Sequence[str]
    wants: frozenset[int] = frozenset()
    children: list[Item] = field(default_factory=list["Item"])
    parents: list[Item] = field(default_factory=list["Item"])
    x: int = 0
    width: int = 1

    @property
    def middle(self) -> int:
        return self.x + self.width // 2


@dataclass(slots=True, eq=False)
class Bus:
    """Lines from some items of a layer to some of the next: columns that enter and leave, and the row between."""

    tops: list[int]
    children: list[Item]
    bottoms: list[int] = field(default_factory=list[int])
    row: int = 0

    @property
    def straight(self) -> bool:
        return self.tops == self.bottoms and len(self.tops) == 1

    @property
    def span(self) -> tuple[int, int]:
        columns = self.tops + self.bottoms
        return min(columns), max(columns)


def sketch(
    texts: Mapping[int, Sequence[str]], edges: Sequence[tuple[int, int]], layer: Mapping[int, int]
) -> list[str] | None:
    """Lines of text that show the graph, or None where lines would have to lie on each other.

    Args:
        texts: of each node's box, line by line.
        edges: from, to; those that lead to no later layer are left out.
        layer: of each node.
    """
    rows = _items(texts, edges, layer)
    _order(rows)
    _spread(rows)
    gaps = [_buses(row) for row in rows]
    if not all(_enter(buses) and _stack(buses) for buses in gaps):
        return None
    drawing: list[str] = []
    entered: set[int] = set()
    for row, buses in zip(rows, gaps, strict=True):
        drawing += _draw_row(row, entered, {top for bus in buses for top in bus.tops})
        drawing += _draw_buses(buses)
        entered = {bottom for bus in buses for bottom in bus.bottoms}
    return drawing


def _items(
    texts: Mapping[int, Sequence[str]], edges: Sequence[tuple[int, int]], layer: Mapping[int, int]
) -> list[list[Item]]:
    """The rows of boxes, with the lines that pass them by."""
    wants: defaultdict[int, set[int]] = defaultdict(set)
    for parent, child in edges:
        if layer[child] > layer[parent]:
            wants[parent].add(child)
    boxes = {number: Item(lines, frozenset(wants[number])) for number, lines in texts.items()}
    rows: list[list[Item]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for number, box in boxes.items():
        rows[layer[number]].append(box)
    for depth, row in enumerate(rows):
        passing: dict[frozenset[int], Item] = {}
        for item in row:
            near = sorted(number for number in item.wants if layer[number] == depth + 1)
            item.children = [boxes[number] for number in near]
            far = item.wants.difference(near)
            if far:
                # One line for all that lead to the very same: they share its bus.
                if item.wants not in passing:
                    passing[item.wants] = Item((), far)
                    rows[depth + 1].append(passing[item.wants])
                item.children.append(passing[item.wants])
            for below in item.children:
                below.parents.append(item)
    return rows


def _order(rows: Sequence[list[Item]]) -> None:
    """Put items beside each other so that few lines cross: each where its neighbours are on average."""
    place = {item: float(index) for row in rows for index, item in enumerate(row)}
    for turn in range(ROUNDS):
        for row in rows if turn % 2 == 0 else reversed(rows):
            means: dict[Item, float] = {}
            for item in row:
                beside = item.parents if turn % 2 == 0 else item.children
                means[item] = sum(place[other] for other in beside) / len(beside) if beside else place[item]
            row.sort(key=means.__getitem__)
            place |= {item: float(index) for index, item in enumerate(row)}


def _spread(rows: Sequence[list[Item]]) -> None:
    """Give each item its columns, near the middle of its neighbours."""
    for row in rows:
        for item in row:
            ports = max(len(item.parents), 1)
            item.width = max([cells(line) + 4 for line in item.lines] + [2 * ports + 1]) if item.lines else 1
        _pack(row, [0.0] * len(row))
    for turn in range(ROUNDS):
        for row in rows if turn % 2 == 0 else reversed(rows):
            wishes: list[float] = []
            for item in row:
                beside = item.parents if turn % 2 == 0 else item.children
                wishes.append(sum(other.middle for other in beside) / len(beside) if beside else float(item.middle))
            _pack(row, wishes)
    left = min((item.x for row in rows for item in row), default=0)
    for row in rows:
        for item in row:
            item.x -= left


def _pack(row: Sequence[Item], wishes: Sequence[float]) -> None:
    """Place items from left to right around the columns that their middles wish for."""
    free, excess = -(10**6), 0.0
    for item, wish in zip(row, wishes, strict=True):
        item.x = max(round(wish) - item.width // 2, free)
        free = item.x + item.width + SPACE
        excess += item.middle - wish
    # What was pushed to the right goes back by the average: the row as a whole is where it wishes to be.
    back = round(excess / len(row)) if row else 0
    for item in row:
        item.x -= back


def _buses(row: Sequence[Item]) -> list[Bus]:
    groups: dict[tuple[int, ...], Bus] = {}
    for item in row:
        if item.children:
            key = tuple(sorted(id(child) for child in item.children))
            groups.setdefault(key, Bus([], item.children)).tops.append(item.middle)
    return list(groups.values())


def _enter(buses: Sequence[Bus]) -> bool:
    """Choose the column in which each bus enters each child: its own, and none that another bus leaves a layer in."""
    taken: set[int] = set()
    for bus in sorted(buses, key=lambda bus: len(bus.children)):
        others = {top for other in buses if other is not bus for top in other.tops}
        bottoms: list[int] = []
        for child in bus.children:
            inside = range(child.x + 1, child.x + child.width - 1) if child.lines else range(child.x, child.x + 1)
            over = [top for top in bus.tops if top in inside] or [child.middle]
            wish = min(over, key=lambda column: abs(column - child.middle))
            free = [column for column in inside if column not in taken and column not in others]
            # A passing line has one column. If another bus leaves there, that one's row must be above: see _stack.
            free = free or [column for column in inside if column not in taken]
            if not free:
                return False
            busy = taken | others
            bottoms.append(min(free, key=lambda x: (bool({x - 1, x + 1} & busy), abs(x - wish), x)))
            taken.add(bottoms[-1])
        bus.bottoms = bottoms
    return True


def _stack(buses: Sequence[Bus]) -> bool:
    """Give each bus a row: none that touches another's there, and above those that enter where it leaves."""
    waiting = [bus for bus in buses if not bus.straight]
    straight = {column for bus in buses if bus.straight for column in bus.tops}
    if any(column in straight for bus in waiting for column in bus.bottoms + bus.tops):
        return False
    done: list[Bus] = []
    while waiting:
        ready = [
            bus for bus in waiting
            if not any(set(bus.bottoms) & set(other.tops) for other in waiting if other is not bus)
        ]  # fmt: skip
        if not ready:
            return False
        bus = min(ready, key=lambda bus: bus.span)
        above = [other.row for other in done if set(bus.bottoms) & set(other.tops)]
        row = max(above, default=-1) + 1
        while any(other.row == row and _touch(bus, other) for other in done):
            row += 1
        bus.row = row
        waiting.remove(bus)
        done.append(bus)
    return True


def _touch(one: Bus, other: Bus) -> bool:
    """Whether they could not be told apart in one row."""
    (left, right), (begin, end) = one.span, other.span
    return begin <= right + 1 and left <= end + 1


def _draw_row(row: Sequence[Item], entered: set[int], left: set[int]) -> list[str]:
    """The boxes of a layer, with the points where lines enter and leave."""
    height = max(len(item.lines) for item in row) + 2
    lines = [_Line() for _ in range(height)]
    for item in row:
        if not item.lines:
            for line in lines:
                line.put(item.x, "│")
            continue
        inner = range(item.x + 1, item.x + item.width - 1)
        lines[0].put(item.x, "┌" + "".join("┴" if x in entered else "─" for x in inner) + "┐")
        for index in range(height - 2):
            text = item.lines[index] if index < len(item.lines) else ""
            lines[index + 1].put(item.x, f"│ {text}{' ' * (item.width - 4 - cells(text))} │", item.width)
        lines[-1].put(item.x, "└" + "".join("┬" if x in left else "─" for x in inner) + "┘")
    return [line.text for line in lines]


def _draw_buses(buses: Sequence[Bus]) -> list[str]:
    height = max((bus.row for bus in buses), default=-1) + 1
    lines: list[str] = []
    for row in range(height):
        through: set[int] = set()
        bends: dict[int, int] = {}
        for bus in buses:
            if bus.straight or bus.row > row:
                through.update(bus.tops)
            elif bus.row < row:
                through.update(bus.bottoms)
            else:
                bends |= _bends(bus)
        columns = through | bends.keys()
        chars = ("│" if x in through else _LINES[bends[x]] if x in bends else " " for x in range(max(columns) + 1))
        lines.append("".join(chars))
    return lines


def _bends(bus: Bus) -> dict[int, int]:
    """Which ways the bus's own row leads in each of its columns."""
    left, right = bus.span
    return {
        x: UP * (x in bus.tops) | DOWN * (x in bus.bottoms) | LEFT * (x > left) | RIGHT * (x < right)
        for x in range(left, right + 1)
    }


class _Line:
    """A line of text that is written at columns, from left to right or not. Wide characters take two."""

    def __init__(self) -> None:
        self._pieces: dict[int, tuple[str, int]] = {}

    def put(self, x: int, text: str, width: int = 0) -> None:
        self._pieces[x] = (text, width or len(text))

    @property
    def text(self) -> str:
        text, column = "", 0
        for x, (piece, width) in sorted(self._pieces.items()):
            text += " " * (x - column) + piece
            column = x + width
        return text


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
