"""The types of an application that MessagePack has no form for: ``app.types``.

Owns what the program added. What is known without that is known_types.py's.
"""

from __future__ import annotations

import inspect
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never, TypeVar

import msgspec
from msgspec import inspect as kinds

from headrace.errors import OptionsError
from headrace.model.known_types import Unfit, family_of

T = TypeVar("T")

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class Types:
    """How values are sent that MessagePack has no form for: ``app.types``.

    Known without being added: pydantic models, ``pathlib`` paths, ``ZoneInfo``, IP addresses, numpy scalars.
    """

    def __init__(self) -> None:
        self._added: dict[type, tuple[Encode, Decode]] = {}
        # Classes that an annotation asked for in vain: what is built of it is kept, so they can be added no more.
        self._missed: set[type] = set()
        self.encoder = msgspec.msgpack.Encoder(enc_hook=self.encode)
        # Of equal values the bytes are equal, too.
        self.sorting_encoder = msgspec.msgpack.Encoder(enc_hook=self.encode, order="sorted")

    def __reduce__(self) -> Never:
        # All that an application gives leads here, and its own refusal would name a class that no program knows.
        raise TypeError(
            "an application and its handles stay in their process, and can be neither pickled nor copied deeply: "
            "pass job.id, and ask the other process's application for app.job(id)"
        )

    def add(self, cls: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
        """Let values of a class be arguments, results and cached values, at any depth.

        Values of classes that extend it are sent too, and arrive as this class. Call it where the application is made,
        in programs and workers alike: before the first job that uses the class.

        Args:
            cls: the class. What MessagePack has a form for (numbers, texts, dataclasses, ...) cannot be added.
            encode: gives what stands for a value: numbers, texts, bytes, lists, dictionaries, or other values that can
                be sent.
            decode: makes the value again of what arrives, which is plain: what an argument without an annotation would
                be, a list for a tuple. Where it raises, the argument does not fit; it is also called at the enqueue.

        Raises:
            OptionsError: it is no class, has a form already, was added or used before, or a function is none, or is a
                coroutine function.
        """
        if not isinstance(cls, type) or typing.get_origin(cls) is not None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"app.types.add takes a class, not {cls!r:.80}")
        for name, function in (("encode", encode), ("decode", decode)):
            if not callable(function) or inspect.iscoroutinefunction(function):
                raise OptionsError(f"{name} of {full_name(cls)} must be an ordinary function, not {function!r:.80}")
        if cls is object or not isinstance(kinds.type_info(cls), kinds.CustomType):
            raise OptionsError(f"{full_name(cls)} is sent as it is: nothing can be added for it")
        if self._added.get(cls, (encode, decode)) != (encode, decode):
            raise OptionsError(f"{full_name(cls)} was added before, with other functions: add it once")
        if cls in self._missed:
            raise OptionsError(
                f"{full_name(cls)} was used before it was added: call app.types.add where the application is made"
            )
        self._added[cls] = (encode, decode)

    def joined(self, other: Types) -> Types:
        """What knows what both know, without a change of either.

        Raises:
            OptionsError: a class was added to both, with other functions.
        """
        made = Types()
        for cls, functions in (*self._added.items(), *other._added.items()):
            made.add(cls, *functions)
        return made

    def join(self, other: Types) -> None:
        """Know what the other one knows, and have it know what this one knows, from now on; see :meth:`joined`."""
        other._added.update(self._added)
        self._added, self._missed = other._added, other._missed

    def knows(self, kind: Any) -> bool:
        """Whether there is a way back to this class, for an annotation that is about to be used."""
        cls = typing.get_origin(kind) or kind
        if cls is object or cls in self._added or family_of(cls) is not None:
            return True
        self._missed.add(cls)
        return False

    def has_added(self, kind: Any) -> bool:
        """Whether the application says how values of this class are sent."""
        return (typing.get_origin(kind) or kind) in self._added

    def encode(self, value: Any) -> Any:
        """What stands for a value; msgspec calls it for what MessagePack has no form for.

        Raises:
            TypeError: there is nothing, or its encode raised.
        """
        return self._encoded(value, type(value))

    def _encoded(self, value: Any, kind: Any) -> Any:
        encode = next((self._added[base][0] for base in kind.__mro__ if base in self._added), None)
        if encode is None:
            if (family := family_of(kind)) is None:
                raise TypeError(full_name(kind))
            encode = family.encode
        try:
            made = encode(value)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the user's code
            raise TypeError(f"{full_name(kind)}: {_fault(error)}") from None
        if type(made) is kind:
            raise TypeError(f"the encode of {full_name(kind)} gives such a value again")
        return made

    def decode(self, kind: Any, plain: Any) -> Any:
        """The value of what arrived; msgspec calls it for each class that it does not know, and checks what it gives.

        Raises:
            ValueError: it does not fit.
        """
        if kind is object:
            return plain
        kind = typing.get_origin(kind) or kind
        pair = self._added.get(kind)
        family = family_of(kind) if pair is None else None
        try:
            if pair is not None:
                return pair[1](plain)
            if family is not None:
                return family.decode(kind, plain)
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - it is the user's code
            raise ValueError(f"not a valid {kind.__name__} ({_fault(error)})") from None
        raise ValueError(f"nothing says how {full_name(kind)} is read: app.types.add(...) does")


def full_name(kind: Any) -> str:
    """Module and name of a class, for messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _fault(error: Exception) -> str:
    """What is told of an error: its type and place, since its text may hold the value."""
    if isinstance(error, Unfit):
        return str(error)
    line = traceback.extract_tb(error.__traceback__)[-1]
    file = Path(line.filename)
    return type(error).__name__ + (f" at {file.name}:{line.lineno}" if file.parent != Path(__file__).parent else "")
