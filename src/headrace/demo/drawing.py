"""The demo's workflow as a picture: its definition in the terminal, the run as a file. Owns that one file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import MissingExtra, OptionsError
from headrace.model.workflow import Graph, NodeRecord
from headrace.picture import form_of, of_graph, of_nodes, render
from headrace.picture.view import collapse, together_by_map

DEFAULT = Path("headrace-demo.svg")
# Boxes that one glance takes in: wider fans become one.
MOST = 12


def place(asked: Path | None) -> Path | None:
    """Where the picture goes, checked before anything has run; None: nobody asked, and here it cannot be written."""
    path = asked or DEFAULT
    form_of(path)
    if os.access(path, os.W_OK) and path.is_file():
        return path
    if not path.exists() and os.access(path.parent, os.W_OK | os.X_OK):
        return path
    if asked is None:
        return None
    raise OptionsError(f"the picture cannot be written to {path}: name another file with --picture")


def sketch(graph: Graph, width: int) -> str:
    """A definition for a terminal, without its title."""
    return render(of_graph(graph), "text", width=width).split("\n\n", 1)[1].rstrip()


def draw(path: Path, title: str, nodes: Sequence[NodeRecord]) -> tuple[Path, str]:
    """Write the picture of a run; where it is, and why not where it was to be."""
    view = collapse(together_by_map(of_nodes(title, nodes)), MOST)
    try:
        text, why = render(view, form_of(path)), ""
    except MissingExtra as error:
        path = path.with_suffix(".mmd")
        text, why = render(view, "mermaid"), str(error)
    path.write_text(text, encoding="utf-8")
    return path, why
