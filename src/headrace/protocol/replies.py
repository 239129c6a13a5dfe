"""What arguments and replies of scripts are made of: texts, and pairs by turns. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.model.job import moment


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
    """Names, ids or lines, each as :func:`text_of` reads it."""
    return [text_of(value) for value in values]


def pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    """A flat reply of fields and values as a dictionary."""
    return {flat[n].decode("utf-8", "replace"): flat[n + 1] for n in range(0, len(flat), 2)}


def text_pairs(flat: Sequence[bytes]) -> dict[str, str]:
    """As :func:`pairs`, with each value as :func:`text_of` reads it."""
    return {name: text_of(value) for name, value in pairs(flat).items()}


def by_turns(fields: Mapping[str, str | int]) -> list[str | int]:
    """A dictionary as a script takes it: field, value, ..."""
    return [part for pair in fields.items() for part in pair]


def done_and_next(reply: Any) -> tuple[int, int, int]:
    """How many were done, server time, and when the next is due (0: none is); microseconds."""
    return reply[0], reply[1], moment(reply[2])
