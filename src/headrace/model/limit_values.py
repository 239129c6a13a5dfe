"""What the values of limits, and the gates that jobs pass, are called in keys and lists. Pure."""

from __future__ import annotations

import hashlib
import re

import msgspec

_MOST_VALUE = 100
_OUTSIDE = re.compile(rb"[^A-Za-z0-9_.:/@+-]")


def value_name(packed: bytes) -> str:
    """What a value is called in keys and lists, of its MessagePack; argument_values.lua says the same.

    Texts and integers are called what they are, with ``%`` and two digits for each byte outside of
    ``A-Za-z0-9_.:/@+-``; long ones, and values of other types, by their SHA-1.
    """
    try:
        value = msgspec.msgpack.decode(packed)
    except msgspec.MsgspecError:
        value = packed
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 53:
        return str(value)
    if not isinstance(value, str):
        return hashlib.sha1(packed, usedforsecurity=False).hexdigest()
    text = _OUTSIDE.sub(lambda found: b"%%%02X" % found[0][0], value.encode("utf-8", "surrogatepass")).decode()
    return text if len(text) <= _MOST_VALUE else hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def shared_gates(lane: str) -> list[str]:
    """The gates of a lane, or of a class, that go by no value."""
    return [f"{word}:" for word in lane.split("|")[1].split(",") if not word.endswith("=")]


def own_gates(lane: str) -> list[str]:
    """The gates of a lane's values."""
    _, limits, *values = lane.split("|")
    names = [word[:-1] for word in limits.split(",") if word.endswith("=")]
    return [f"{name}:{value}" for name, value in zip(names, values, strict=False)]


def gates_of(lane: str) -> list[str]:
    """The gates that a job passes, each ``<limit>:<value>``, of the name of its lane; none of an empty name."""
    return [*shared_gates(lane), *own_gates(lane)] if lane else []
