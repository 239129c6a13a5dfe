"""A progress bar for what may take long, and mostly does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.cli.output import Output

# Seconds after which a person who waits wants to see something move.
PATIENCE = 1.0


@contextmanager
def bar_of(output: Output, total: int) -> Generator[Callable[[int], None]]:
    """A bar with the time that is left, on a terminal at once. Call what it gives with how many are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns: tuple[Any, ...] = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = output.json or not sys.stderr.isatty()
    with Progress(*columns, console=output.console(sys.stderr), disable=hidden) as progress:
        bar = progress.add_task("", total=total)
        yield lambda done: progress.update(bar, completed=done)


class ProgressBar:
    """Counts what is done; from its second second on, a terminal shows it."""

    def __init__(self, output: Output, total: int | None = None, noun: str = "jobs") -> None:
        """Make one.

        Args:
            total: None: not known.
        """
        self._output = output
        self._total = total
        self._noun = noun
        self._done = 0
        self._from = time.monotonic() + PATIENCE
        self._quiet = output.json or not sys.stderr.isatty()
        self._shown: tuple[Progress, Any] | None = None

    def add(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        if not self._quiet and self._shown is None and time.monotonic() >= self._from:
            self._show()
        if self._shown is not None:
            progress, bar = self._shown
            progress.update(bar, completed=self._done)

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: tuple[Any, ...] = (BarColumn(), MofNCompleteColumn(), TextColumn(self._noun), TimeElapsedColumn())
        progress = Progress(*columns, console=self._output.console(sys.stderr), transient=True)
        progress.start()
        self._shown = progress, progress.add_task("", total=self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()
