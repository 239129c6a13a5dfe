"""What the values of limits are called in keys and lists. Pure."""

from __future__ import annotations

import hashlib
import re

import msgspec

_MOST_VALUE = 100
_OUTSIDE = re.compile(rb"[^A-Za-z0-9_.:/@+-]")


def value_name(packed: bytes) -> str:
    """What a value is called in keys and lists, of its MessagePack; limited_values.lua says the same.

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
