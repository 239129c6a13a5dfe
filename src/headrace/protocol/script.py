"""Lua scripts as typed values: a header that binds names, a Script per file, a Call per use.

Owns loading and binding only; never talks to a server. The header of a file is executable, so that Lua and Python
cannot disagree::

    -- Settle: record how starts ended.                    title; the loader's bindings take its line
    -- include finish                                      another file's functions (and its declarations)
    -- key     claims  zset    claims:<owner>              local claims = the key, <owner> filled from the argument
    -- derive  job     hash    job:<id>                    local job = the key's constant part; bodies append the id
    -- channel done    done:<id>                           likewise, for PUBLISH
    -- clock   now                                         local now = microseconds of the server's clock, or as told
    -- arg     owner   text    who settles                 text, int or packed (MessagePack, unpacked)
    -- return  ...                                         words for people

Bodies never say ``KEYS[`` or ``ARGV[``; error line numbers match the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, Literal, TypeVar

import msgspec

from headrace.protocol.keys import Keys

T = TypeVar("T")
Kind = Literal["text", "int", "packed"]

_pack = msgspec.msgpack.Encoder().encode
_WORDS = ("arg", "key", "derive", "channel", "include", "clock")
_HOLE = re.compile(r"<(\w+)>")
_SHORT = [bytes([0xA0 | size]) for size in range(32)]
_UNPACK = {"text": "{}", "int": "tonumber({})", "packed": "cmsgpack.unpack({})"}


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


class HeaderError(Exception):
    """A script's header cannot be read: a fault of this package, found by its tests."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that a script touches: ``pattern`` may hold ``<argument>`` (declared) or ``<anything>`` (derived)."""

    name: str
    type: str
    pattern: str


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Header:
    title: str
    keys: tuple[Key, ...]
    derives: tuple[Key, ...]
    channels: tuple[Key, ...]
    args: tuple[Argument, ...]
    includes: tuple[str, ...]
    clock: bool


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
    """

    __slots__ = ("_encoders", "_patterns", "_prefixed", "header", "name", "sha", "text")

    def __init__(self, name: str, header: Header, text: str) -> None:
        self.name = name
        self.header = header
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        # A declared key is a constant, or a constant part and one argument at its end.
        self._patterns = tuple(
            (key.pattern.split("<")[0], (_HOLE.findall(key.pattern) or [""])[0]) for key in header.keys
        )
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
            args.append(_pack(values[name]) if packed else values[name])
        return Call(self, tuple(bound), tuple(args), parse)


def parse_header(text: str) -> Header:
    """Read the comment lines that open a script."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("-- "):
        raise HeaderError("a script opens with a title line: -- Title: what changes for a job")
    keys: list[Key] = []
    derives: list[Key] = []
    channels: list[Key] = []
    args: list[Argument] = []
    includes: list[str] = []
    clock = False
    for line in lines[1:]:
        if not line.startswith("--"):
            break
        words = line[2:].split()
        match words:
            case ["include", name]:
                includes.append(name)
            case ["key", name, kind, pattern, *_]:
                keys.append(Key(name, kind, pattern))
            case ["derive", name, kind, pattern, *_]:
                derives.append(Key(name, kind, pattern))
            case ["channel", name, pattern, *_]:
                channels.append(Key(name, "channel", pattern))
            case ["arg", name, ("text" | "int" | "packed") as kind, *_]:
                args.append(Argument(name, kind))
            case ["clock", "now"]:
                clock = True
            case [word, *_] if word in _WORDS:
                raise HeaderError(f"cannot read the header line {line!r}")
            case _:
                pass
    return Header(lines[0][3:], tuple(keys), tuple(derives), tuple(channels), tuple(args), tuple(includes), clock)


def _source(name: str) -> str:
    return files("headrace").joinpath("scripts", f"{name}.lua").read_text(encoding="utf-8")


def _one_line(text: str) -> str:
    """An included file without comments and line breaks, so that the includer keeps its line numbers."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("--"))


def _merge(header: Header, includes: list[Header]) -> Header:
    def union(mine: tuple[Key, ...], theirs: list[tuple[Key, ...]]) -> tuple[Key, ...]:
        return tuple({key.name: key for group in (mine, *theirs) for key in group}.values())

    return Header(
        header.title,
        union(header.keys, [part.keys for part in includes]),
        union(header.derives, [part.derives for part in includes]),
        union(header.channels, [part.channels for part in includes]),
        header.args,
        header.includes,
        header.clock or any(part.clock for part in includes),
    )


def _prelude(header: Header) -> str:
    """Lua that names every key and argument, in one line."""
    parts = ["local prefix = ARGV[1]"]
    parts += [f"local {key.name} = KEYS[{n}]" for n, key in enumerate(header.keys, 1)]
    parts += [
        f"local {key.name} = prefix .. '{key.pattern.split('<')[0]}'" for key in (*header.derives, *header.channels)
    ]
    first = 2
    if header.clock:
        parts.append("local now = tonumber(ARGV[2])")
        parts.append("if now <= 0 then local t = redis.call('TIME') now = t[1] * 1000000 + t[2] - now end")
        first = 3
    parts += [
        f"local {arg.name} = {_UNPACK[arg.kind].format(f'ARGV[{n}]')}" for n, arg in enumerate(header.args, first)
    ]
    return " ".join(parts)


def _includes(names: tuple[str, ...]) -> list[str]:
    """The files to include, theirs before themselves, each once."""
    found: list[str] = []
    for name in names:
        for inner in (*_includes(parse_header(_source(name)).includes), name):
            if inner not in found:
                found.append(inner)
    return found


@cache
def load(name: str) -> Script:
    """The script of ``scripts/<name>.lua``."""
    source = _source(name)
    own = parse_header(source)
    names = _includes(own.includes)
    header = _merge(own, [parse_header(_source(part)) for part in names])
    prelude = " ".join([_prelude(header), *(_one_line(_source(part)) for part in names)])
    body = source.split("\n", 1)[1]
    return Script(name, header, f"{prelude}\n{body}")
