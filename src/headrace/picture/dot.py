"""A view in Graphviz's language, for those who have the program and wishes of their own about the picture."""

from __future__ import annotations

from headrace.picture import theme
from headrace.picture.view import View, ViewNode, ends

_STYLES = {"continue": "dashed", "skip": "dotted", "undo": "dashed"}
_HEAD = (
    'node [shape=box, style="rounded,filled", fontname="monospace", fontsize=11]',
    'edge [color="#6e7781"]',
    "start [shape=diamond, style=filled, fillcolor={plain}]",
    "end [shape=diamond, style=filled, fillcolor={plain}]",
)


def render(view: View) -> str:
    """The graph with labels, states as colours and tooltips, and policies as line styles and labels."""
    roots, leaves = ends(view)
    lines = [f"label={_quote(view.title)}", "labelloc=t"]
    lines += [line.format(plain=_quote(theme.PLAIN.fill)) for line in _HEAD]
    lines += [_node(node) for node in view.nodes]
    lines += [f"start -> n{number}" for number in roots]
    lines += [_edge(*edge) for edge in view.edges]
    lines += [f"n{number} -> end" for number in leaves] or ["start -> end"]
    lines += [f"end -> n{node.number} [style=dashed]" for node in view.nodes if node.role == "callback"]
    return f"digraph {_quote(view.title)} {{\n" + "".join(f"  {line};\n" for line in lines) + "}\n"


def _node(node: ViewNode) -> str:
    look = theme.look(node.gravest)
    texts = [node.label, *node.counts, *filter(None, [node.note])]
    # In a quoted label a backslash and n break the line: _quote has doubled the user's own backslashes by then.
    label = "\\n".join(_quote(text)[1:-1] for text in texts)
    style = "rounded,filled,dashed" if look.dashed or node.beside else "rounded,filled"
    tooltip = _quote(", ".join(filter(None, (node.state, node.role))) or node.label)
    return (
        f'n{node.number} [label="{label}", fillcolor="{look.fill}", color="{look.line}", '
        f'style="{style}", tooltip={tooltip}]'
    )


def _edge(parent: int, child: int, policy: str) -> str:
    if policy == "stop":
        return f"n{parent} -> n{child}"
    return f"n{parent} -> n{child} [style={_STYLES.get(policy, 'solid')}, label={_quote(policy)}]"


def _quote(text: str) -> str:
    # Graphviz takes an ampersand for the beginning of an HTML entity, in quotes as well.
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") + '"'
