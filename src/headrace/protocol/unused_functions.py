"""Functions of included files that a script does not use: the loader leaves them out.

Each function that a script makes costs every call about a microsecond on a server that was idle, and a file that many
scripts include has functions for each of them. Looks at words only, so what it leaves out is certainly unused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

_OPENING = re.compile(r"local function (\w+)")
_WORD = re.compile(r"\w+")


def unused_lines(sources: Mapping[str, str], roots: Collection[str]) -> dict[str, set[int]]:
    """The lines, from 0, that no call needs, of each file.

    Args:
        sources: the text of each file, the script itself included.
        roots: names that are used whatever the files say.
    """
    functions = [(file, *found) for file, text in sources.items() for found in _functions(text.splitlines())]
    inside = {(file, n) for file, _, lines in functions for n in lines}
    used = set(roots)
    for file, text in sources.items():
        used |= _words(line for n, line in enumerate(text.splitlines()) if (file, n) not in inside)
    grown = True
    while grown:
        grown = False
        for file, name, lines in list(functions):
            if name in used:
                functions.remove((file, name, lines))
                used |= _words(sources[file].splitlines()[n] for n in lines)
                grown = True
    unused: dict[str, set[int]] = {file: set() for file in sources}
    for file, _, lines in functions:
        unused[file].update(lines)
    return unused


def _functions(lines: list[str]) -> Iterator[tuple[str, range]]:
    """Each function at the top level of a file: its name and its lines."""
    for n, line in enumerate(lines):
        if opening := _OPENING.match(line):
            last = n if line.rstrip().endswith(" end") else next(m for m in range(n, len(lines)) if lines[m] == "end")
            yield opening[1], range(n, last + 1)


def _words(lines: Iterator[str]) -> set[str]:
    return {word for line in lines if not line.lstrip().startswith("--") for word in _WORD.findall(line)}
