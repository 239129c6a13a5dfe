"""Everything that commands print: text, tables and JSON on stdout, remarks and errors on stderr.

Texts of users (names, errors, log lines) are never read as markup, and never reach the terminal with control characters
in them.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TextIO

from headrace.model.notation import shown_share, utc

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from headrace.model.hidden_values import Redactor

# What a terminal obeys instead of showing it: control characters, those that turn the direction of text (a name could
# show as another one), and the two that end a line for some programs only.
_TURNS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROL = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"},
    **{code: f"\\u{code:04x}" for code in (*_TURNS, 0x2028, 0x2029)},
}
# JSON escapes the first 32 itself. These stand in texts only, where an escape means the same.
_IN_JSON = {code: f"\\u{code:04x}" for code in _CONTROL if code >= 127}

# Columns: terminals are taken to have the first at least, and show spare columns from the second on.
NARROW = 72
ROOMY = 110

STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "red",
    "quarantined": "bold red",
    "cancelled": "yellow",
    "parked": "magenta",
    "scheduled": "blue",
    "paused": "yellow",
}


def plain(text: object) -> str:
    """Text that a terminal shows and does not obey. Lines and tabs stay."""
    return str(text).translate(_CONTROL)


def one_line(text: object) -> str:
    return plain(text).replace("\n", "\\n")


def entry(text: object) -> str:
    """The same as one entry of a log: further lines are indented, so that none of them can pass for an entry."""
    return plain(text).replace("\n", "\n    ")


def to_json(value: Any) -> str:
    """One line of JSON, safe to show; what JSON has no form for is shown as text."""
    import msgspec

    from headrace.model.codec import for_json

    try:
        return msgspec.json.encode(for_json(value, str)).decode().translate(_IN_JSON)
    except RecursionError:
        return '"nested too deeply to be shown"'
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        # Keys that JSON cannot have, or texts with lone surrogates.
        return msgspec.json.encode(ascii(value)).decode()


def print_to_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """What a stream keeps, and all that is still written to it, goes nowhere: it has no reader, or there is no room."""
    with suppress(OSError):  # it has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


class Output:
    """One command's way to speak, in JSON or for people. ``redactor`` hides values by name in all of stdout."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.redactor: Redactor | None = None
        for stream in (sys.stdout, sys.stderr):
            # A terminal of another encoding must not turn a job's name into a crash.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def line(self, text: object) -> None:
        print(self._shown(text))

    def remark(self, text: object) -> None:
        if not self.json:
            print_to_stderr(plain(text))

    def fault(self, text: str, kind: str, code: int) -> None:
        facts = {"error": text, "type": kind, "exit": code}
        print_to_stderr(to_json(facts) if self.json else f"headrace: {plain(text)}")

    def document(self, value: Any) -> None:
        print(to_json(value if self.redactor is None else self.redactor.value(value)))

    def documents(self, values: Iterable[Any], following: str | None = None) -> bool:
        """Print a JSON document a line, and one with the cursor of the next page if there is one; False: for people."""
        if self.json:
            for value in values:
                self.document(value)
            if following:
                self.document({"next": following})
        return self.json

    def listing(
        self, documents: Iterable[Any], columns: Sequence[str], rows: Sequence[Sequence[object]], *,
        keep: Sequence[str] = (), spare: str = "", empty: str = "", note: str = "", following: str | None = None,
    ) -> None:  # fmt: skip
        """Print a page of a list as documents or as a table, then a remark: ``note``, or ``empty`` for no rows."""
        if self.documents(documents, following):
            return
        self.table(columns, rows, keep=keep, spare=spare)
        if remark := note if rows else empty:
            self.remark(remark)
        if following:
            self.remark(f"more: --after {shlex.quote(following)}")

    def details(self, document: Any, facts: Iterable[tuple[str, object]]) -> None:
        if self.json:
            self.document(document)
        else:
            self.facts(facts)

    def _shown(self, text: object) -> str:
        return plain(text if self.redactor is None else self.redactor.text(str(text)))

    def done(self, text: str, facts: dict[str, Any]) -> None:
        if self.json:
            self.document(facts)
        else:
            self.line(text)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, keep: Sequence[str] = (), spare: str = ""
    ) -> None:
        """Print rows. ``columns``: headings; one that starts with ``>`` is aligned to the right. ``keep``: columns that
        are never folded, such as ids, which people copy. ``spare``: a column that is cut to fit, and left out of
        terminals too narrow for it.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        terminal = sys.stdout.isatty()
        roomy = not terminal or self.console().width >= ROOMY
        names = [plain(column.lstrip(">")) for column in columns]
        chosen = [n for n, name in enumerate(names) if roomy or name != spare]
        head = box.SIMPLE_HEAD if terminal else None
        shown = Table(box=head, pad_edge=False, padding=(0, 1 if terminal else 2, 0, 0), header_style="bold")
        for n in chosen:
            justify: Any = "right" if columns[n].startswith(">") else "left"
            cut = names[n] == spare
            # The others are folded, never cut: half a name names nothing.
            shown.add_column(
                names[n], justify=justify, no_wrap=cut or names[n] in keep, overflow="ellipsis" if cut else "fold"
            )
        cells = [[Text(self._shown(row[n]), style=STYLES.get(str(row[n]), "")) for n in chosen] for row in rows]
        for row in cells:
            shown.add_row(*row)
        if terminal and spare in names and roomy:
            # What the others leave: Rich would fold them first to give it more.
            place = names.index(spare)
            widths = [max([len(names[n]), *(row[n].cell_len for row in cells)]) for n in chosen if n != place]
            shown.columns[place].max_width = max(len(spare), self.console().width - sum(widths) - 3 * len(chosen))
        self._print(shown)

    def facts(self, rows: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one a line; further lines of a value are indented. None and "" are left out."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows:
            if value is None or value == "":
                continue
            grid.add_row(Text(plain(name)), Text(self._shown(value), style=STYLES.get(str(value), "")))
        self._print(grid)

    def heading(self, text: str) -> None:
        from rich.text import Text

        self.console().print(Text(f"\n{plain(text)}", style="bold"))

    def _print(self, table: Table) -> None:
        console = self.console()
        with console.capture() as capture:
            console.print(table)
        # Cells are padded to their column's width, the last one too: blanks that do not belong in a file.
        print("\n".join(line.rstrip() for line in capture.get().splitlines()))

    def console(self, stream: TextIO | None = None) -> Console:
        from rich.console import Console

        file = stream or sys.stdout
        console = Console(file=file, highlight=False, markup=False, emoji=False)
        # A narrow terminal wraps lines better than a column of single letters reads; a pipe takes them whole.
        console.width = max(console.width, NARROW) if file.isatty() else 100_000
        return console


_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


def _bad(text: str) -> Exception:
    # Not at the top: a worker's image has nothing of the command line's parser.
    import typer

    return typer.BadParameter(text)


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``1.5h`` or ``250ms``."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise _bad(f"{text!r} is not a duration: write seconds, or a number with ms, s, m, h or d, such as 5m")
    return float(found[1]) * _UNITS[found[2]]


def parse_moment(text: str) -> datetime:
    """A time of ``2026-11-21T22:36:00Z`` (local, where no zone is given), or one that is ``2h`` or ``2h ago``."""
    ago = text.strip().removesuffix(" ago")
    try:
        if _DURATION.fullmatch(ago) is not None:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(ago))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise _bad(
            f"{text!r:.80} is not a time: write one such as 2026-11-21T22:36, or how long ago, such as 2h"
        ) from None


def parse_size(text: str) -> int:
    """Bytes of ``512M``, ``1.5GiB`` or ``4096``; the units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " ") if found else math.inf
    if math.isinf(size):
        raise _bad(f"{text!r:.80} is not a size: write bytes, or a number with K, M or G, such as 512M")
    return int(size)


