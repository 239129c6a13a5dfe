"""Where boxes and edges go, which Graphviz's ``dot`` decides, in this process. Knows nothing of states and labels.

Graphviz gets numbers and sizes only: no text of a user's ever reaches it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import MissingExtra, PictureError

# dot takes up to ten seconds for as many in the worst case. No reader reads more boxes than that either.
MOST_BOXES = 1_500
MOST_EDGES = 3_000
# Seconds of a processor that a program of its own may take for one.
SECONDS = 5

# Length of an arrow's tip, pixels.
TIP = 9

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Shape:
    """What is to be placed: width and height in pixels, and whether its edges end at a diamond or a rectangle."""

    width: float
    height: float
    diamond: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Pixels from the upper left corner.

    Attributes:
        centres: of each shape.
        curves: of each edge, in the given order: a start and then cubic Bézier segments, three points each.
    """

    width: float
    height: float
    centres: Mapping[int, Point]
    curves: Sequence[Sequence[Point]]


def place(shapes: Mapping[int, Shape], edges: Sequence[tuple[int, int]], *, across: bool) -> Layout:
    """Lay a graph out in layers, from top to bottom, or from left to right if ``across``. The same input gives the same
    layout with the same release of Graphviz. Raises MissingExtra: the library is not installed. Raises PictureError:
    more than 1,500 shapes or 3,000 edges.
    """
    if len(shapes) > MOST_BOXES or len(edges) > MOST_EDGES:
        raise PictureError(
            f"a picture of {len(shapes):,} boxes and {len(edges):,} edges is more than anybody can read (at most "
            f"{MOST_BOXES:,} and {MOST_EDGES:,}): let alike nodes be collapsed, or write text, dot or mermaid"
        )
    graph = _library().AGraph(strict=False, directed=True)
    # Wide fans need room between the layers, or their edges run along each other.
    room = min(0.5 + len(edges) / len(shapes) / 8 + len(shapes) / 400, 1.6)
    graph.graph_attr.update(rankdir="LR" if across else "TB", nodesep="0.22", ranksep=f"{room:.2f}", splines="true")
    # Left alone, dot takes minutes over thousands of edges; from some hundreds on its search is bounded.
    effort = 800 / max(len(edges), 1)
    graph.graph_attr.update(nslimit=f"{min(effort, 4):.2f}", mclimit=f"{min(effort / 2, 1):.2f}")
    graph.node_attr.update(fixedsize="true", label="")
    leave, enter = ("e", "w") if across else ("s", "n")
    graph.edge_attr.update(arrowhead="none", tailport=leave, headport=enter)
    for number, shape in shapes.items():
        # Graphviz thinks in inches of 72 points; a point is a pixel here.
        size = {"width": f"{shape.width / 72:.4f}", "height": f"{shape.height / 72:.4f}"}
        graph.add_node(number, shape="diamond" if shape.diamond else "box", **size)
    for key, (parent, child) in enumerate(edges):
        graph.add_edge(parent, child, key=str(key))
    graph.layout(prog="dot")
    return _read(graph, shapes, edges, across=across)


def _library() -> Any:
    try:
        return importlib.import_module("pygraphviz")
    except ImportError as error:
        raise MissingExtra(
            "SVG pictures are laid out by Graphviz: pip install 'headrace[viz]'. Where that has no wheel, install "
            "Graphviz with its headers first. The forms text, dot and mermaid need neither."
        ) from error


def _read(graph: Any, shapes: Mapping[int, Shape], edges: Sequence[tuple[int, int]], *, across: bool) -> Layout:
    left, bottom, right, top = (float(value) for value in str(graph.graph_attr["bb"]).split(","))

    def point(text: str) -> Point:
        x, y = text.split(",")
        return round(float(x) - left, 1), round(top - float(y), 1)

    centres = {number: point(graph.get_node(number).attr["pos"]) for number in shapes}
    ranks = _Ranks(shapes, centres, across=across)
    curves: list[Sequence[Point]] = []
    for key, (parent, child) in enumerate(edges):
        spline = str(graph.get_edge(parent, child, str(key)).attr["pos"] or "").split(";")[0]
        points = [point(pair) for pair in spline.split() if pair.count(",") == 1]
        # Between neighbours nothing is in the way, and Graphviz's way round would bulge. It gives up on a spline once
        # in a great while: a curve that may cross a box is still true.
        near = ranks.apart(parent, child) == 1 or len(points) < 4
        curve = ranks.curve(parent, child)
        # The ends are ours in any case: Graphviz rounds them to either side of the border.
        curves.append(curve if near else [curve[0], *points[1:-1], curve[-1]])
    return Layout(right - left, top - bottom, centres, curves)


class _Ranks:
    """The rows, or columns, that the shapes are in, and curves between two of them that touch no shape of either.

    Coordinates in here are along the layout's direction first.
    """

    def __init__(self, shapes: Mapping[int, Shape], centres: Mapping[int, Point], *, across: bool) -> None:
        self._turn: Callable[[Point], Point] = (lambda p: p) if across else (lambda p: (p[1], p[0]))
        self._centres = {number: self._turn(centre) for number, centre in centres.items()}
        self._half = {number: (shape.width if across else shape.height) / 2 for number, shape in shapes.items()}
        self._reach: dict[float, float] = {}
        for number, (along, _) in self._centres.items():
            self._reach[along] = max(self._reach.get(along, 0.0), self._half[number])
        self._place = {along: place for place, along in enumerate(sorted(self._reach))}

    def apart(self, parent: int, child: int) -> int:
        return self._place[self._centres[child][0]] - self._place[self._centres[parent][0]]

    def curve(self, parent: int, child: int) -> list[Point]:
        (a, y), (b, z) = self._centres[parent], self._centres[child]
        # The last piece is straight and as long as an arrow's tip, which turns with it.
        start, out = a + self._half[parent], a + self._reach[a]
        into, end = b - self._reach[b] - TIP, b - self._half[child]
        middle = (out + into) / 2
        bends = [
            (start, y), (start, y), (out, y), (out, y),
            (middle, y), (middle, z), (into, z),
            (into + TIP / 3, z), (end - TIP / 3, z), (end, z),
        ]  # fmt: skip
        return [self._turn((round(along, 1), over)) for along, over in bends]
