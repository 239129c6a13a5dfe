"""Events: single things that happened, with what is known of them beside the counts. Facts only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from headrace.errors import OptionsError
from headrace.model.codec import encode
from headrace.model.notation import EPOCH

MOST_BYTES = 64 << 10


class Event(msgspec.Struct, frozen=True):
    """Something that happened.

    Attributes:
        id: given, or made when it was stored.
        label: normalised, prefix included.
        at: when it happened, UTC.
        fields: what it counted.
        meta: whatever else was told of it.
    """

    id: str
    label: str
    at: datetime
    fields: Mapping[str, int]
    meta: Mapping[str, Any]


def pack(label: str, at: int, fields: Mapping[str, int], meta: Mapping[str, Any]) -> bytes:
    """An event as stored.

    Raises:
        ArgumentError, PayloadTooLarge: what is told of it cannot be stored, or is larger than 64 KiB.
    """
    return encode([label, at, dict(fields), dict(meta)], MOST_BYTES, f"event of {label}")


def unpack(id: str, body: bytes | None) -> Event | None:
    """A stored event; None where nothing, or something else, is stored."""
    if body is None:
        return None
    try:
        label, at, fields, meta = msgspec.msgpack.decode(body, type=tuple[str, int, dict[str, int], dict[str, Any]])
        return Event(id, label, EPOCH + timedelta(seconds=at), fields, meta)
    except (msgspec.MsgspecError, OverflowError):
        return None


def check_id(id: str) -> str:
    """An id that can name an event.

    Raises:
        OptionsError: it cannot.
    """
    if not isinstance(id, str) or not 0 < len(id) <= 128 or not id.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"an event's id has 1 to 128 printable characters, not {id!r}")
    return id
