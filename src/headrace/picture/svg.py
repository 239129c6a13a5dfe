"""A view as one SVG file: no script, no link, no font of its own."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from headrace.errors import MissingExtra, OptionsError
from headrace.picture.view import (
    FAINT,
    INK,
    LINE,
    PLAIN,
    STRUCK,
    Look,
    View,
    ViewNode,
    cells,
    describe,
    ends,
    layers,
    look_of,
    shorten,
    tally,
)

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
    layout with the same release of Graphviz. Raises MissingExtra: the library is not installed. Raises OptionsError:
    more than 1,500 shapes or 3,000 edges.
    """
    if len(shapes) > MOST_BOXES or len(edges) > MOST_EDGES:
        raise OptionsError(
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


# Advance of a character in the widest of the fonts that are asked for, as a share of the size: labels stay in boxes.
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
ADVANCE = 0.605

Value = str | float


def tag(name: str, *inside: str, **attributes: Value) -> str:
    head = "".join(f' {key.strip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{head}>{''.join(inside)}</{name}>" if inside else f"<{name}{head}/>"


def words(text: str, x: float, y: float, size: float = 13, fill: str = INK, **attributes: Value) -> str:
    return tag("text", escape(text), x=x, y=y, font_size=size, fill=fill, **attributes)


def line(path: str, stroke: str = LINE, **attributes: Value) -> str:
    return tag("path", d=path, fill="none", stroke=stroke, **attributes)


def icon(look: Look, x: float, y: float) -> str:
    if not look.icon:
        return ""
    round_: dict[str, Value] = {"stroke_width": 1.8, "stroke_linecap": "round", "stroke_linejoin": "round"}
    return line(look.icon, look.line, transform=f"translate({number(x)} {number(y)})", **round_)


def dashes(pattern: str) -> dict[str, str]:
    return {"stroke_dasharray": pattern} if pattern else {}


def text_width(text: str, size: float) -> float:
    return cells(text) * size * ADVANCE


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def points(values: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{number(x)} {number(y)}" for x, y in values)


def _value(value: Value) -> str:
    return escape(value) if isinstance(value, str) else number(value)


DASHES = {"continue": "6 4", "skip": "2 3", "undo": "8 3 1.5 3", "after": "12 4"}
MEANING = {
    "stop": "runs if the first succeeded",
    "continue": "runs however the first ended",
    "skip": "is skipped unless the first succeeded",
    "undo": "undoes the first after a failure",
    "after": "is called at the end",
}
ROW = 22
LEGEND_SIZE = 12


@dataclass(frozen=True, slots=True)
class LegendNote:
    """One sign and what it means; ``edge`` tells a policy from a state."""

    name: str
    text: str
    edge: bool = False

    @property
    def width(self) -> float:
        return 62 + text_width(self.text, LEGEND_SIZE)


def legend_notes(view: View, policies: Collection[str]) -> list[LegendNote]:
    states = [LegendNote(state, f"{state} {count}" if count else state) for state, count in tally(view.nodes)]
    used = [policy for policy in MEANING if policy in policies]
    return states + ([LegendNote(policy, MEANING[policy], edge=True) for policy in used] if used != ["stop"] else [])


def note_places(notes: Sequence[LegendNote], width: float) -> list[tuple[float, float]]:
    places: list[tuple[float, float]] = []
    x, y = 0.0, 0.0
    for note in notes:
        if x and x + note.width > width:
            x, y = 0.0, y + ROW
        places.append((x, y))
        x += note.width
    return places


def draw(note: LegendNote, x: float, y: float) -> str:
    if note.edge:
        dash = dashes(DASHES.get(note.name, ""))
        sign = line(f"M{x:.1f} {y:.1f}h28", stroke_width=1.3, marker_end="url(#tip)", **dash)
    else:
        look = look_of(note.name)
        style = dashes("4 3" if look.dashed else "")
        sign = tag("rect", x=x, y=y - 9, width=28, height=18, rx=4, fill=look.fill, stroke=look.line, **style)
        sign += icon(look, x + 8, y - 6)
    kind = "legend" if note.edge else f"legend s-{note.name}"
    return tag("g", sign, words(note.text, x + 36, y + 4, LEGEND_SIZE, FAINT), class_=kind)


SIZE = 13
LONGEST = 34
HEIGHT = 34
GAP = 24
# Numbers no node has.
START = -1
END = -2
DIAMOND = Shape(64, 44, diamond=True)

Edge = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Box:
    """One node with its lines of text, cut to what a box can show."""

    node: ViewNode
    lines: tuple[str, ...]
    width: float
    height: float


def render(view: View, links: Mapping[int, str] | None = None) -> str:
    """The picture as the text of a file. ``links``: where each box leads, by its number; then the picture is part of a
    page: it has no background, no title of its own, and classes by which the page's stylesheet gives it other colours.
    Raises MissingExtra, OptionsError: see :func:`headrace.picture.svg.place`.
    """
    boxes = {node.number: box_of(node) for node in view.nodes}
    shapes = {number: Shape(box.width, box.height) for number, box in boxes.items()}
    edges = _edges(view)
    across = _across(view, boxes)
    layout = place(shapes | {START: DIAMOND, END: DIAMOND}, [(a, b) for a, b, _ in edges], across=across)
    graph = [
        *(_curve(edge, curve) for edge, curve in zip(edges, layout.curves, strict=True)),
        *(_diamond(number, layout.centres[number]) for number in (START, END)),
        *(_draw(box, layout.centres[number], (links or {}).get(number)) for number, box in boxes.items()),
    ]
    notes = legend_notes(view, {policy for _, _, policy in edges})
    return "\n".join(_page(view, layout, graph, notes, inline=links is not None)) + "\n"


def box_of(node: ViewNode) -> Box:
    counts = ", ".join(node.counts)
    lines = [shorten(node.label, LONGEST), *(shorten(text, LONGEST + 8) for text in (counts, node.note) if text)]
    room = 20 if look_of(node.gravest).icon else 0
    width = max(text_width(lines[0], SIZE), *(text_width(text, SIZE - 2) for text in lines[1:]), 40) + room + 20
    return Box(node, tuple(lines), width, HEIGHT + 22 * bool(counts) + 14 * bool(node.note))


def _edges(view: View) -> list[Edge]:
    roots, leaves = ends(view)
    edges = [(START, number, "stop") for number in roots] + view.edges
    edges += [(number, END, "stop") for number in leaves] or [(START, END, "stop")]
    return edges + [(END, node.number, "after") for node in view.nodes if node.role == "callback"]


def _across(view: View, boxes: Mapping[int, Box]) -> bool:
    sizes = Counter(layers(view).values())
    if not sizes:
        return False
    depth, widest, box = max(sizes) + 3, max(sizes.values()), max(box.width for box in boxes.values())
    down = max(widest * (box + 16) / 1280, depth * 78 / 800)
    return max(depth * (box + 44) / 1280, widest * 50 / 800) < down


def _page(
    view: View, layout: Layout, graph: Sequence[str], notes: Sequence[LegendNote], *, inline: bool
) -> Iterator[str]:
    title = "" if inline else shorten(view.title, 60)
    inner = max(layout.width, text_width(title, 17), max((note.width for note in notes), default=0), 300)
    places = note_places(notes, inner)
    head = 0.4 * GAP if inline else 2.2 * GAP
    foot = head + layout.height + GAP
    width, height = inner + 2 * GAP, foot + (places[-1][1] + ROW if places else 0) + 0.5 * GAP
    # What is in an image cannot be followed.
    style = f'role="{"group" if inline else "img"}" font-family="{FONT}" viewBox="0 0 {number(width)} {number(height)}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" {style}>'
    yield tag("title", escape(view.title))
    yield tag("desc", escape(describe(view)))
    tip = tag("path", d=f"M0 0 {TIP} 4 0 8z", fill=LINE)
    size: dict[str, str | float] = {"refX": TIP - 0.5, "refY": 4, "markerWidth": TIP, "markerHeight": 8}
    yield tag("defs", tag("marker", tip, id="tip", markerUnits="userSpaceOnUse", orient="auto", **size))
    if not inline:
        yield tag("rect", width="100%", height="100%", fill="#ffffff")
        yield words(title, GAP, GAP * 1.3, 17, font_weight="600")
    yield f'<g class="graph" transform="translate({number(GAP + (inner - layout.width) / 2)} {number(head)})">'
    yield from graph
    yield "</g>"
    yield from (draw(note, GAP + x, foot + y) for note, (x, y) in zip(notes, places, strict=True))
    yield "</svg>"


def _curve(edge: Edge, curve: Sequence[Point]) -> str:
    parent, child, policy = edge
    path = f"M{points(curve[:1])}C{points(curve[1:])}"
    style = {"class_": "edge", "marker_end": "url(#tip)", **dashes(DASHES.get(policy, ""))}
    return line(path, stroke_width=1.3, data_from=parent, data_to=child, **style)


def _diamond(which: int, centre: Point) -> str:
    x, y = centre
    name = "start" if which == START else "end"
    half, tall = DIAMOND.width / 2, DIAMOND.height / 2
    path = f"M{points([(x, y - tall), (x + half, y), (x, y + tall), (x - half, y)])}z"
    shape = tag("path", d=path, fill="#f6f8fa", stroke=PLAIN.line)
    return tag("g", shape, words(name, x, y + 4, 11, text_anchor="middle"), class_=name)


def _draw(box: Box, centre: Point, target: str | None) -> str:
    node = box.node
    state = node.gravest
    look = look_of(state)
    left, top = centre[0] - box.width / 2, centre[1] - box.height / 2
    inner = left + (28 if look.icon else 10)
    rounded = HEIGHT / 2 if node.role in ("join", "pass") else 5
    border = dashes("4 3" if look.dashed or node.beside else "")
    style: dict[str, Value] = {"rx": rounded, "fill": look.fill, "stroke": look.line, **border}
    parts = [
        tag("title", escape(": ".join(filter(None, (node.label, "" if node.states else node.state, node.role))))),
        tag("rect", x=left, y=top, width=box.width, height=box.height, **style),
        icon(look, left + 9, top + HEIGHT / 2 - 6),
        words(box.lines[0], inner, top + HEIGHT / 2 + 4.5, SIZE),
    ]
    if node.states:
        # A second sheet below says that there is more than one.
        sheet = f"M{points([(left + 4, top + box.height)])}v3.5h{number(box.width)}v-{number(box.height)}h-3.5"
        parts.insert(1, line(sheet, look.line))
    more, low = list(box.lines[1:]), top + HEIGHT
    if node.note:
        # What went wrong on the way is not left to those who read the small print.
        struck = {"fill": STRUCK, "font_weight": "600"} if node.crashes or node.retries else {"fill": FAINT}
        parts.append(words(more.pop(), inner, low + 1, SIZE - 2, **struck))
        low += 14
    if more:
        parts.append(words(more[0], inner, low + 4, SIZE - 2, FAINT))
        parts += _bar(node, left + 10, top + box.height - 11, box.width - 20)
    drawn = tag("g", *parts, class_=f"node s-{state}" if state else "node", data_number=node.number)
    return drawn if target is None else tag("a", drawn, href=target)


def _bar(node: ViewNode, x: float, y: float, width: float) -> Iterator[str]:
    for state, count in node.states:
        share = width * count / node.count
        yield tag("rect", x=x, y=y, width=share, height=4, fill=look_of(state).line, class_=f"share s-{state}")
        x += share
