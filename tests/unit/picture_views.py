"""Graphs that the tests of pictures draw, and an SVG read back."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from headrace.model.job import State
from headrace.picture import View, ViewNode

SVG = "{http://www.w3.org/2000/svg}"
EVIL = [
    '<script>alert("1")</script>',
    "a & b; 'c'",
    "]]> --> <!--",
    "back\\slash\\n",
    "日本語のタスク",
    "end",
    "tab\there\x1b[31m\x00",
    "\u202ertl",
    "\ud800",
]


def fan(width: int, state: str = "ready") -> View:
    """1 -> width -> join -> 1."""
    items = range(2, width + 2)
    nodes = [ViewNode(1, "scan", "succeeded"), *(ViewNode(i, f"resize-{i - 1}", state) for i in items)]
    nodes += [ViewNode(width + 2, "join-1", "blocked", "join"), ViewNode(width + 3, "publish", "blocked")]
    edges = (
        [(1, i, "stop") for i in items] + [(i, width + 2, "continue") for i in items] + [(width + 2, width + 3, "stop")]
    )
    return View("thumbnails", nodes, edges)


def chain(length: int) -> View:
    nodes = [ViewNode(i, f"step-{i}") for i in range(1, length + 1)]
    return View("chain", nodes, [(i, i + 1, "stop") for i in range(1, length)])


def evil() -> View:
    nodes = [ViewNode(i, label, "running") for i, label in enumerate(EVIL, 1)]
    return View(EVIL[0], nodes, [(i, i + 1, "skip") for i in range(1, len(EVIL))])


DIAMOND = View(
    "nightly",
    [
        ViewNode(1, "fetch", "succeeded"), ViewNode(2, "resize-1", "failed"), ViewNode(3, "resize-2", "running"),
        ViewNode(4, "publish", "blocked"), ViewNode(5, "unfetch", "blocked", "undo"), ViewNode(6, "tell", "blocked", "callback"),
    ],
    [(1, 2, "stop"), (1, 3, "stop"), (2, 4, "continue"), (3, 4, "skip"), (1, 4, "stop"), (1, 5, "undo")],
)  # fmt: skip


@st.composite
def views(draw: st.DrawFn, most: int = 12) -> View:
    """Graphs without a cycle, with edges that pass layers by."""
    count = draw(st.integers(1, most))
    names = st.text(st.characters(), min_size=1, max_size=12)
    states = st.sampled_from(["", *map(str, State), "unheard"])
    nodes = [ViewNode(i, draw(names), draw(states)) for i in range(1, count + 1)]
    pairs = [(a, b) for b in range(2, count + 1) for a in range(1, b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2 * count)) if pairs else []
    return View(draw(st.text(max_size=20)), nodes, [(a, b, draw(st.sampled_from("sck"))) for a, b in chosen])


@dataclass(frozen=True)
class Rect:
    left: float
    top: float
    width: float
    height: float

    def near(self, x: float, y: float, slack: float = 1.0) -> bool:
        return (
            self.left - slack <= x <= self.left + self.width + slack
            and self.top - slack <= y <= self.top + self.height + slack
        )

    def overlaps(self, other: Rect) -> bool:
        apart = (
            self.left + self.width <= other.left or other.left + other.width <= self.left
            or self.top + self.height <= other.top or other.top + other.height <= self.top
        )  # fmt: skip
        return not apart


class Drawing:
    """An SVG read back: where each box is, and the points of each edge."""

    def __init__(self, text: str) -> None:
        self.root = ET.fromstring(text)
        (graph,) = [g for g in self.root.findall(f"{SVG}g") if g.get("class") == "graph"]
        self.texts = ["".join(e.itertext()) for e in self.root.iter(f"{SVG}text")]
        self.tips = {}
        self.boxes: dict[int, Rect] = {}
        for group in graph.findall(f"{SVG}g"):
            if "node" in group.get("class", "").split():
                rect, number = group.find(f"{SVG}rect"), int(group.attrib["data-number"])
                assert rect is not None
                self.boxes[number] = Rect(*(float(rect.attrib[name]) for name in ("x", "y", "width", "height")))
                self.tips[number] = group.findtext(f"{SVG}title") or ""
            else:
                points = _points(group[0].attrib["d"])
                xs, ys = [x for x, _ in points], [y for _, y in points]
                number = -1 if group.get("class") == "start" else -2
                self.boxes[number] = Rect(min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
        self.edges = [
            (int(p.attrib["data-from"]), int(p.attrib["data-to"]), _points(p.attrib["d"]))
            for p in graph.findall(f"{SVG}path")
            if p.get("class") == "edge"
        ]

    def check(self) -> None:
        numbers = sorted(self.boxes)
        for place, one in enumerate(numbers):
            for other in numbers[place + 1 :]:
                assert not self.boxes[one].overlaps(self.boxes[other]), (one, other)
        for parent, child, points in self.edges:
            assert self.boxes[parent].near(*points[0]), (parent, child)
            assert self.boxes[child].near(*points[-1]), (parent, child)
        page = Rect(0, 0, float(self.root.attrib["width"]), float(self.root.attrib["height"]))
        assert all(box.left >= -1 and box.left + box.width <= page.width for box in self.boxes.values())

    def crossed(self) -> list[tuple[int, int, int]]:
        """Edges that run through the inside of a box that is not theirs."""
        curves = [(parent, child, list(_along(points))) for parent, child, points in self.edges]
        return [
            (parent, child, number)
            for parent, child, curve in curves
            for number, box in self.boxes.items()
            if number not in (parent, child) and any(box.near(x, y, -2) for x, y in curve)
        ]


def _points(path: str) -> list[tuple[float, float]]:
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _along(points: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Points on the curve, eight to a segment."""
    for start in range(0, len(points) - 3, 3):
        (ax, ay), (bx, by), (cx, cy), (dx, dy) = points[start : start + 4]
        for step in range(9):
            t = step / 8
            a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            yield a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy
