"""A function's result as bytes and back, checked against its return annotation. Pure."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import msgspec

from headrace.errors import ArgumentError, ResultMismatch, ResultUndecodable
from headrace.model import codec
from headrace.model.hidden_values import is_secret
from headrace.model.type_registry import Types

# What a decoder says ends with the place: `$[1].a`, or `key` in `$[1].a` of what is wrong in a key of a dictionary.
_PLACE = re.compile(r"(.*) - at ((?:`key[^`]*` in )*)`\$([^`]*)`", re.DOTALL)
# It shows what no member of an enumeration, no literal and no tag is equal to.
_SHOWN = re.compile(r"(Invalid(?: enum)? value) .*", re.DOTALL)


class ResultType:
    """What one function returns.

    Attributes:
        task: the task's name, for messages.
    """

    def __init__(self, task: str, returns: Any, types: Types) -> None:
        self.task = task
        self._returns = returns
        self._types = types

    def pack(self, value: object, limit: int) -> bytes:
        """A result as it is stored: what its readers would refuse is refused here.

        Raises:
            ArgumentError: it has a type that cannot be sent.
            PayloadTooLarge: it takes more than ``limit`` bytes.
            ResultMismatch: it does not fit the return annotation.
        """
        if value is None and self._may_be_none:
            return codec.NONE
        data = codec.encode(value, limit, f"result of {self.task}", self._types.encoder)
        if self._returns is not Any:
            try:
                self._decoder.decode(data)
            except RecursionError:
                raise ArgumentError(f"result of {self.task} cannot be sent: {codec.TOO_DEEP}") from None
            except (msgspec.MsgspecError, ValueError, TypeError) as error:
                raise ResultMismatch(
                    f"what {self.task} returned does not fit its return annotation: {described(error, self._returns)}"
                ) from None
        return data

    def unpack(self, data: bytes) -> Any:
        """The result that :meth:`pack` packed, converted to the return annotation.

        Raises:
            ResultUndecodable: it does not fit.
        """
        try:
            return self._decoder.decode(data or codec.NONE)
        except RecursionError:
            raise ResultUndecodable(
                f"the stored result of {self.task} is {codec.TOO_DEEP}: return a flatter value "
                f"(job.refresh().packed_result has the bytes)"
            ) from None
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            hint = "another version of the code may have returned it (job.refresh().packed_result has the bytes)"
            if data == codec.NONE:
                hint = f"a middleware may have swallowed what it raised (job.refresh().swallowed), or {hint}"
            fault = described(error, self._returns)
            raise ResultUndecodable(
                f"the stored result of {self.task} does not fit its return annotation: {fault}; {hint}"
            ) from None

    @cached_property
    def _decoder(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(self._returns, dec_hook=self._types.decode)

    @cached_property
    def _may_be_none(self) -> bool:
        try:
            self._decoder.decode(codec.NONE)
        except msgspec.ValidationError:
            return False
        return True


def described(error: Exception, returns: Any) -> str:
    """What a decoder said of a result with this annotation: the fault, and where in it."""
    fault, keys, path = misfit(str(error), secret=is_secret(returns))
    return fault + (f" at {keys}result{path}" if keys or path else "")


def misfit(text: str, *, secret: bool) -> tuple[str, str, str]:
    """What a decoder said of a value, without the value: the fault, ``key in `` for one in a key, and the path."""
    found = _PLACE.fullmatch(text)
    what, keys, path = found.groups() if found else (text, "", "")
    fault = "it is secret, and does not fit" if secret else _lowered(_SHOWN.sub(r"\1", what).replace("`", ""))
    return fault, keys.replace("`", ""), path


def _lowered(text: str) -> str:
    """A sentence of the decoder's as the end of one of ours."""
    return text[:1].lower() + text[1:]
