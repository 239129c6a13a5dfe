"""Functions of included files: which a script uses, and which only one lazy function of it needs.

Each function that a script makes costs every call about a microsecond on a server that was idle, and a file that many
scripts include has functions for each of them. Looks at words only: what it takes for unused is certainly unused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

_OPENING = re.compile(r"local function (\w+)")
_TEXT = re.compile(r"'[^'\n]*'")
# Each byte as it is where names have it, else as a space.
_GAPS = bytes(byte if chr(byte).isalnum() or byte == ord("_") else ord(" ") for byte in range(128)) + b" " * 128

Row = tuple[str, tuple[str, int]]
"""A line of the text, and the file and line that it was made of."""
Spot = tuple[str, int]
"""A function: its file, and its first line from 0."""


class Function(NamedTuple):
    """A function at the top level of a file.

    Attributes:
        spot: where it begins, by which it is told from others.
        lines: of the file, from 0.
        names: in its code, those in texts included; ``words``: without these.
    """

    name: str
    spot: Spot
    lines: range
    names: frozenset[str]
    words: frozenset[str]


class Code(NamedTuple):
    """The code of one file.

    Attributes:
        rows: its lines without spaces around them; those that hold comments only are empty, so that all keep their
            numbers.
        functions: at its top level, in their order.
        names, words: as those of a function, of what is in none.
    """

    rows: tuple[Row, ...]
    functions: tuple[Function, ...]
    names: frozenset[str]
    words: frozenset[str]


@cache  # a file is in many scripts
def code_of(file: str, text: str) -> Code:
    """The code of a file."""
    lines = ["" if line.lstrip().startswith("--") else line for line in text.splitlines()]
    functions = tuple(
        Function(name, (file, own.start), own, *_names(lines[n] for n in own)) for name, own in _functions(lines)
    )
    inside = {n for function in functions for n in function.lines}
    outside = _names(line for n, line in enumerate(lines) if n not in inside)
    return Code(tuple((line.strip(), (file, n)) for n, line in enumerate(lines, 1)), functions, *outside)


def used_functions(codes: Mapping[str, Code], roots: Collection[str]) -> set[Spot]:
    """The functions that a call may need.

    Args:
        codes: of each file, the script itself included.
        roots: names that are used whatever the files say.
    """
    names = set(roots).union(*(code.names for code in codes.values()))
    used: set[Spot] = set()
    left = [function for code in codes.values() for function in code.functions]
    while found := [function for function in left if function.name in names]:
        used.update(function.spot for function in found)
        names = names.union(*(function.names for function in found))
        left = [function for function in left if function.spot not in used]
    return used


def lazy_functions(
    codes: Mapping[str, Code], used: Collection[Spot], lazy: Mapping[str, str], roots: Collection[str]
) -> dict[Spot, str]:
    """The functions that only one lazy function needs, with its name.

    Args:
        codes: of each file in the order of the script, which comes last.
        used: those that a call may need.
        lazy: the lazy function that an included file is in; empty for others.
        roots: names that are used whatever the files say.
    """
    needed: dict[str, set[str]] = {name: {""} for name in roots}
    found: dict[Spot, str] = {}
    functions = {function.name for code in codes.values() for function in code.functions}

    def note(names: frozenset[str], by: set[str]) -> None:
        for one in names & functions:
            needed.setdefault(one, set()).update(by)

    # From the end: a function is used behind its own lines only.
    for file, code in reversed(list(codes.items())):
        home = {lazy.get(file, "")}
        note(code.names, home)
        for function in reversed([function for function in code.functions if function.spot in used]):
            if lazy.get(file, "script"):
                note(function.names, home)
                continue
            users = set(needed.get(function.name, {""}))
            note(function.names - {function.name}, users)
            if users != {""} and len(users) == 1:
                (found[function.spot],) = users
    return found


def _functions(lines: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Each function at the top level of a file: its name and its lines."""
    for n, line in enumerate(lines):
        if opening := _OPENING.match(line):
            last = n if line.rstrip().endswith(" end") else next(m for m in range(n, len(lines)) if lines[m] == "end")
            yield opening[1], range(n, last + 1)


def _names(lines: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The names and numbers in code, and those outside its texts."""
    code = "\n".join(lines)
    return _split(code), _split(_TEXT.sub("", code))


def _split(code: str) -> frozenset[str]:
    """No regular expression, which takes three times as long: every worker that starts reads 80 files."""
    return frozenset(code.encode().translate(_GAPS).decode().split())
