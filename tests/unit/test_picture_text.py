"""Pictures for a terminal: their lines are followed as a reader would, and lead from parents to children only."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import picture
from headrace.picture import View, ViewNode
from headrace.picture.text import sketch
from headrace.picture.view import layers

UP, DOWN, LEFT, RIGHT = (-1, 0), (1, 0), (0, -1), (0, 1)
WAYS = {
    "│": {UP, DOWN}, "─": {LEFT, RIGHT}, "└": {UP, RIGHT}, "┘": {UP, LEFT}, "┌": {DOWN, RIGHT}, "┐": {DOWN, LEFT},
    "├": {UP, DOWN, RIGHT}, "┤": {UP, DOWN, LEFT}, "┴": {UP, LEFT, RIGHT}, "┬": {DOWN, LEFT, RIGHT}, "┼": {UP, DOWN, LEFT, RIGHT},
}  # fmt: skip


def drawn(view: View) -> list[str] | None:
    texts = {node.number: [node.label] for node in view.nodes}
    return sketch(texts, [(a, b) for a, b, _ in view.edges], layers(view))


class Reader:
    """Follows lines from the lower border of a box to the upper borders of others."""

    def __init__(self, lines: list[str], labels: list[str]) -> None:
        width = max(map(len, lines))
        self.grid = [line.ljust(width) for line in lines]
        self.boxes: dict[str, tuple[int, int, int]] = {}  # row of the text, left, right
        for label in labels:
            ((row, left),) = [
                (row, line.index(f"│ {label} ")) for row, line in enumerate(self.grid) if f"│ {label} " in line
            ]
            self.boxes[label] = (row, left, self.grid[row].index("│", left + 1))

    def read(self) -> set[tuple[str, str]]:
        return {(label, child) for label in self.boxes for child in self._children(label)}

    def _children(self, label: str) -> set[str]:
        row, left, right = self.boxes[label]
        starts = [x for x in range(left + 1, right) if self.grid[row + 1][x] == "┬"]
        return {child for x in starts for child in self._follow(row + 2, x)}

    def _follow(self, y: int, x: int) -> set[str]:
        found: set[str] = set()
        seen = set()
        ways = [(y, x, DOWN)]
        while ways:
            y, x, way = ways.pop()
            if (y, x, way) in seen:
                continue
            seen.add((y, x, way))
            box = self._box_at(y, x)
            if box is not None:
                assert way == DOWN, "a line runs into the side of a box"
                found.add(box)
                continue
            char = self.grid[y][x]
            back = (-way[0], -way[1])
            if back not in WAYS[char]:
                # A line that goes down was drawn over this one, which goes on behind it.
                assert char == "│"
                assert way in (LEFT, RIGHT)
                ways.append((y, x + way[1], way))
                continue
            # Up from a row leads to other parents of the same bus, not to children.
            ways += [(y + dy, x + dx, (dy, dx)) for dy, dx in WAYS[char] - {back, UP}]
        return found

    def _box_at(self, y: int, x: int) -> str | None:
        inside = [b for b, (row, left, right) in self.boxes.items() if row - 1 <= y <= row + 1 and left <= x <= right]
        return inside[0] if inside else None


@st.composite
def graphs(draw: st.DrawFn) -> View:
    count = draw(st.integers(1, 14))
    pairs = [(a, b) for b in range(2, count + 1) for a in range(1, b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count)) if pairs else []
    lengths = draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    nodes = [ViewNode(i, f"{chr(96 + i)}{'x' * length}") for i, length in enumerate(lengths, 1)]
    return View("drawn", nodes, [(a, b, "stop") for a, b in chosen])


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_what_is_read_from_a_drawing_is_what_was_drawn(view: View) -> None:
    lines = drawn(view)
    if lines is None:
        return  # no way without lines on each other: text.py lists it instead
    names = {node.number: node.label for node in view.nodes}
    assert Reader(lines, list(names.values())).read() == {(names[a], names[b]) for a, b, _ in view.edges}


def test_a_diamond() -> None:
    nodes = [
        ViewNode(1, "fetch", "succeeded"),
        ViewNode(2, "small", "running"),
        ViewNode(3, "large", "failed"),
        ViewNode(4, "publish", "blocked"),
    ]
    view = View("thumbnails", nodes, [(1, 2, "stop"), (1, 3, "continue"), (2, 4, "stop"), (3, 4, "stop")])
    assert picture.render(view, "text").splitlines() == [
        "thumbnails",
        "4 jobs: · 1 blocked, ✗ 1 failed, ▶ 1 running, ✓ 1 succeeded",
        "",
        "      ┌─────────┐",
        "      │ ✓ fetch │",
        "      └────┬────┘",
        "     ┌─────┴──────┐",
        "┌────┴────┐  ┌────┴────┐",
        "│ ▶ small │  │ ✗ large │",
        "└────┬────┘  └────┬────┘",
        "     └─────┬──────┘",
        "     ┌─────┴─────┐",
        "     │ · publish │",
        "     └───────────┘",
        "",
        "continue: fetch → large",
    ]


def test_every_small_definition_of_a_usual_kind_is_drawn() -> None:
    chain = [(i, i + 1, "stop") for i in range(1, 8)]
    ladder = [(i, j, "stop") for i in range(1, 8) for j in (i + 1, i + 2) if j < 9]
    full = [(i, j, "stop") for i in range(1, 5) for j in range(5, 9)]
    for edges in (chain, ladder, full, []):
        assert drawn(View("", [ViewNode(i, f"n{i}") for i in range(1, 9)], edges)) is not None


def test_more_than_thirty_nodes_are_a_table_by_layer() -> None:
    nodes = [
        ViewNode(1, "scan", "succeeded"),
        *(ViewNode(i, f"resize-{i}", "ready") for i in range(2, 42)),
        ViewNode(42, "join", "blocked", "join"),
    ]
    view = View("many", nodes, [(1, i, "stop") for i in range(2, 42)] + [(i, 42, "stop") for i in range(2, 42)])
    lines = picture.render(view, "text").splitlines()
    assert lines[3].split() == ["layer", "node", "state", "after"]
    assert lines[4].split() == ["1", "✓", "scan", "succeeded"]
    assert lines[5].split() == ["2", "○", "resize-2", "ready", "scan"]
    assert lines[-1] == "3      · join (join)  blocked    resize-2, resize-3, resize-4 and 37 more"
    assert len(lines) == 4 + 42


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    nodes = [ViewNode(i, f"課題.{'long' * 5}-{i}", "running") for i in range(1, 12)]
    view = View("w" * 200, nodes, [(i, j, "skip") for i in range(1, 4) for j in range(4, 12)])
    for line in picture.render(view, "text", width=width).splitlines():
        assert sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) <= width


def test_no_name_is_obeyed_by_the_terminal() -> None:
    view = View("\x1b[2J", [ViewNode(1, "a\x1b[31m\nb\x9b"), ViewNode(2, "\u202ec\u2028")], [(1, 2, "stop")])
    text = picture.render(view, "text")
    assert [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl") and c != "\n"] == []
    assert "a\\x1b[31m\\x0ab\\x9b" in text


def test_undoing_and_callbacks_are_told_below() -> None:
    nodes = [ViewNode(1, "book"), ViewNode(2, "unbook", role="undo"), ViewNode(3, "tell", role="callback")]
    lines = picture.render(View("trip", nodes, [(1, 2, "undo")]), "text").splitlines()
    assert lines[-2:] == ["undo: book → unbook", "at the end: tell"]


def test_nothing_is_drawn_of_nothing() -> None:
    assert picture.render(View("empty"), "text").splitlines() == ["empty", "0 jobs", ""]
