"""Lua scripts as typed values: a header that binds names, a Script per file, a Call per use.

Owns loading and binding only; never talks to a server. ``script_header`` has the grammar of headers.

Bodies never say ``KEYS[`` or ``ARGV[``. :meth:`Script.locate` names the file and line that a server's error means.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

import msgspec

from headrace.protocol.keys import Keys
from headrace.protocol.script_header import Header, Many, merge, parse_header, removable
from headrace.protocol.unused_functions import unused_lines

T = TypeVar("T")

_pack = msgspec.msgpack.Encoder().encode
_DEFINED = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
_LINE = re.compile(r"@?user_script: ?(\d+)")
_REMOVALS = {"zset": "ZREM", "set": "SREM", "hash": "HDEL"}
_SHORT = [bytes([0xA0 | size]) for size in range(32)]
_UNPACK = {"text": "{}", "int": "tonumber({})", "packed": "{0} == '' and {{}} or cmsgpack.unpack({0})"}


def unread(call: Call[Any]) -> Call[Any]:
    """The same call, whose reply is handed on as it came."""
    return Call(call.script, call.keys, call.args, _as_it_came)


def _as_it_came(reply: Any) -> Any:
    return reply


def blob(data: bytes) -> msgspec.Raw:
    """Bytes inside a packed argument, as a MessagePack string: the servers' Lua library knows no binary type."""
    size = len(data)
    if size < 32:
        return msgspec.Raw(_SHORT[size] + data)
    if size < 256:
        return msgspec.Raw(b"\xd9" + size.to_bytes(1, "big") + data)
    if size < 65536:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


