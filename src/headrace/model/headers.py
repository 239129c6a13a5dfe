"""Headers: a few texts by name that travel beside the arguments of a job. Pure: checks, merges and packs them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import msgspec

from headrace.errors import CorruptRecord, OptionsError

# Most headers of one job, and the bytes that their names and texts take together, in UTF-8.
MOST_HEADERS = 16
MOST_BYTES = 4096

# The header that names the schedule whose tick made a job.
SCHEDULE = "headrace-schedule"

# The header that work has in common with what led to it, and that of W3C Trace Context.
CORRELATION = "correlation"
TRACE = "traceparent"

# Headers as options hold them: a text of None removes an inherited header.
Given: TypeAlias = tuple[tuple[str, str | None], ...]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_pack = msgspec.msgpack.Encoder().encode
_headers = msgspec.msgpack.Decoder(dict[str, str])


def check(name: str, value: Any) -> Given:
    if not isinstance(value, Mapping):
        raise OptionsError(f"{name} must be a dictionary of texts by name, not {value!r:.80}")
    given: tuple[tuple[Any, Any], ...] = tuple(cast(Any, value).items())
    for key, text in given:
        if not isinstance(key, str) or not key:
            raise OptionsError(f"the name of a header must be a text that is not empty, not {key!r:.80}")
        if text is not None and not isinstance(text, str):
            raise OptionsError(f"header {key!r:.80} must be a text, not {type(text).__name__}: write str(...)")
    _measured({key: text for key, text in given if text is not None})
    return given


def merged(*layers: Given) -> Given:
    found: dict[str, str | None] = {}
    for layer in layers:
        found.update(layer)
    return tuple(found.items())


def added(given: Given, inherited: Mapping[str, str]) -> Mapping[str, str]:
    """Inherited headers with the given ones, which come first. Raises OptionsError: they are too many, or too large."""
    found = dict(inherited)
    for name, text in given:
        if text is None:
            found.pop(name, None)
        else:
            found[name] = text
    _measured(found)
    return found


def with_correlation(headers: Mapping[str, str], correlation: str) -> Mapping[str, str]:
    """Headers that a job passes on, with its correlation; without, where there is no room for one more."""
    if CORRELATION in headers or len(headers) >= MOST_HEADERS:
        return headers
    found = MappingProxyType({**headers, CORRELATION: correlation})
    return headers if size_of(found) > MOST_BYTES else found


def packed(headers: Mapping[str, str]) -> bytes:
    return _pack(headers) if headers else b""


def unpacked(data: bytes) -> Mapping[str, str]:
    if not data:
        return NO_HEADERS
    try:
        return MappingProxyType(_headers.decode(data))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(
            f"the stored headers of a job cannot be read ({error}): another program wrote or cut them"
        ) from None


def shown(data: bytes) -> Mapping[str, str]:
    try:
        return unpacked(data)
    except CorruptRecord:
        return NO_HEADERS


def size_of(headers: Mapping[str, str]) -> int:
    """Bytes of the names and texts together, in UTF-8. Raises UnicodeEncodeError: one holds what is not a character."""
    text = "".join(headers) + "".join(headers.values())
    return len(text) if text.isascii() else len(text.encode())


def _measured(headers: Mapping[str, str]) -> None:
    if len(headers) > MOST_HEADERS:
        raise OptionsError(
            f"a job has at most {MOST_HEADERS} headers, those that it inherits included, and these are {len(headers)}: "
            f"send the others as arguments"
        )
    try:
        size = size_of(headers)
    except UnicodeEncodeError as error:
        raise OptionsError(
            f"a header holds {error.object[error.start]!r}, which is not a character of a text"
        ) from None
    if size > MOST_BYTES:
        raise OptionsError(
            f"the headers of a job take at most {MOST_BYTES:,} bytes in all, and these take {size:,}: send the others "
            f"as arguments"
        )
