"""Workflows as pictures: SVG, DOT, Mermaid, and text for a terminal. Pure: no server, no file, no program started.

Only SVG needs a library (the extra ``viz``); docs/design/pictures.md says which, and why.
"""

from __future__ import annotations

from headrace.picture.render import FORMS, boxes_of, form_of, render
from headrace.picture.view import MOST, View, ViewNode, around, of_graph, of_nodes, urgency

__all__ = [
    "FORMS", "MOST", "View", "ViewNode", "around", "boxes_of", "form_of", "of_graph", "of_nodes", "render", "urgency",
]  # fmt: skip