class Call(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """One use of one script: what to send, and how to read the reply. Sending it is the store's work.

    Attributes:
        script: the script to run.
        keys, args: what EVALSHA gets, in the header's order.
        parse: the reply as a value.
    """

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], T]

    def ahead(self, offset: int) -> Call[T]:
        """The same call, so many microseconds ahead of the server's clock; one that was given a time keeps that."""
        if not offset or not self.script.header.clock or self.args[1] != 0:
            return self
        return Call(self.script, self.keys, (self.args[0], -offset, *self.args[2:]), self.parse)

    def command(self) -> tuple[str | bytes | int, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


class Script:
    """One Lua file, ready to be bound.

    Attributes:
        name: the file's name without its ending.
        header: what the file declares, includes merged in.
        text: what the server gets.
        sha: its SHA1, by which the server knows it.
        places: file and line that each line of the text was made of.
    """

    __slots__ = ("_encoders", "_patterns", "_prefixed", "header", "name", "places", "sha", "text")

    def __init__(self, name: str, header: Header, text: str, places: tuple[tuple[str, int], ...]) -> None:
        self.name = name
        self.header = header
        self.text = text
        self.places = places
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        # A declared key is a constant, or a constant part and one argument at its end.
        self._patterns = tuple((key.constant, key.hole) for key in header.keys)
        self._prefixed: dict[str, list[tuple[str, str]]] = {}
        self._encoders = tuple((arg.name, arg.kind == "packed") for arg in header.args)

    def bind(self, keys: Keys, parse: Callable[[Any], T], *, now: int = 0, **values: Any) -> Call[T]:
        """A call with every argument given by name.

        Args:
            now: server microseconds for tests; 0 reads the server's clock, less than 0 is so far ahead of it.
            values: exactly the header's arguments.

        Raises:
            TypeError: an argument is missing or unknown.
        """
        if len(values) != len(self._encoders):
            wanted = {name for name, _ in self._encoders}
            raise TypeError(f"script {self.name} takes {sorted(wanted)}, got {sorted(values)}")
        prefix = keys.prefix
        patterns = self._prefixed.get(prefix)
        if patterns is None:
            patterns = self._prefixed[prefix] = [(prefix + part, hole) for part, hole in self._patterns]
        # Plain loops: every enqueue of an idle program passes here, and each function that it calls is cold.
        bound: list[str] = []
        for key, hole in patterns:
            bound.append(key + values[hole] if hole else key)
        args: list[str | bytes | int] = [prefix, now] if self.header.clock else [prefix]
        for name, packed in self._encoders:
            value = values[name]
            # An empty list is an empty text: neither side packs or unpacks what many calls leave empty.
            args.append((_pack(value) if value else b"") if packed else value)
        return Call(self, tuple(bound), tuple(args), parse)

    def locate(self, error: Exception) -> None:
        """Have a server's error name this script's files and their own lines, in place of lines of the text."""

        def place(found: re.Match[str]) -> str:
            n = int(found[1])
            file, line = self.places[n - 1] if 0 < n <= len(self.places) else (self.name, n)
            return f"{file}.lua:{line}"

        error.args = tuple(_LINE.sub(place, arg) if isinstance(arg, str) else arg for arg in error.args)


def _source(name: str) -> str:
    return files("headrace").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")


def _lines(text: str, unused: Collection[int] = ()) -> list[str]:
    """The lines of a file; unused ones and those that hold comments only are empty, so that all keep their numbers."""
    return [
        "" if n in unused or line.lstrip().startswith("--") else line.strip()
        for n, line in enumerate(text.splitlines())
    ]


def _bindings(header: Header) -> list[str]:
    """Lua that names every argument, and every key that all parts may use."""
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


def _shared(header: Header, parts: Mapping[str, Header], own: str) -> dict[str, bool]:
    """Lua that names keys and long commands, and whether all parts get it.

    What none but lazy parts name is bound inside their function, so that other calls do not pay for it.
    """
    lua = {f"local {key.name} = KEYS[{n}]": key.name for n, key in enumerate(header.keys, 1)}
    derived = (*header.derives, *header.channels)
    lua |= {f"local {key.name} = prefix .. '{key.constant}'": key.name for key in derived}
    lua |= {_in_pieces(many): many.name for many in header.many}
    words: dict[bool, set[str]] = {True: set(), False: set()}
    for part in (own, *parts):
        words[part != own and bool(parts[part].lazy)] |= _words(part)
    if header.removes:
        words[False].add(removable(header).name)
    return {code: name in words[False] or name not in words[True] for code, name in lua.items()}


def _prelude(header: Header, shared: Mapping[str, bool]) -> str:
    """What comes before the first file, in one line."""
    parts = [*_bindings(header), *(code for code, always in shared.items() if always)]
    if header.removes:
        key = removable(header)
        parts.append(f"redis.call('{_REMOVALS[key.type]}', {key.name}, '')")
    if header.batch:
        parts.append(f"local batch = {{{', '.join(f'{part.name} = {part.empty}' for part in header.batch)}}}")
    return " ".join(parts)


def _includes(names: tuple[str, ...]) -> list[str]:
    """The files to include, theirs before themselves, each once."""
    found: list[str] = []
    for name in names:
        for inner in (*_includes(parse_header(_source(name)).includes), name):
            if inner not in found:
                found.append(inner)
    return found


def _all_lazy(parts: Mapping[str, Header], own: str) -> dict[str, Header]:
    """The headers of includes; what only one lazy function needs is inside it, too."""
    found, words = dict(parts), {part: _words(part) for part in (*parts, own)}
    for part in reversed(tuple(parts)):
        header, names = found[part], _names(part)
        needs = {found[one].lazy if one in found else "" for one in words if one != part and words[one] & names}
        if not header.lazy and not header.steps and len(needs) == 1:
            found[part] = replace(header, lazy=needs.pop())
    return found


def _names(part: str) -> set[str]:
    """What a file defines for others."""
    return {name for names in _DEFINED.findall(_source(part)) for name in names.split(", ")}


def _words(part: str) -> set[str]:
    return {word for line in _lines(_source(part)) for word in re.findall(r"\w+", line)}


def _grouped(parts: Mapping[str, Header]) -> list[str]:
    """The includes in their order, those of one lazy function together, where the first of them is."""
    found: list[str] = []
    for part, header in parts.items():
        if header.lazy:
            found += [one for one, other in parts.items() if other.lazy == header.lazy and one not in found]
        else:
            found.append(part)
    return found


def _lazy(part: str, parts: Mapping[str, Header], text: list[str], shared: Mapping[str, bool]) -> list[str]:
    """The text of an include inside its lazy function, which the first one opens and the last one closes."""
    word = parts[part].lazy
    group = [one for one, header in parts.items() if header.lazy == word]
    if part == group[0]:
        opening = f"local function {word}() if batch.{word} then return batch.{word} end"
        text = [" ".join([opening, *(code for code, always in shared.items() if not always)]), *text[1:]]
    if part == group[-1]:
        gives = ", ".join(f"{name} = {name}" for one in group for name in (*parts[one].gives, *parts[one].steps))
        text = [*text, f"batch.{word} = {{{gives}}} return batch.{word} end"]
    return text


def _step(step: str, parts: Mapping[str, Header]) -> str:
    """Lua that runs a step; one of a lazy include only where that was asked for."""
    word = next((header.lazy for header in parts.values() if step in header.steps), "")
    return f"if batch.{word} then batch.{word}.{step}() end" if word else f"{step}()"


@cache
def load(name: str) -> Script:
    """The script of ``scripts/<name>.lua``."""
    own = parse_header(_source(name))
    parts = {part: parse_header(_source(part)) for part in _includes(own.includes)}
    header = merge(own, list(parts.values()))
    parts = _all_lazy(parts, name)
    shared = _shared(header, parts, name)
    sources = {part: _source(part) for part in (*parts, name)}
    unused = unused_lines(sources, {*header.steps, *(given for one in parts.values() for given in one.gives)})
    lines, places = [_prelude(header, shared)], [(name, 1)]
    for part in _grouped(parts):
        text = _lines(sources[part], unused[part])
        last = len(text)
        if parts[part].lazy:
            text = _lazy(part, parts, text, shared)
        lines += text
        places += [(part, min(n, last)) for n in range(1, len(text) + 1)]
    text = _lines(sources[name])
    if header.commits:
        text[0] = "local function body()"
    lines += text
    places += [(name, n) for n in range(1, len(text) + 1)]
    if header.commits:
        steps = " ".join(_step(step, parts) for step in header.steps)
        lines.append(
            f"end local reply = body() {steps} if type(reply) == 'function' then return reply() end return reply"
        )
        places.append((name, len(places)))
    return Script(name, header, "\n".join(lines), tuple(places))
