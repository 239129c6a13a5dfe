"""The forms of a picture, and the one way to draw it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Literal, get_args

from headrace.errors import OptionsError
from headrace.picture import svg
from headrace.picture.view import (
    INK,
    MOST,
    PLAIN,
    View,
    ViewNode,
    cells,
    clean,
    describe,
    ends,
    layers,
    look_of,
    shorten,
    tally,
    together_by_map,
)
from headrace.picture.view import collapse as together

_STYLES = {"continue": "dashed", "skip": "dotted", "undo": "dashed"}
_HEAD = (
    'node [shape=box, style="rounded,filled", fontname="monospace", fontsize=11]',
    'edge [color="#6e7781"]',
    "start [shape=diamond, style=filled, fillcolor={plain}]",
    "end [shape=diamond, style=filled, fillcolor={plain}]",
)


def as_dot(view: View) -> str:
    roots, leaves = ends(view)
    lines = [f"label={_quote(view.title)}", "labelloc=t"]
    lines += [line.format(plain=_quote(PLAIN.fill)) for line in _HEAD]
    lines += [_dot_node(node) for node in view.nodes]
    lines += [f"start -> n{number}" for number in roots]
    lines += [_dot_edge(*edge) for edge in view.edges]
    lines += [f"n{number} -> end" for number in leaves] or ["start -> end"]
    lines += [f"end -> n{node.number} [style=dashed]" for node in view.nodes if node.role == "callback"]
    return f"digraph {_quote(view.title)} {{\n" + "".join(f"  {line};\n" for line in lines) + "}\n"


def _dot_node(node: ViewNode) -> str:
    look = look_of(node.gravest)
    texts = [node.label, *node.counts, *filter(None, [node.note])]
    # In a quoted label a backslash and n break the line: _quote has doubled the user's own backslashes by then.
    label = "\\n".join(_quote(text)[1:-1] for text in texts)
    style = "rounded,filled,dashed" if look.dashed or node.beside else "rounded,filled"
    tooltip = _quote(", ".join(filter(None, (node.state, node.role))) or node.label)
    return (
        f'n{node.number} [label="{label}", fillcolor="{look.fill}", color="{look.line}", '
        f'style="{style}", tooltip={tooltip}]'
    )


def _dot_edge(parent: int, child: int, policy: str) -> str:
    if policy == "stop":
        return f"n{parent} -> n{child}"
    return f"n{parent} -> n{child} [style={_STYLES.get(policy, 'solid')}, label={_quote(policy)}]"


def _quote(text: str) -> str:
    # Graphviz takes an ampersand for the beginning of an HTML entity, in quotes as well.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") + '"'


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .,:/_-+…\N{MULTIPLICATION SIGN}")
_ARROWS = {"stop": "-->", "continue": "-. continue .->", "skip": "-. skip .->", "undo": "-. undo .->"}
# Mermaid refuses more text or edges than this unless its page says otherwise.
MOST_EDGES = 500
# In a title Mermaid takes these for HTML and knows no way to escape them, so their likes stand for them.
_LIKES = str.maketrans({
    "<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", ">": "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
    "&": "+",
})  # fmt: skip


def as_mermaid(view: View) -> str:
    """A flowchart: states are classes, policies labels. Mermaid draws at most 500 edges; a comment says so beyond."""
    roots, leaves = ends(view)
    lines = ["---", f"title: {json.dumps(view.title.translate(_LIKES), ensure_ascii=False)}", "---", "flowchart TD"]
    edges = [f"start_ --> n{number}" for number in roots]
    edges += [f"n{parent} {_ARROWS.get(policy, '-->')} n{child}" for parent, child, policy in view.edges]
    edges += [f"n{number} --> end_" for number in leaves] or ["start_ --> end_"]
    edges += [f"end_ -.-> n{node.number}" for node in view.nodes if node.role == "callback"]
    body = ['start_{"start"}', 'end_{"end"}', *(_mermaid_node(node) for node in view.nodes), *edges]
    if len(edges) > MOST_EDGES:
        hint = f"set maxEdges, which is {MOST_EDGES} by default, in the page that draws this"
        body.insert(0, f"%% {len(edges)} edges: {hint}")
    for state, _ in tally(view.nodes):
        look = look_of(state)
        dash = ",stroke-dasharray:4 3" if look.dashed else ""
        body.append(f"classDef {_class(state)} fill:{look.fill},stroke:{look.line},color:{INK}{dash}")
    return "\n".join([*lines, *(f"  {line}" for line in body)]) + "\n"


def _mermaid_node(node: ViewNode) -> str:
    texts = [node.label, *node.counts, *filter(None, [node.note])]
    label = "<br>".join(_escape(text) for text in texts)
    left, right = ("([", "])") if node.role in ("join", "pass") else ("[", "]")
    state = node.gravest
    return f'n{node.number}{left}"{label}"{right}' + (f":::{_class(state)}" if state else "")


def _class(state: str) -> str:
    # Some of Mermaid's own words are no class names, so ours have a prefix.
    return "state_" + "".join(c for c in state if c.isascii() and c.isalnum())


def _escape(text: str) -> str:
    return "".join(c if c in _PLAIN or (not c.isascii() and c.isalnum()) else f"#{ord(c)};" for c in text)


Form = Literal["svg", "dot", "mermaid", "text"]
FORMS: tuple[str, ...] = get_args(Form)
ENDINGS = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid", ".mermaid": "mermaid", ".txt": "text"}


def render(
    view: View, form: str, *, collapse: bool | None = None, width: int = 100, links: Mapping[int, str] | None = None
) -> str:
    """Draw a workflow. The same view gives the same text. Raises OptionsError: an unknown form, or an SVG of more boxes
    than anybody can read. Raises MissingExtra: SVG without the extra ``viz``.

    Args:
        form: ``svg``, ``dot``, ``mermaid`` or ``text``. Only ``svg`` needs the extra ``viz``.
        collapse: draw wide fan-outs of alike nodes as one box that says how many are in which state. None: if there
            are more than 200 boxes. A map is one box in any case, unless this is False. DOT, which is for other
            programs, stays whole unless this is True.
        width: columns that a text may take.
        links: where each box leads, by its number, which makes an SVG part of a page: without background and title.
    """
    if form not in FORMS:
        raise OptionsError(f"there is no form {form!r}: a picture is {', '.join(FORMS[:-1])} or {FORMS[-1]}")
    whole = form == "dot" if collapse is None else not collapse
    view = clean(view) if whole else boxes_of(view, collapse=bool(collapse))
    match form:
        case "svg":
            return svg.render(view, links)
        case "dot":
            return as_dot(view)
        case "mermaid":
            return as_mermaid(view)
        case _:
            return as_text(view, width)


def boxes_of(view: View, *, collapse: bool = False) -> View:
    """The boxes that are drawn: a map is one, and so are alike nodes if there are many or the caller says so."""
    view = clean(together_by_map(view))
    return together(view) if collapse or len(view.nodes) > MOST else view


def form_of(path: str | PurePath) -> str:
    ending = PurePath(path).suffix.lower()
    if ending not in ENDINGS:
        raise OptionsError(f"{str(path)!r} does not say which form it is: end it in {', '.join(ENDINGS)}")
    return ENDINGS[ending]


# Columns by which a layer stands to the right of the one before, and how many layers do at most.
INDENT, DEEPEST = 2, 12
LONGEST = 26
NAMED = 3


def as_text(view: View, width: int) -> str:
    """A list of nodes, each indented by its layer, with its states and what it follows; a policy stands behind that."""
    states = ", ".join(f"{look_of(state).glyph} {count} {state}" for state, count in tally(view.nodes) if count)
    told = _cut(describe(view).partition(":")[0] + (f": {states}" if states else ""), width)
    return "".join(line.rstrip() + "\n" for line in (shorten(view.title, width), told, "", *_list(view, width)))


def _list(view: View, width: int) -> list[str]:
    layer = layers(view)
    names = {node.number: node.label for node in view.nodes}
    parents: defaultdict[int, list[str]] = defaultdict(list)
    for parent, child, policy in view.edges:
        parents[child].append(shorten(names[parent], LONGEST) + (f" ({policy})" if policy != "stop" else ""))
    rows: list[tuple[str, ...]] = []
    for node in sorted(view.nodes, key=lambda node: (layer[node.number], node.number)):
        after = parents[node.number]
        role = f" ({node.role})" if node.role else ""
        name = f"{look_of(node.gravest).glyph} {shorten(node.label, LONGEST + 10)}{role}".strip()
        states = ", ".join(node.counts) or node.state
        more = f" and {len(after) - NAMED} more" if len(after) > NAMED else ""
        follows = f"after {', '.join(after[:NAMED])}{more}" if after else ""
        rows.append((" " * INDENT * min(layer[node.number], DEEPEST) + name, states, node.note, follows))
    # A definition that does not run has no states, and takes no time.
    widths = [max((cells(row[column]) for row in rows), default=0) for column in range(4)]
    lines: list[str] = []
    for row in rows:
        padded = [text + " " * (size - cells(text)) for text, size in zip(row, widths, strict=True) if size]
        lines.append(_cut("  ".join(padded), width))
    return lines


def _cut(text: str, width: int) -> str:
    if cells(text.rstrip()) <= width:
        return text
    while cells(text) > width - 1:
        text = text[:-1]
    return text + "…"
