"""The headers of Lua scripts: what a file declares in the comment lines that open it.

Owns the grammar only. A header is executable, so that Lua and Python cannot disagree::

    -- Settle: record how starts ended.                    title; the loader's bindings count as its line
    -- include finish                                      another file's functions (and its declarations)
    -- key     claims  zset    claims:<owner>              local claims = the key, <owner> filled from the argument;
                                                           a constant one is made of the prefix, see Header.sent
    -- derive  job     hash    job:<id>                    local job = the key's constant part; bodies append the id
    -- channel done    done:<id>                           likewise, for PUBLISH
    -- clock   now                                         local now = microseconds of the server's clock, or as told
    -- arg     owner   text    who settles                 text, int or packed (a list: MessagePack, unpacked; an empty
                                                           one is sent as an empty text)
    -- many    ZADD                                        zadd_all(key, list) sends the command in pieces of 1000
                                                           values; with an option, ZADD GT makes zadd_gt_all
    -- removes first claims                                before all else, nothing is removed from that key: once a
                                                           script has removed, a server whose memory is full lets it
                                                           write on
    -- batch   gone    {}      keys that are removed       in an include: batch.gone, which the script collects in
    -- step    store_ends                                  in an include: the function that stores its part of the batch
    -- commit  batch                                       the loader runs the steps when the body has returned
    -- lazy    limiting lanes gates                        in an include: limiting().lanes and limiting().gates. All
                                                           includes with this word are in one function, which runs
                                                           when it is first called: most calls need none of them.
                                                           Functions of other files that only these need join them.
                                                           It gives what other code of the script names
    -- return  ...                                         words for people

A body that commits may return a function. It is called after the steps, and makes the reply from what is stored then.
The steps run from the last include to the first: a step may add to the parts of the files that its own file includes.
Each step leaves its part of the batch empty, so that a script may also call one in between.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal, Protocol, TypeVar

import msgspec

Kind = Literal["text", "int", "packed"]

_WORDS = ("arg", "key", "derive", "channel", "include", "clock", "many", "removes", "batch", "step", "commit", "lazy")
_HOLE = re.compile(r"<(\w+)>")


class HeaderError(Exception):
    """A script's header cannot be read: a fault of this package, found by its tests."""


class Key(msgspec.Struct, frozen=True):
    """A key that a script touches: ``pattern`` may hold ``<argument>`` (declared) or ``<anything>`` (derived)."""

    name: str
    type: str
    pattern: str

    @property
    def constant(self) -> str:
        """What comes before the first hole."""
        return self.pattern.split("<")[0]

    @property
    def hole(self) -> str:
        """The name in the first hole, or empty."""
        found = _HOLE.search(self.pattern)
        return found[1] if found else ""


class Argument(msgspec.Struct, frozen=True):
    name: str
    kind: Kind


class Many(msgspec.Struct, frozen=True):
    """A command that takes a list of any length; ``option`` comes between its key and the list."""

    command: str
    option: str = ""

    @property
    def name(self) -> str:
        """Its function in Lua."""
        return "_".join(word.lower() for word in (self.command, self.option, "all") if word)


class Part(msgspec.Struct, frozen=True):
    """A field of the batch, and the Lua value that it begins with."""

    name: str
    empty: str


class Header(msgspec.Struct, frozen=True):
    """What one file declares or, merged, what a script and its includes do.

    Attributes:
        removes: name of the key from which nothing is removed first; empty: no such removal.
        steps: functions that store the batch, in their order.
        commits: the loader runs the steps.
        lazy, gives: the function that has this include inside, and what of it that function gives.
    """

    title: str
    keys: tuple[Key, ...] = ()
    derives: tuple[Key, ...] = ()
    channels: tuple[Key, ...] = ()
    args: tuple[Argument, ...] = ()
    includes: tuple[str, ...] = ()
    clock: bool = False
    many: tuple[Many, ...] = ()
    removes: str = ""
    batch: tuple[Part, ...] = ()
    steps: tuple[str, ...] = ()
    commits: bool = False
    lazy: str = ""
    gives: tuple[str, ...] = ()

    @property
    def sent(self) -> tuple[Key, ...]:
        """The keys that a call sends: those with an argument, or one, by which a cluster finds the server.

        The script makes constant ones of the prefix: a key that is sent costs every call, used or not.
        """
        return tuple(key for key in self.keys if key.hole) or self.keys[:1]


