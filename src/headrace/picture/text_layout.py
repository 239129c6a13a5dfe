"""A small graph in boxes and lines of text, layer below layer. Decides places and draws; what to draw is text.py's.

Between two layers, all that lead to the same children share one *bus*: lines down from each of them onto a row, and
down from that row to each child. Where lines of two buses cross, the one that goes down is drawn through, and they do
not touch. A line that passes layers by goes through them as an item of width one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.picture.view import cells

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
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
