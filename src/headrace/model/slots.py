"""Slots: places in the arguments of a job that the output of another job fills. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from headrace.errors import ArgumentError, CorruptArguments
from headrace.model.codec import NONE, PLAIN, SLOT, STRICT, TOO_DEEP, Position, encode, refuse


class Slotted:
    """Encodes values in which some stand for what is not known yet, each as a slot.

    Attributes:
        met: how many slots were written so far.
    """

    def __init__(self, position: Position, further: Callable[[Any], Any] = refuse) -> None:
        """What stands for nothing is as it is.

        Args:
            position: tells the place of what a value stands for; None: it is a plain value.
            further: gives what is sent for a value that MessagePack has no form for.
        """
        self.met = 0
        self._position = position
        self._further = further
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._slot)

    def encode(self, value: object, limit: int, what: str) -> bytes:
        """See :func:`encode`."""
        met = self.met
        data = encode(value, limit, what, self._encoder)
        if self.met != met:
            try:
                STRICT.decode(data)
            except RecursionError:
                raise ArgumentError(f"{what} cannot be sent: {TOO_DEEP}") from None
            except msgspec.DecodeError:
                raise ArgumentError(
                    f"{what}: a node cannot be the key of a dictionary, nor can a record; make it a value"
                ) from None
        return data

    def _slot(self, value: object) -> Any:
        position = self._position(value)
        if position is None:
            return self._further(value)
        self.met += 1
        return slot(position)


def slot(position: int) -> msgspec.msgpack.Ext:
    """What stands for the output of the parent at this position."""
    return msgspec.msgpack.Ext(SLOT, position.to_bytes(max(1, (position.bit_length() + 7) // 8), "big"))


def fill(data: bytes, outputs: Sequence[bytes]) -> bytes:
    """Arguments with each slot replaced by the output of the parent that it names.

    Args:
        outputs: MessagePack of each parent's output, in edge order; empty where there is none: it becomes None.

    Raises:
        CorruptArguments: no definition wrote these bytes, or there are fewer parents than it had.
        ArgumentError: they are nested too deeply.
    """

    def put(code: int, payload: memoryview) -> Any:
        if code != SLOT:
            return msgspec.msgpack.Ext(code, bytes(payload))
        return msgspec.Raw(outputs[int.from_bytes(payload, "big")] or NONE)

    try:
        return PLAIN.encode(msgspec.msgpack.Decoder(ext_hook=put).decode(data))
    except RecursionError:
        raise ArgumentError(f"the arguments of a node, with its parents' outputs, are {TOO_DEEP}") from None
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
        raise CorruptArguments(
            f"the stored arguments of a node cannot be filled ({error}): another program wrote or cut them"
        ) from None


def has_slots(arguments: bytes) -> bool:
    """Whether some of what stored arguments hold is to come from parents."""
    met: list[int] = []
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        msgspec.msgpack.Decoder(ext_hook=lambda code, payload: met.append(code)).decode(arguments)  # noqa: ARG005
    return SLOT in met