@cache  # a file is in many scripts
def parse_header(text: str) -> Header:
    """Read the comment lines that open a script."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("-- "):
        raise HeaderError("a script opens with a title line: -- Title: what changes for a job")
    found = _Found()
    for line in lines[1:]:
        if not line.startswith("--"):
            break
        words = line[2:].split()
        if not found.take(words) and words and words[0] in _WORDS:
            raise HeaderError(f"cannot read the header line {line!r}")
    return found.header(lines[0][3:])


class _Found:
    """What the lines that were read so far declare."""

    def __init__(self) -> None:
        self.keys: dict[str, list[Key]] = {"key": [], "derive": [], "channel": []}
        self.args: list[Argument] = []
        self.many: list[Many] = []
        self.batch: list[Part] = []
        self.words: dict[str, list[str]] = {"include": [], "clock": [], "removes": [], "step": [], "commit": []}
        self.lazy: list[str] = [""]

    def take(self, words: list[str]) -> bool:
        """Whether this line declares something."""
        match words:
            case ["include" | "step" as word, name]:
                self.words[word].append(name)
            case ["key" | "derive" as word, name, kind, pattern, *_]:
                self.keys[word].append(Key(name, kind, pattern))
            case ["channel", name, pattern, *_]:
                self.keys["channel"].append(Key(name, "channel", pattern))
            case ["arg", name, ("text" | "int" | "packed") as kind, *_]:
                self.args.append(Argument(name, kind))
            case ["clock", "now"] | ["commit", "batch"]:
                self.words[words[0]].append(words[1])
            case ["removes", "first", name, *_]:
                self.words["removes"].append(name)
            case ["many", command] | ["many", command, _] if command.isupper():
                self.many.append(Many(*words[1:]))
            case ["lazy", *names] if names:
                self.lazy = names
            case ["batch", name, empty, *_]:
                self.batch.append(Part(name, empty))
            case _:
                return False
        return True

    def header(self, title: str) -> Header:
        words = self.words
        return Header(
            title,
            keys=tuple(self.keys["key"]),
            derives=tuple(self.keys["derive"]),
            channels=tuple(self.keys["channel"]),
            args=tuple(self.args),
            includes=tuple(words["include"]),
            clock=bool(words["clock"]),
            many=tuple(self.many),
            removes=(words["removes"] or [""])[0],
            batch=tuple(self.batch),
            steps=tuple(words["step"]),
            commits=bool(words["commit"]),
            lazy=self.lazy[0],
            gives=tuple(self.lazy[1:]),
        )


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def merge(header: Header, includes: list[Header]) -> Header:
    """A script's header with what its includes declare.

    Args:
        includes: in the order of their text, each after those that it includes.

    Raises:
        HeaderError: nothing would store what is collected, or the key of the first removal has not the type for it.
    """
    parts = [header, *includes]
    merged = Header(
        header.title,
        _union([part.keys for part in parts]),
        _union([part.derives for part in parts]),
        _union([part.channels for part in parts]),
        header.args,
        header.includes,
        any(part.clock for part in parts),
        _union([part.many for part in parts]),
        header.removes,
        _union([part.batch for part in parts]),
        tuple(step for part in reversed(parts) for step in part.steps),
        header.commits,
    )
    if bool(merged.steps) != merged.commits:
        raise HeaderError(
            f"{header.title!r}: a script whose includes collect a batch says -- commit batch, no other does"
        )
    if merged.removes and removable(merged).type not in ("zset", "set", "hash"):
        raise HeaderError(f"{header.title!r}: nothing can be removed from {merged.removes}")
    return merged


def removable(header: Header) -> Key:
    """The key of the first removal."""
    for key in header.keys:
        if key.name == header.removes:
            return key
    raise HeaderError(f"{header.title!r} removes first from {header.removes}, which is no declared key")


def _union(groups: list[tuple[N, ...]]) -> tuple[N, ...]:
    return tuple({one.name: one for group in groups for one in group}.values())
