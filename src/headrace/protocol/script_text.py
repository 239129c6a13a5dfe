"""The text of a Lua script: its file and those that it includes, put together as the server gets them.

What most calls of a script do not need costs these nothing: functions that it does not use are left out, and what only
includes of one lazy function need is made inside that one.

Functions of included files: which a script uses, and which only one lazy function of it needs.

Each function that a script makes costs every call about a microsecond on a server that was idle, and a file that many
scripts include has functions for each of them. Looks at words only: what it takes for unused is certainly unused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from headrace.protocol.script_header import Header, HeaderError, Many, merge, parse_header, removable

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


_SCRIPTS = Path(__file__).parent.parent / "scripts"
_LOADER: Any = __spec__.loader
_REMOVALS = {"zset": "ZREM", "set": "SREM", "hash": "HDEL"}
_UNPACK = {"text": "{}", "int": "tonumber({})", "packed": "{0} == '' and {{}} or cmsgpack.unpack({0})"}


def assemble(name: str) -> tuple[Header, list[Row]]:
    """The header, includes merged in, and the text of ``scripts/<name>.lua``."""
    own = parse_header(_source(name))
    parts = included(own.includes)
    header = merge(own, list(parts.values()))
    order = _grouped(parts)
    rows, words = _by_place(name, order, parts, header)
    prelude, lazy = _bound(header, words)
    text: list[Row] = [(prelude, (name, 1))]
    for part in order:
        word = parts[part].lazy
        if not word:
            text += rows[part]
        elif word in rows:
            group = {one: parts[one] for one in order if parts[one].lazy == word}
            text += _inside(word, _gives(word, group, words), [*group], rows.pop(word), lazy[word])
    body = _committed(name, header, parts, rows[""]) if header.commits else rows[""]
    return header, text + body


def included(names: tuple[str, ...]) -> dict[str, Header]:
    """The files to include with their headers, theirs before themselves, each once."""
    found: dict[str, Header] = {}

    def add(name: str) -> None:
        if name in found:
            return
        header = parse_header(_source(name))
        for inner in header.includes:
            add(inner)
        found[name] = header

    for name in names:
        add(name)
    return found


@cache  # a file is in many scripts
def _source(name: str) -> str:
    # By what loaded this module: a package in a zip file has no files.
    text: bytes = _LOADER.get_data(str(_SCRIPTS / f"{name}.lua"))
    return text.decode()


def _grouped(parts: Mapping[str, Header]) -> list[str]:
    """The includes, each after those that it includes; those of one lazy function together.

    Raises:
        HeaderError: a file includes one of a lazy function, of which another includes it.
    """
    unit = {part: header.lazy or part for part, header in parts.items()}
    found: list[str] = []

    def place(name: str, within: tuple[str, ...]) -> None:
        members = [part for part in parts if unit[part] == name]
        if members[0] in found:
            return
        if name in within:
            raise HeaderError(f"includes go round in a circle: {' -> '.join((*within, name))}")
        for part in members:
            for inner in parts[part].includes:
                if unit[inner] != name:
                    place(unit[inner], (*within, name))
        found.extend(members)

    for part in parts:
        place(unit[part], ())
    return found


def _by_place(
    name: str, order: Sequence[str], parts: Mapping[str, Header], header: Header
) -> tuple[dict[str, list[Row]], dict[str, set[str]]]:
    """The lines by the file or the lazy function that they are in, those of the script itself by an empty name.

    Unused lines and those that hold comments only are empty, so that all keep their numbers.

    Returns:
        the lines; the words in the code of each lazy function, those of all other code by an empty name.
    """
    codes = {part: code_of(part, _source(part)) for part in (*order, name)}
    used = used_functions(codes, header.steps)
    moved = lazy_functions(codes, used, {part: parts[part].lazy for part in order}, header.steps)
    rows: dict[str, list[Row]] = {}
    words = {part.lazy: set[str]() for part in parts.values()} | {"": {header.removes}}
    for part, code in codes.items():
        lazy = "" if part == name else parts[part].lazy
        lines = [*code.rows]
        words[lazy] |= code.words
        for function in code.functions:
            spot, span = function.spot, slice(function.lines.start, function.lines.stop)
            if spot in used:
                words[moved.get(spot, lazy)] |= function.words
            if spot in moved:
                rows.setdefault(moved[spot], []).extend(lines[span])
            if spot in moved or spot not in used:
                lines[span] = [("", place) for _, place in lines[span]]
        rows.setdefault("" if part == name else lazy or part, []).extend(lines)
    return rows, words


def _gives(word: str, group: Mapping[str, Header], words: Mapping[str, set[str]]) -> list[str]:
    """The functions that a lazy function gives: its steps, and those that other code of this script names."""
    others = [names for home, names in words.items() if home != word]
    return [
        name
        for part in group.values()
        for name in (*(given for given in part.gives if any(given in names for names in others)), *part.steps)
    ]


def _bound(header: Header, own: Mapping[str, set[str]]) -> tuple[str, dict[str, str]]:
    """Lua that comes before the first file, and that with which each lazy function begins.

    What none but lazy functions name is bound inside these, so that other calls do not pay for it.
    """
    sent = header.sent
    lua = {f"local {key.name} = KEYS[{n}]": key.name for n, key in enumerate(sent, 1)}
    derived = (*(key for key in header.keys if key not in sent), *header.derives, *header.channels)
    lua |= {f"local {key.name} = prefix .. '{key.constant}'": key.name for key in derived}
    lua |= {_in_pieces(many): many.name for many in header.many}
    names = {code: {home for home, words in own.items() if name in words} for code, name in lua.items()}
    first = [*_bindings(header), *(code for code, homes in names.items() if "" in homes or not homes)]
    if header.removes:
        key = removable(header)
        first.append(f"redis.call('{_REMOVALS[key.type]}', {key.name}, '')")
    lazy = {
        word: [code for code, homes in names.items() if word in homes and "" not in homes] for word in own.keys() - {""}
    }
    shared: list[str] = []
    for part in (part for part in header.batch if part.empty != "nil"):
        homes = [home for home, words in own.items() if part.name in words]
        if len(homes) == 1 and homes[0]:
            lazy[homes[0]].append(f"batch.{part.name} = {part.empty}")
        else:
            shared.append(f"{part.name} = {part.empty}")
    if header.batch or lazy:
        first.append(f"local batch = {{{', '.join(shared)}}}")
    return " ".join(first), {word: " ".join(codes) for word, codes in lazy.items()}


def _bindings(header: Header) -> list[str]:
    """Lua that names every argument."""
    parts = ["local prefix = ARGV[1]"]
    first = 2
    if header.clock:
        parts.append("local now = tonumber(ARGV[2])")
        parts.append("if now <= 0 then local t = redis.call('TIME') now = t[1] * 1000000 + t[2] - now end")
        first = 3
    return parts + [
        f"local {arg.name} = {_UNPACK[arg.kind].format(f'ARGV[{n}]')}" for n, arg in enumerate(header.args, first)
    ]


def _in_pieces(many: Many) -> str:
    """Lua that sends a list of any length, since no call takes more values than Lua can unpack."""
    key = "" if many.command in ("UNLINK", "MSET") else "key, "
    option = f"'{many.option}', " if many.option else ""
    piece = "unpack(list, n, math.min(n + 999, #list))"
    return (
        f"local function {many.name}({key}list) "
        f"for n = 1, #list, 1000 do redis.call('{many.command}', {key}{option}{piece}) end end"
    )


def _inside(word: str, given: Sequence[str], group: Sequence[str], rows: Sequence[Row], own: str) -> list[Row]:
    """The rows of a lazy function, with what it binds by itself."""
    first, *_, last = [*group, *group]
    gives = ", ".join(f"{name} = {name}" for name in given)
    opening = f"local function {word}() if batch.{word} then return batch.{word} end {own}".rstrip()
    closing = f"batch.{word} = {{{gives}}} return batch.{word} end"
    return [(opening, (first, 1)), *rows, (closing, (last, rows[-1][1][1]))]


def _committed(name: str, header: Header, parts: Mapping[str, Header], body: Sequence[Row]) -> list[Row]:
    """The script itself with the steps behind it: a function, unless it is a single line."""
    end = f"{_steps(header, parts)} if type(reply) == 'function' then return reply() end return reply"
    *head, (last, place) = body
    if last.startswith("return ") and not any(line for line, _ in head):
        return [*head, (f"local reply = {last.removeprefix('return ')} {end}", place)]
    return [("local function body()", (name, 1)), *body[1:], (f"end local reply = body() {end}", place)]


def _steps(header: Header, parts: Mapping[str, Header]) -> str:
    """Lua that runs the steps; those of a lazy function only where that was asked for."""
    lazy = {step: part.lazy for part in parts.values() for step in part.steps}
    lua: list[str] = []
    for word, steps in groupby(header.steps, lazy.get):
        calls = " ".join(f"batch.{word}.{step}()" if word else f"{step}()" for step in steps)
        lua.append(f"if batch.{word} then {calls} end" if word else calls)
    return " ".join(lua)
