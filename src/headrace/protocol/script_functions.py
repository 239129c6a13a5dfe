"""Functions of included files: which a script uses, and which only one lazy function of it needs.

Each function that a script makes costs every call about a microsecond on a server that was idle, and a file that many
scripts include has functions for each of them. Looks at words only: what it takes for unused is certainly unused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_OPENING = re.compile(r"local function (\w+)")
# Each byte as it is where names have it, else as a space.
_GAPS = bytes(byte if chr(byte).isalnum() or byte == ord("_") else ord(" ") for byte in range(128)) + b" " * 128


def used_lines(texts: Mapping[str, Sequence[str]], roots: Collection[str]) -> dict[str, list[str]]:
    """The lines of each file; those of functions that no call needs, and of comments, are empty.

    Args:
        texts: the lines of each file, the script itself included.
        roots: names that are used whatever the files say.
    """
    code = {file: ["" if line.lstrip().startswith("--") else line for line in text] for file, text in texts.items()}
    functions = [(file, *found) for file, text in code.items() for found in _functions(text)]
    inside = {(file, n) for file, _, lines in functions for n in lines}
    used = set(roots)
    for file, text in code.items():
        used |= names_in(line for n, line in enumerate(text) if (file, n) not in inside)
    grown = True
    while grown:
        grown = False
        for file, name, lines in list(functions):
            if name in used:
                functions.remove((file, name, lines))
                used |= names_in(code[file][n] for n in lines)
                grown = True
    for file, _, lines in functions:
        code[file][lines.start : lines.stop] = [""] * len(lines)
    return code


def lazy_lines(
    texts: Mapping[str, Sequence[str]], lazy: Mapping[str, str], roots: Collection[str]
) -> dict[tuple[str, int], str]:
    """The lines, by file and from 0, of functions that only one lazy function needs, with its name.

    Args:
        texts: the lines of each file in the order of the script, which comes last.
        lazy: the lazy function that an included file is in; empty for others.
        roots: names that are used whatever the files say.
    """
    needed: dict[str, set[str]] = {name: {""} for name in roots}
    found: dict[tuple[str, int], str] = {}

    def note(names: set[str], by: set[str]) -> None:
        for one in names:
            needed.setdefault(one, set()).update(by)

    # From the end: a function is used behind its own lines only.
    for file, lines in reversed(list(texts.items())):
        functions = [] if lazy.get(file, "script") else list(_functions(lines))
        inside = {n for _, own in functions for n in own}
        note(names_in(line for n, line in enumerate(lines) if n not in inside), {lazy.get(file, "")})
        for name, own in reversed(functions):
            users = needed.get(name, {""})
            note(names_in(lines[n] for n in own) - {name}, set(users))
            if users != {""} and len(users) == 1:
                found |= dict.fromkeys(((file, n) for n in own), *users)
    return found


def _functions(lines: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Each function at the top level of a file: its name and its lines."""
    for n, line in enumerate(lines):
        if opening := _OPENING.match(line):
            last = n if line.rstrip().endswith(" end") else next(m for m in range(n, len(lines)) if lines[m] == "end")
            yield opening[1], range(n, last + 1)


def names_in(lines: Iterable[str]) -> set[str]:
    """The names and numbers in code. No regular expression, which takes three times as long: a dispatcher that starts
    looks at 18,000 lines.
    """
    return set("\n".join(lines).encode().translate(_GAPS).decode().split())
