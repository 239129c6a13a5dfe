"""``python -m tests.docs.architecture``: the picture of docs/design/architecture.md, from the imports of the code.

A box is a folder of the package or a module of its root. An arrow says "imports"; one that follows from others is left
out. Imports for types alone are left out as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from headrace.picture.svg import FONT, TIP, Shape, line, number, place, points, tag, text_width, words
from headrace.picture.view import FAINT, LINE, PLAIN

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headrace"
PICTURE = ROOT / "docs" / "design" / "architecture.svg"

Graph = dict[str, set[str]]


def imports(package: Path = PACKAGE) -> Graph:
    """What each folder, or module of the root, imports of the others at run time."""
    graph: Graph = {}
    for path in sorted(package.rglob("*.py")):
        if path.stem in ("__main__", "__init__") and path.parent == package:
            continue
        parts = path.relative_to(package).with_suffix("").parts
        known = graph.setdefault(parts[0], set())
        known |= {name for name in _imported(ast.parse(path.read_text())) if name != parts[0]}
    return {name: found & graph.keys() for name, found in graph.items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in types:
            first, _, rest = node.module.partition(".")
            if first == "headrace":
                yield from [rest.split(".")[0]] if rest else [alias.name for alias in node.names]


def reduced(graph: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows from which all others follow."""
    below: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in below:
            below[name] = graph[name].union(*map(reach, graph[name]))
        return below[name]

    return [
        (name, to)
        for name in sorted(graph)
        for to in sorted(graph[name])
        if not any(to in reach(other) for other in graph[name] - {to})
    ]


def sizes(package: Path = PACKAGE) -> dict[str, int]:
    """Lines of Python in each folder, or module of the root."""
    found: dict[str, int] = {}
    for path in package.rglob("*.py"):
        name = path.relative_to(package).with_suffix("").parts[0]
        found[name] = found.get(name, 0) + path.read_text().count("\n")
    return found


def draw(graph: Graph, lines: Mapping[str, int]) -> str:
    """The graph as an SVG file."""
    names = sorted(graph)
    notes = {name: f"{round(lines[name], -2):,} lines" for name in names}
    widths = {name: max(text_width(name, 14), text_width(notes[name], 11)) + 24 for name in names}
    shapes = {key: Shape(widths[name], 42) for key, name in enumerate(names)}
    edges = [(names.index(a), names.index(b)) for a, b in reduced(graph)]
    layout = place(shapes, edges, across=False)
    width, height = layout.width + 32, layout.height + 32
    tip = tag("path", d=f"M0 0 {TIP} 4 0 8z", fill=LINE)
    mark = tag("marker", tip, id="tip", markerUnits="userSpaceOnUse", orient="auto", refX=TIP - 0.5, refY=4,
               markerWidth=TIP, markerHeight=8)  # fmt: skip
    style = f'role="img" font-family="{FONT}" viewBox="0 0 {number(width)} {number(height)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" {style}>',
        tag("title", escape("What each folder of Headrace imports")),
        tag("desc", escape("; ".join(f"{a} imports {b}" for a, b in reduced(graph)))),
        tag("defs", mark),
        tag("rect", width="100%", height="100%", fill="#ffffff"),
        '<g transform="translate(16 16)">',
    ]
    for curve in layout.curves:
        path = f"M{points(curve[:1])}C{points(curve[1:])}"
        parts.append(line(path, stroke_width=1.3, marker_end="url(#tip)"))
    for key, name in enumerate(names):
        x, y = layout.centres[key]
        folder = (PACKAGE / name).is_dir()
        box = {"rx": 5, "fill": PLAIN.fill if folder else "#ffffff", "stroke": PLAIN.line}
        parts += [
            tag("rect", x=x - widths[name] / 2, y=y - 21, width=widths[name], height=42, **box),
            words(name, x, y - 2, 14, text_anchor="middle", font_weight="600" if folder else "400"),
            words(notes[name], x, y + 13, 11, FAINT, text_anchor="middle"),
        ]
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(imports(), sizes()))
