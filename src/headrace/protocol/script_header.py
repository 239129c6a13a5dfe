"""Lua scripts from files to the text that a server gets: headers, functions and assembly.

1. :func:`parse_header`: the grammar of headers, the comment lines that open a file.
2. :func:`used_functions` and :func:`lazy_functions`: which functions of included files a script uses, and which
   only one lazy function of it needs.
3. :func:`assemble`: the text of a script: its file and its includes.

A header is executable, so that Lua and Python cannot disagree::

    -- Settle: record how starts ended.                    title; the loader's bindings count as its line
    -- include finish journal                              functions and declarations of other files, arguments too
    -- keys    scheduled job about=owner claims:<owner>    of the table in ``keys.py``: local scheduled = the key, local
                                                           job = its constant part, to which bodies append the id;
                                                           about: a name of this file's own; local claims = the key,
                                                           <owner> filled from the argument. Channels as well
    -- arg     owner   text    who settles                 text, int or packed (a list: MessagePack, unpacked; an empty
                                                           one is sent as an empty text). What fills a key, or names
                                                           the shard, is a text that needs no line
    -- removes first claims                                before all else, nothing is removed from that key: once a
                                                           script has removed, a server whose memory is full lets it
                                                           write on
    -- batch   gone    {}      keys that are removed       in an include: batch.gone, which the script collects in
    -- step    store_ends                                  in an include: the function that stores its part of the
                                                           batch; the loader runs them when the body has returned
    -- lazy    limiting lanes gates                        in an include: limiting().lanes and limiting().gates. All
                                                           includes with this word are in one function, which runs
                                                           when it is first called: most calls need none of them.
                                                           Functions of other files that only these need join them.
                                                           It gives what other code of the script names
    -- route   home                                        of several shards, the one that is called: ``home``, ``of
                                                           id`` (that of the argument), ``each ids`` (those of a list),
                                                           ``all``, or ``desk`` (that of the caller). A file without
                                                           this line is included by others, and never runs alone
    -- return  ...                                         words for people

Code that names ``now`` has the microseconds of the server's clock, or as told. Code that names ``zadd_all`` has
``zadd_all(key, list)``, which sends the command in pieces of 1000 values, ``zadd_gt_all`` with that option; so for the
commands in ``_MANY``. The body of a script with steps may return a function. It is called after the steps, and makes
the reply from what is stored then.
The steps run from the last include to the first: a step may add to the parts of the files that its own file includes.
Each step leaves its part of the batch empty, so that a script may also call one in between.

Each function that a script makes costs every call about a microsecond on a server that was idle, and a file that many
scripts include has functions for each of them. So functions that a script does not use are left out, and functions that
only one lazy function needs are made inside it. The search reads words only: a function that it takes for unused is
certainly unused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from headrace.protocol.keys import CHANNELS, documented

Kind = Literal["text", "int", "packed"]

_WORDS = ("arg", "keys", "include", "removes", "batch", "step", "lazy", "route")
_HOLE = re.compile(r"<(\w+)>")


class HeaderError(Exception):
    """A script's header cannot be read: a fault of this package, found by its tests."""


class Key(msgspec.Struct, frozen=True):
    """A key that a script touches: ``pattern`` may hold ``<argument>`` (sent) or ``<anything>`` (derived)."""

    name: str
    type: str
    pattern: str

    @property
    def constant(self) -> str:
        return self.pattern.split("<")[0]

    @property
    def hole(self) -> str:
        found = _HOLE.search(self.pattern)
        return found[1] if found else ""


class Argument(msgspec.Struct, frozen=True):
    name: str
    kind: Kind


class Part(msgspec.Struct, frozen=True):
    name: str
    empty: str


class Header(msgspec.Struct, frozen=True):
    """What one file declares or, merged, what a script and its includes do.

    Attributes:
        keys: sent, since an argument fills them. derives: made of the prefix: a key that is sent costs every call.
            Of whole scripts those that the code names, as channels and batch.
        clock: its code names ``now``; known of whole scripts only.
        removes: name of the key from which nothing is removed first; empty: no such removal.
        steps: functions that store the batch, in their order.
        route: the shard that is called; empty in includes.
        lazy, gives: the function that has this include inside, and what of it that function gives.
    """

    title: str
    keys: tuple[Key, ...] = ()
    derives: tuple[Key, ...] = ()
    channels: tuple[Key, ...] = ()
    args: tuple[Argument, ...] = ()
    includes: tuple[str, ...] = ()
    clock: bool = False
    removes: str = ""
    batch: tuple[Part, ...] = ()
    steps: tuple[str, ...] = ()
    lazy: str = ""
    gives: tuple[str, ...] = ()
    route: str = ""

    @property
    def sent(self) -> tuple[Key, ...]:
        """The keys that a call sends: those with an argument, or one, by which a cluster finds the server."""
        return self.keys or tuple(key for key in self.derives if not key.hole)[:1]


