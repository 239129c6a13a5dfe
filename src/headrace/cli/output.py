"""Everything that commands print: text, tables and JSON on stdout, remarks and errors on stderr.

What users wrote (names, errors, log lines) is never read as markup, and never reaches the terminal with control
characters in it. Tables adapt to the terminal; into a pipe they go whole, one line a row, without colours.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

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
    """The same in one line."""
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


def aside(text: str) -> None:
    """Print to stderr: where nobody can read that, the command goes on as ever."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """What a stream keeps, and all that is still written to it, goes nowhere: nobody reads it, or there is no room."""
    with suppress(OSError):  # it has no descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


class Output:
    """One command's way to speak.

    Attributes:
        json: print JSON instead of text and tables.
        redactor: hides values by their names, in all that is printed to stdout; None: nothing is hidden.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.redactor: Redactor | None = None
        for stream in (sys.stdout, sys.stderr):
            # A terminal of another encoding must not turn a job's name into a crash.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")

    def line(self, text: object) -> None:
        """Print text, as it is but for control characters."""
        print(self._shown(text))

    def remark(self, text: object) -> None:
        """Tell people something beside the result; programs do not see it."""
        if not self.json:
            aside(plain(text))

    def fault(self, text: str, kind: str, code: int) -> None:
        """Say on stderr what went wrong; as JSON with the name of the error's class and the exit code."""
        facts = {"error": text, "type": kind, "exit": code}
        aside(to_json(facts) if self.json else f"headrace: {plain(text)}")

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

    def _shown(self, text: object) -> str:
        return plain(text if self.redactor is None else self.redactor.text(str(text)))

    def done(self, text: str, facts: dict[str, Any]) -> None:
        """Print what was done: a sentence, or its facts as JSON."""
        if self.json:
            self.document(facts)
        else:
            self.line(text)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, keep: Sequence[str] = (), spare: str = ""
    ) -> None:
        """Print rows.

        Args:
            columns: headings; one that starts with ``>`` is aligned to the right.
            keep: columns that are never folded, such as ids, which people copy.
            spare: a column that is cut to fit, and left out of terminals too narrow for it.
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

    def left(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int | None:
        """How many characters a terminal leaves for one more column of a table; None: a pipe takes any line."""
        from rich.cells import cell_len

        if not sys.stdout.isatty():
            return None
        cells = [
            [plain(column.lstrip(">")) for column in columns],
            *([self._shown(cell) for cell in row] for row in rows),
        ]
        widths = [max(cell_len(row[n]) for row in cells) for n in range(len(columns))]
        return max(0, self.console().width - sum(widths) - 3 * (len(columns) + 1))

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
        """Print a title in a document for people."""
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
