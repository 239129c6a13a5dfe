"""Lua scripts as typed values: a Script per file, a Call per use. Owns binding only; never talks to a server.

``script_header`` has the grammar of headers and puts texts together. Bodies never say ``KEYS[`` or ``ARGV[``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace.model.job import moment
from headrace.protocol.keys import Keys
from headrace.protocol.script_header import Header, assemble

T = TypeVar("T")

_pack = msgspec.msgpack.Encoder().encode
_LINE = re.compile(r"@?user_script: ?(\d+)")
# A note may travel right before the settle of its job. Were only the first one absent, it would be stored too late.
_BEFORE = {"settle": "note"}
_SHORT = [bytes([0xA0 | size]) for size in range(32)]


def unread(call: Call[Any]) -> Call[Any]:
    return Call(call.script, call.keys, call.args, lambda reply: reply)


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
    """One use of one script: what to send, and how to read the reply. Each is one round trip."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], T]

    def at(self, now: int) -> Call[T]:
        """The same call at a time of its own, for tests: microseconds; below 0: so far ahead of the server's clock."""
        if not now or not self.script.header.clock or self.args[1] != 0:
            return self
        return Call(self.script, self.keys, (self.args[0], now, *self.args[2:]), self.parse)

    def argument(self, name: str) -> int:
        names = [arg.name for arg in self.script.header.args]
        return names.index(name) + (2 if self.script.header.clock else 1)

    def on(self, keys: Keys, args: Mapping[int, str | bytes | int] = {}) -> Call[T]:
        """The same call for another shard; ``args``: those that differ, by their places."""
        old, new = cast(str, self.args[0]), keys.prefix
        bound = (new, *(args.get(n, arg) for n, arg in enumerate(self.args) if n))
        return Call(self.script, tuple(new + key[len(old) :] for key in self.keys), bound, self.parse)

    def command(self) -> tuple[str | bytes | int, ...]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


class Command(Call[T], frozen=True, eq=False):
    """A plain command of the server, ``args``, that travels behind a call and belongs to it."""

    @staticmethod
    def of(*words: str | int, parse: Callable[[Any], Any] = lambda reply: reply) -> Command[Any]:
        return Command(_COMMAND, (), words, parse)

    def command(self) -> tuple[str | bytes | int, ...]:
        return self.args


class Script:
    """One Lua file, ready to be bound.

    Attributes:
        header: what the file declares, includes merged in.
        sha: SHA1 of the text, by which the server knows it.
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
        self._patterns = tuple((key.constant, key.hole) for key in header.sent)
        self._prefixed: dict[Keys, list[tuple[str, str]]] = {}
        self._encoders = tuple((arg.name, arg.kind == "packed") for arg in header.args)

    def bind(self, keys: Keys, parse: Callable[[Any], T], **values: Any) -> Call[T]:
        """A call with exactly the header's arguments, by name. Raises TypeError: an argument is missing or unknown."""
        if len(values) != len(self._encoders):
            wanted = {name for name, _ in self._encoders}
            raise TypeError(f"script {self.name} takes {sorted(wanted)}, got {sorted(values)}")
        prefix = keys.prefix
        patterns = self._prefixed.get(keys)
        if patterns is None:
            patterns = self._prefixed[keys] = [(prefix + part, hole) for part, hole in self._patterns]
            # Behind all others: the script's own are bound by their places.
            patterns += [(prefix + guard, "") for guard in keys.guards]
        # Plain loops: every enqueue of an idle program passes here, and each function that it calls is cold.
        bound: list[str] = []
        for key, hole in patterns:
            bound.append(key + values[hole] if hole else key)
        args: list[str | bytes | int] = [prefix, 0] if self.header.clock else [prefix]
        for name, packed in self._encoders:
            value = values[name]
            # An empty list is an empty text: neither side packs or unpacks what many calls leave empty.
            args.append((_pack(value) if value else b"") if packed else value)
        return Call(self, tuple(bound), tuple(args), parse)

    @property
    def texts(self) -> tuple[str, ...]:
        """What a server loads that lacks the script, in this order."""
        before = _BEFORE.get(self.name)
        return (load(before).text, self.text) if before else (self.text,)

    def locate(self, error: Exception) -> None:
        def place(found: re.Match[str]) -> str:
            n = int(found[1])
            file, line = self.places[n - 1] if 0 < n <= len(self.places) else (self.name, n)
            return f"{file}.lua:{line}"

        error.args = tuple(_LINE.sub(place, arg) if isinstance(arg, str) else arg for arg in error.args)


# What stands for the script of a command, in messages too.
_COMMAND = Script("confirm", Header(""), "", ())


@cache
def load(name: str) -> Script:
    header, rows = assemble(name)
    rows = [row for row in rows if row[0]]
    return Script(name, header, "\n".join(line for line, _ in rows), tuple(place for _, place in rows))


def text_of(value: bytes | None) -> str:
    """A name, an id or a text to show and to compare, whatever its bytes; empty for None."""
    return value.decode("utf-8", "replace") if value else ""


def name_of(value: bytes) -> str:
    """A name to send back; empty for bytes that are none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""


def texts_of(values: Sequence[bytes]) -> list[str]:
    return [text_of(value) for value in values]


def pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {flat[n].decode("utf-8", "replace"): flat[n + 1] for n in range(0, len(flat), 2)}


def text_pairs(flat: Sequence[bytes]) -> dict[str, str]:
    return {name: text_of(value) for name, value in pairs(flat).items()}


def by_turns(fields: Mapping[str, str | int]) -> list[str | int]:
    return [part for pair in fields.items() for part in pair]


def done_and_next(reply: Any) -> tuple[int, int, int]:
    return reply[0], reply[1], moment(reply[2])
