"""The demo as its viewer sees it.

1. :class:`Screen`: a live bar on a terminal, a line now and then in a pipe, nothing for a program. Owns the terminal
   while a bar is shown.
2. :func:`sketch` and :func:`draw`: the definition in the terminal, and the run as a file. Own that one file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from headrace.errors import MissingExtra, OptionsError
from headrace.model.workflow import Graph, NodeRecord
from headrace.picture import form_of, of_graph, of_nodes, render
from headrace.picture.view import collapse, together_by_map

# Into a pipe, a line when each such share is done.
SHARE = 0.25
PIPE_WIDTH = 100


class Screen:
    """Where the demo speaks. ``quiet``: it says nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=quiet, highlight=False, markup=False, emoji=False)
        if not self._console.is_terminal:
            self._console.width = PIPE_WIDTH

    @property
    def width(self) -> int:
        return self._console.width

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def tables(self, *tables: RenderableType) -> None:
        for table in tables:
            self._console.print()
            self._console.print(table)

    @contextmanager
    def bar(self) -> Generator[StageBar]:
        columns = (
            BarColumn(bar_width=None), TaskProgressColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
            TimeElapsedColumn(),
        )  # fmt: skip
        live = Progress(*columns, console=self._console, disable=not self._console.is_terminal, expand=True)
        with live:
            yield StageBar(self._console, live)


class StageBar:
    """Progress of the run."""

    def __init__(self, console: Console, live: Progress) -> None:
        """Use :meth:`Screen.bar`."""
        self._console = console
        self._live = live
        self._task = live.add_task("starting", total=None)
        self._began: float | None = None
        self._next = SHARE

    def show(self, done: int, total: int, running: int, news: Sequence[str]) -> None:
        """So many nodes have ended, of so many (0: nobody knows yet), so many run, and this is new."""
        for text in news:
            self._console.print(f"  {text}", style="yellow", soft_wrap=True)
        if not total:
            return
        now = time.monotonic()
        if self._began is None:
            # From here on: the worker's start is no work.
            self._began = now
        rate = done / (now - self._began) if now - self._began > 0.5 else 0.0
        speed = f"{running} running, {rate:,.0f}/s"
        self._live.update(self._task, completed=done, total=total, description=speed)
        if not self._console.is_terminal and done >= total * self._next:
            self._console.print(f"{done:,} of {total:,} jobs done, {speed}")
            while done >= total * self._next:
                self._next += SHARE


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