@cache  # a file is in many scripts
def parse_header(text: str) -> Header:
    lines = text.splitlines()
    if not lines or not lines[0].startswith("-- "):
        raise HeaderError("a script opens with a title line: -- Title: what changes for a job")
    found: dict[str, list[Any]] = {"keys": [], "removes": [""], "lazy": [""], "route": [""]}
    for line in lines[1:]:
        if not line.startswith("--"):
            break
        words = line[2:].split()
        field, rows = _parsed(words)
        if field in ("removes", "lazy", "route"):
            found[field] = rows
        elif field:
            found.setdefault(field, []).extend(rows)
        elif words and words[0] in _WORDS:
            raise HeaderError(f"cannot read the header line {line!r}")
    keys = found.pop("keys")
    found["keys"] = [_documented(word) for word in keys if "<" in word]
    derives = [_documented(word) for word in keys if "<" not in word]
    found["derives"] = [key for key in derives if key.type != "channel"]
    found["channels"] = [key for key in derives if key.type == "channel"]
    (removes,), (route,), (lazy, *gives) = (found.pop(field) for field in ("removes", "route", "lazy"))
    rest: dict[str, Any] = {field: tuple(rows) for field, rows in found.items()}
    return Header(lines[0][3:], removes=removes, route=route, lazy=lazy, gives=tuple(gives), **rest)


def _parsed(words: list[str]) -> tuple[str, list[Any]]:  # noqa: PLR0911 - a line of the grammar each
    match words:
        case ["include", *names] if names:
            return "includes", names
        case ["step", name]:
            return "steps", [name]
        case ["keys", *names] if names:
            return "keys", names
        case ["arg", name, ("text" | "int" | "packed") as kind, *_]:
            return "args", [Argument(name, kind)]
        case ["removes", "first", name, *_]:
            return "removes", [name]
        case ["route", "home" | "all" | "desk"] | ["route", "of" | "each", _]:
            return "route", [" ".join(words[1:])]
        case ["lazy", *names] if names:
            return "lazy", names
        case ["batch", name, empty, *_]:
            return "batch", [Part(name, empty)]
        case _:
            return "", []


def _documented(word: str) -> Key:
    name, _, own = word.rpartition("=")
    for pattern, kind in (*documented().items(), *CHANNELS.items()):
        if own in (pattern, pattern.partition(":")[0]):
            return Key(name or pattern.partition(":")[0], kind, pattern)
    if name and own.startswith("<"):
        return Key(name, "any", own)
    raise HeaderError(f"no key {own!r} is documented in keys.py")


N = TypeVar("N", Key, Part, Argument)


def merge(header: Header, includes: list[Header]) -> Header:
    """A script's header with what its includes declare, which are in the order of their text."""
    parts = [header, *includes]
    merged = Header(
        header.title, _union([part.keys for part in parts]), _union([part.derives for part in parts]),
        _union([part.channels for part in parts]), _union([part.args for part in parts]), header.includes, False,
        header.removes, _union([part.batch for part in parts]),
        tuple(step for part in reversed(parts) for step in part.steps), route=header.route,
    )  # fmt: skip
    of = [header.route.removeprefix("of ")] if header.route.startswith("of ") else []
    texts = tuple(Argument(name, "text") for name in (*of, *(key.hole for key in merged.keys)))
    merged = msgspec.structs.replace(merged, args=_union([merged.args, texts]))
    if merged.removes and removable(merged).type not in ("zset", "set", "hash"):
        raise HeaderError(f"{header.title!r}: nothing can be removed from {merged.removes}")
    return merged


def removable(header: Header) -> Key:
    for key in (*header.keys, *header.derives):
        if key.name == header.removes:
            return key
    raise HeaderError(f"{header.title!r} removes first from {header.removes}, which is not a declared key")


def _union(groups: list[tuple[N, ...]]) -> tuple[N, ...]:
    return tuple({one.name: one for group in groups for one in group}.values())


_OPENING = re.compile(r"local function (\w+)")
_TEXT = re.compile(r"'[^'\n]*'")
# Each byte as it is where names have it, else as a space.
_GAPS = bytes(byte if chr(byte).isalnum() or byte == ord("_") else ord(" ") for byte in range(128)) + b" " * 128

Row = tuple[str, tuple[str, int]]
"""A line of the text, and the file and line that it was made of."""
Spot = tuple[str, int]
"""A function: its file, and its first line from 0."""


class Function(NamedTuple):
    """A function at the top level of a file, known by its file and line.

    Attributes:
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
        rows: its lines without spaces around them; those of comments are empty, so that all keep their numbers.
        names, words: as those of a function, of what is in none.
    """

    rows: tuple[Row, ...]
    functions: tuple[Function, ...]
    names: frozenset[str]
    words: frozenset[str]


@cache  # a file is in many scripts
def code_of(file: str, text: str) -> Code:
    lines = ["" if line.lstrip().startswith("--") else line for line in text.splitlines()]
    functions = tuple(
        Function(name, (file, own.start), own, *_names(lines[n] for n in own)) for name, own in _functions(lines)
    )
    inside = {n for function in functions for n in function.lines}
    outside = _names(line for n, line in enumerate(lines) if n not in inside)
    return Code(tuple((line.strip(), (file, n)) for n, line in enumerate(lines, 1)), functions, *outside)


