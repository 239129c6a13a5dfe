"""What the demo's viewer sees: a live bar on a terminal, a line now and then in a pipe, nothing for a program.

Owns the terminal while a bar is shown.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

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
