"""A task's arguments and result as bytes and back, checked against its signature and annotations.

Pure. The producer checks exactly what the worker will see: it decodes what it encoded, with the same decoder.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypedDict

import msgspec

from headrace import codec
from headrace.errors import ArgumentError, CorruptArguments, ResultUndecodable

# What an enqueue without arguments sends: [[], {}].
NOTHING = b"\x92\x90\x80"
# Decoders are kept per shape of a call (how many positions, which keywords); beyond this, callers vary without end.
SHAPES = 128

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"^\[(?P<group>[01])\](?:\[(?P<position>\d+)\]|\.(?P<name>\w+))?(?P<rest>.*)$", re.DOTALL)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """What one function takes.

    Attributes:
        task: the task's name, for messages.
        unchecked: parameter (or ``return``) -> why its values are not converted to its annotation.
    """

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        self._positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        self._by_position_only = {p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY}
        self._keyword_only = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
        self._many = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._any_keyword = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_KEYWORD), None)
        self._keywords = (set(self._positional) - self._by_position_only) | self._keyword_only
        demanded = [p.name for p in parameters if p.default is inspect.Parameter.empty]
        self._least = len([name for name in self._positional if name in demanded])
        self._demanded_keywords = self._keyword_only & set(demanded)
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
        self.unchecked: dict[str, str] = {}

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> bytes:
        """Arguments as an enqueue sends them; what the worker would refuse is refused here.

        Raises:
            ArgumentError: names the task, the argument and the path in it.
            PayloadTooLarge: they take more than ``limit`` bytes.
        """
        if not args and not kwargs and not self._least and not self._demanded_keywords:
            return NOTHING
        args, kwargs = self._bind(args, kwargs)
        data = codec.encode((args, kwargs), limit, f"arguments of {self.task}")
        self._decode(data, len(args), kwargs)
        return data

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positions and keywords to call the function with, converted to its annotations.

        Raises:
            ArgumentError: they do not fit the function, as it is here.
            CorruptArguments: no enqueue wrote these bytes.
        """
        if data == NOTHING and not self._least and not self._demanded_keywords:
            return (), {}
        try:
            args, kwargs = _sent.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise CorruptArguments(f"the stored arguments of {self.task} cannot be read: {error}") from None
        count, _ = self._bind(args, kwargs)
        return self._decode(data, len(args), kwargs)