def used_functions(codes: Mapping[str, Code], roots: Collection[str]) -> set[Spot]:
    """The functions that a call may need; ``roots`` are names that are used whatever the files say."""
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
    """The functions that only one lazy function needs, with its name; ``lazy``: which one an included file is in."""
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
    for n, line in enumerate(lines):
        if opening := _OPENING.match(line):
            last = n if line.rstrip().endswith(" end") else next(m for m in range(n, len(lines)) if lines[m] == "end")
            yield opening[1], range(n, last + 1)


def _names(lines: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    code = "\n".join(lines)
    return _split(code), _split(_TEXT.sub("", code))


def _split(code: str) -> frozenset[str]:
    return frozenset(code.encode().translate(_GAPS).decode().split())


_SCRIPTS = Path(__file__).parent.parent / "scripts"
_LOADER: Any = __spec__.loader
_MANY = ("hset_all", "mset_all", "rpush_all", "srem_all", "unlink_all", "zadd_all", "zadd_gt_all", "zrem_all")
_REMOVALS = {"zset": "ZREM", "set": "SREM", "hash": "HDEL"}
_UNPACK = {"text": "{}", "int": "tonumber({})", "packed": "{0} == '' and {{}} or cmsgpack.unpack({0})"}


def assemble(name: str) -> tuple[Header, list[Row]]:
    own = parse_header(_source(name))
    parts = included(own.includes)
    header = merge(own, list(parts.values()))
    order = _grouped(parts)
    rows, words = _by_place(name, order, parts, header)
    named = frozenset[str]().union(*words.values())
    header = msgspec.structs.replace(
        header, clock="now" in named, derives=tuple(key for key in header.derives if key.name in named),
        channels=tuple(key for key in header.channels if key.name in named),
        batch=tuple(part for part in header.batch if part.name in named),
    )  # fmt: skip
    prelude, lazy = _bound(header, words)
    text: list[Row] = [(prelude, (name, 1))]
    for part in order:
        word = parts[part].lazy
        if not word:
            text += rows[part]
        elif word in rows:
            group = {one: parts[one] for one in order if parts[one].lazy == word}
            text += _inside(word, _gives(word, group, words), [*group], rows.pop(word), lazy[word])
    body = _committed(name, header, parts, rows[""]) if header.steps else rows[""]
    return header, text + body


def included(names: tuple[str, ...]) -> dict[str, Header]:
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
    """The includes, each after those that it includes; those of one lazy function together."""
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
    """The lines by file or lazy function (the script's own: empty) and the words in them; unused lines are empty."""
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
    others = [names for home, names in words.items() if home != word]
    return [
        name
        for part in group.values()
        for name in (*(given for given in part.gives if any(given in names for names in others)), *part.steps)
    ]


def _bound(header: Header, own: Mapping[str, set[str]]) -> tuple[str, dict[str, str]]:
    """Lua before the first file, and with what each lazy function begins: what only these name is bound inside."""
    sent = header.sent
    lua = {f"local {key.name} = KEYS[{n}]": key.name for n, key in enumerate(sent, 1)}
    derived = (*(key for key in header.derives if key not in sent), *header.channels)
    lua |= {f"local {key.name} = prefix .. '{key.constant}'": key.name for key in derived}
    lua |= {_in_pieces(name): name for name in _MANY}
    names = {code: {home for home, words in own.items() if name in words} for code, name in lua.items()}
    first = [*_bindings(header), *(code for code, homes in names.items() if "" in homes)]
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
    parts = ["local prefix = ARGV[1]"]
    first = 2
    if header.clock:
        parts.append("local now = tonumber(ARGV[2])")
        parts.append("if now <= 0 then local t = redis.call('TIME') now = t[1] * 1000000 + t[2] - now end")
        first = 3
    return parts + [
        f"local {arg.name} = {_UNPACK[arg.kind].format(f'ARGV[{n}]')}" for n, arg in enumerate(header.args, first)
    ]


def _in_pieces(name: str) -> str:
    """Lua that sends a list of any length, since no call takes more values than Lua can unpack."""
    command, *option = name.upper().split("_")[:-1]
    key = "" if command in ("UNLINK", "MSET") else "key, "
    given = "".join(f"'{word}', " for word in option)
    piece = "unpack(list, n, math.min(n + 999, #list))"
    return (
        f"local function {name}({key}list) "
        f"for n = 1, #list, 1000 do redis.call('{command}', {key}{given}{piece}) end end"
    )


def _inside(word: str, given: Sequence[str], group: Sequence[str], rows: Sequence[Row], own: str) -> list[Row]:
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
    lazy = {step: part.lazy for part in parts.values() for step in part.steps}
    lua: list[str] = []
    for word, steps in groupby(header.steps, lazy.get):
        calls = " ".join(f"batch.{word}.{step}()" if word else f"{step}()" for step in steps)
        lua.append(f"if batch.{word} then {calls} end" if word else calls)
    return " ".join(lua)
