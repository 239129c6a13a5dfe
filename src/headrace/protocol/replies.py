"""What the replies of scripts are made of: texts, and pairs by turns. Pure."""

from __future__ import annotations

from collections.abc import Sequence


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