def span(seconds: float) -> str:
    """A duration in at most six characters or so: ``0.4s``, ``12s``, ``3m``, ``5h``, ``2d``."""
    seconds = max(0.0, seconds)
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, size, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds < size * most:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def percent(share: float) -> str:
    return f"{shown_share(share):.0%}"


def several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def moment(microseconds: int, now: float) -> str:
    at = local(microseconds)
    return at if at == "-" else f"{at} ({distance(microseconds, now)})"


def local(microseconds: int) -> str:
    at = utc(microseconds)
    # The last hours of the year 9999 have no local time.
    with contextlib.suppress(OverflowError):
        at = at and at.astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S %Z}" if at else "-"


def distance(microseconds: int, now: float) -> str:
    """How far a time of the store is from ``now`` (seconds since 1970): ``3m ago`` or ``in 3m``."""
    if utc(microseconds) is None:
        return "-"
    away = now - microseconds / 1e6
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"


PATIENCE = 1.0  # seconds after which a person who waits wants to see something move


@contextmanager
def bar_of(output: Output, total: int | None, passing: str = "") -> Generator[Callable[[int], None]]:
    """A bar, on a terminal at once. Call what it gives with how many are done. ``total``: None: not known. ``passing``:
    what is counted; then the bar tells the time that is over, not the one that is left, and goes at the end.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    tail: tuple[Any, ...] = (TextColumn(passing), TimeElapsedColumn()) if passing else (TimeRemainingColumn(),)
    columns = (BarColumn(), MofNCompleteColumn(), *tail)
    console = output.console(sys.stderr)
    with Progress(*columns, console=console, transient=bool(passing), disable=_hidden(output)) as progress:
        bar = progress.add_task("", total=total)
        yield lambda done: progress.update(bar, completed=done)


@contextmanager
def late_bar(output: Output, total: int | None = None, noun: str = "jobs") -> Generator[Callable[[int], None]]:
    """The same for what is mostly quick: a terminal shows it from its second second on."""
    begins = time.monotonic() + PATIENCE
    shown: list[Callable[[int], None]] = []
    with ExitStack() as until_the_end:

        def tell(done: int) -> None:
            if not shown and time.monotonic() >= begins and not _hidden(output):
                shown.append(until_the_end.enter_context(bar_of(output, total, noun)))
            for show in shown:
                show(done)

        yield tell


def _hidden(output: Output) -> bool:
    return output.json or not sys.stderr.isatty()


def number(value: float) -> str:
    """A number for people, in few characters: ``1,234``, ``1.2M``, ``0.034``."""
    size = abs(value)
    for unit, factor in (("G", 1e9), ("M", 1e6)):
        if size >= factor:
            return f"{value / factor:.1f}{unit}"
    if value == int(value) or size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"
