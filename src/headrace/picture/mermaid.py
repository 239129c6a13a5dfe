"""A view in Mermaid's language, which code hosts and wikis draw where it stands in a page."""

from __future__ import annotations

import json

from headrace.picture import theme
from headrace.picture.view import View, ViewNode, ends, tally

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .,:/_-+…\N{MULTIPLICATION SIGN}")
_ARROWS = {"stop": "-->", "continue": "-. continue .->", "skip": "-. skip .->", "undo": "-. undo .->"}
# Mermaid refuses more text or edges than this unless its page says otherwise.
MOST_EDGES = 500
# In a title Mermaid takes these for HTML and knows no way to escape them, so their likes stand for them.
_LIKES = str.maketrans(
    {
        "<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
        ">": "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
        "&": "+",
    }
)


def render(view: View) -> str:
    """The graph as a flowchart, with states as classes and policies as labels of the edges.

    Mermaid draws at most 500 edges as it comes; a comment says so where there are more.
    """
    roots, leaves = ends(view)
    lines = ["---", f"title: {json.dumps(view.title.translate(_LIKES), ensure_ascii=False)}", "---", "flowchart TD"]
    edges = [f"start_ --> n{number}" for number in roots]
    edges += [f"n{parent} {_ARROWS.get(policy, '-->')} n{child}" for parent, child, policy in view.edges]
    edges += [f"n{number} --> end_" for number in leaves] or ["start_ --> end_"]
    edges += [f"end_ -.-> n{node.number}" for node in view.nodes if node.role == "callback"]
    body = ['start_{"start"}', 'end_{"end"}', *(_node(node) for node in view.nodes), *edges]
    if len(edges) > MOST_EDGES:
        body.insert(
            0, f"%% {len(edges)} edges: set maxEdges, which is {MOST_EDGES} by default, in the page that draws this"
        )
    for state, _ in tally(view.nodes):
        look = theme.look(state)
        dash = ",stroke-dasharray:4 3" if look.dashed else ""
        body.append(f"classDef {_class(state)} fill:{look.fill},stroke:{look.line},color:{theme.INK}{dash}")
    return "\n".join([*lines, *(f"  {line}" for line in body)]) + "\n"


def _node(node: ViewNode) -> str:
    texts = [node.label, *node.counts, *filter(None, [node.note])]
    label = "<br>".join(_escape(text) for text in texts)
    left, right = ("([", "])") if node.role in ("join", "pass") else ("[", "]")
    state = node.gravest
    return f'n{node.number}{left}"{label}"{right}' + (f":::{_class(state)}" if state else "")


def _class(state: str) -> str:
    # Some of Mermaid's own words are no class names, so ours have a prefix.
    return "state_" + "".join(c for c in state if c.isascii() and c.isalnum())


def _escape(text: str) -> str:
    """Mermaid's own entities for all that it, Markdown or HTML could read as more than text."""
    return "".join(c if c in _PLAIN or (not c.isascii() and c.isalnum()) else f"#{ord(c)};" for c in text)
