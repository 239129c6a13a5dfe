"""Everything that commands print: text, tables and JSON on stdout, remarks and errors on stderr.

What users wrote (names, errors, log lines) is never read as markup, and never reaches the terminal with control
characters in it. Tables adapt to the terminal; into a pipe they go whole, one line a row, without colours.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

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
    """Text that a terminal shows and does not obey."""
    return str(text).translate(_CONTROL)


def to_json(value: Any) -> str:
    """One line of JSON; what JSON has no form for is shown as text."""
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        # Keys that JSON cannot have, or texts with lone surrogates.
        return msgspec.json.encode(ascii(value)).decode()


class Output:
    """One command's way to speak.

    Attributes:
        json: print JSON instead of text and tables.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        for stream in (sys.stdout, sys.stderr):
            # A terminal of another encoding must not turn a job's name into a crash.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def line(self, text: object) -> None:
        """Print text, as it is but for control characters."""
        print(plain(text))

    def remark(self, text: object) -> None:
        """Tell people something beside the result; programs do not see it."""
        if not self.json:
            print(plain(text), file=sys.stderr)

    def fault(self, text: str, kind: str, code: int) -> None:
        """Say on stderr what went wrong.

        Args:
            kind: name of the error's class; ``code``: the exit code. Both only in JSON.
        """
        facts = {"error": text, "type": kind, "exit": code}
        print(to_json(facts) if self.json else f"headrace: {plain(text)}", file=sys.stderr)

    def document(self, value: Any) -> None:
        """Print one JSON document."""
        print(to_json(value))

    def done(self, text: str, facts: dict[str, Any]) -> None:
        """Print what was done: a sentence, or its facts as JSON."""
        if self.json:
            self.document(facts)
        else:
            self.line(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, keep: Sequence[str] = ()) -> None:
        """Print rows.

        Args:
            columns: headings; one that starts with ``>`` is aligned to the right.
            keep: columns that are never folded or cut, such as ids that somebody copies.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        console = self.console()
        shown = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
        for column in columns:
            name = column.lstrip(">")
            justify: Any = "right" if column.startswith(">") else "left"
            # Folded, never cut: half a name is nobody's name.
            shown.add_column(name, justify=justify, no_wrap=name in keep, overflow="fold")
        for row in rows:
            shown.add_row(*(Text(plain(cell), style=STYLES.get(str(cell), "")) for cell in row))
        console.print(shown)

    def facts(self, rows: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one a line; further lines of a value are indented."""
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows:
            grid.add_row(Text(name), Text(plain(value), style=STYLES.get(str(value), "")))
        self.console().print(grid)

    def heading(self, text: str) -> None:
        """Print a title in a document for people."""
        from rich.text import Text

        self.console().print(Text(f"\n{plain(text)}", style="bold"))

    def console(self, stream: TextIO | None = None) -> Console:
        """Rich's console for stdout or another stream."""
        from rich.console import Console

        file = stream or sys.stdout
        wide = None if file.isatty() else 100_000
        return Console(file=file, width=wide, highlight=False, markup=False, emoji=False, soft_wrap=False)
