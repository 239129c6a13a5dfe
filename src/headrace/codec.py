"""Values to bytes and back: MessagePack through msgspec, capped in size, never pickle.

Pure. Knows nothing of tasks or jobs; turns msgspec's errors into ours, with the path of the culprit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import ArgumentError, PayloadTooLarge


def _refuse(value: object) -> Any:
    kind = type(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_refuse)
_decoder = msgspec.msgpack.Decoder()


def encode(value: object, limit: int, what: str) -> bytes:
    """MessagePack of ``value``.

    Args:
        limit: the most bytes allowed.
        what: how an error names the value, such as ``arguments of fetch``.

    Raises:
        ArgumentError: a value in it has a type that cannot be sent, is cyclic, or an integer beyond 64 bits.
        PayloadTooLarge: it takes more than ``limit`` bytes.
    """
    try:
        data = _encoder.encode(value)
    except RecursionError:
        raise ArgumentError(f"{what} cannot be sent: it contains itself; send ids instead of linked objects") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise ArgumentError(
            f"{what} cannot be sent ({error}): use JSON-like values, dataclasses, msgspec Structs, enums, dates, "
            f"decimals, UUIDs or bytes; integers of at most 64 bits"
        ) from None
    if len(data) > limit:
        raise PayloadTooLarge(
            f"{what} takes {len(data):,} bytes, more than the cap of {limit:,}: store it elsewhere and send a "
            f"reference, or raise the cap in the settings"
        )
    return data


def decode(data: bytes) -> Any:
    """The plain value of a MessagePack.

    Raises:
        msgspec.DecodeError: truncated or alien bytes.
    """
    return _decoder.decode(data)


def readable(data: bytes) -> str:
    """JSON text of a MessagePack, for people; alien bytes are shown as such."""
    try:
        return msgspec.json.encode(decode(data)).decode()
    except (msgspec.MsgspecError, ValueError, TypeError):
        return f"<{len(data)} bytes that are not MessagePack>"
