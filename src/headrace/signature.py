"""A function's arguments and result as bytes and back, checked against its signature and annotations.

Pure. The producer checks exactly what the worker will see: it decodes what it encoded, with the same decoder.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, TypedDict, cast

import msgspec

from headrace import codec
from headrace.annotations import hints, is_open, reason_unchecked
from headrace.errors import ArgumentError, CorruptArguments, PayloadTooLarge, ResultMismatch, ResultUndecodable
from headrace.options import misplaced

# What an enqueue without arguments sends: [[], {}].
NOTHING = b"\x92\x90\x80"
# Decoders kept, one per shape of a call (how many positions, which keywords): *args and **kwargs have no end of shapes.
SHAPES = 128

_empty = inspect.Parameter.empty
_sent = msgspec.msgpack.Decoder(tuple[list[Any], dict[str, Any]])

Positions = tuple[Any, ...]
Keywords = dict[str, Any]
# Arguments, by position or name, that hold what is not known yet.
Unknown = frozenset[int | str]
# Arguments: position or keyword, what messages call it, and its value.
Named = list[tuple[int | str, str, Any]]


class Signature:
    """What one function takes and returns.

    Attributes:
        task: the task's name, for messages.
        text: the signature for messages, such as ``(url, sizes=...)``.
    """

    def __init__(self, task: str, function: Callable[..., Any], *, loose: bool = False) -> None:
        """Read a signature.

        Args:
            loose: let values without an annotation arrive as another type, a tuple as a list.
        """
        self.task = task
        self._loose = loose
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        by_kind = {kind: [p.name for p in parameters if p.kind is kind] for kind in {p.kind for p in parameters}}
        only_position = by_kind.get(inspect.Parameter.POSITIONAL_ONLY, [])
        either = by_kind.get(inspect.Parameter.POSITIONAL_OR_KEYWORD, [])
        only_keyword = by_kind.get(inspect.Parameter.KEYWORD_ONLY, [])
        demanded = {p.name for p in parameters if p.default is _empty}
        self._positions = only_position + either
        self._least = len([name for name in self._positions if name in demanded])
        self._keywords = {*either, *only_keyword}
        self._demanded = [name for name in only_keyword if name in demanded]
        self._rest = next(iter(by_kind.get(inspect.Parameter.VAR_POSITIONAL, [])), None)
        self._others = next(iter(by_kind.get(inspect.Parameter.VAR_KEYWORD, [])), None)
        self._bare = not self._least and not self._demanded
        self._decoders: dict[Any, msgspec.msgpack.Decoder[tuple[Positions, Keywords]]] = {}
        shown = [p.replace(annotation=_empty, default=_empty if p.default is _empty else ...) for p in parameters]
        self.text = str(inspect.Signature(shown)).replace("=Ellipsis", "=...")

    def pack(self, args: Positions, kwargs: Keywords, limit: int) -> bytes:
        """Arguments as an enqueue sends them: what the worker would refuse is refused here.

        Raises:
            ArgumentError: names the task, the argument and the path in it.
            PayloadTooLarge: they take more than ``limit`` bytes.
        """
        if not args and not kwargs and self._bare:
            return NOTHING
        if kwargs or not self._least <= len(args) <= len(self._positions) or self._demanded:
            args, kwargs = self._bound(args, kwargs)
        try:
            data = codec.encode((args, kwargs), limit, f"arguments of {self.task}")
        except (ArgumentError, PayloadTooLarge) as error:
            raise _named(error, self.task, self._names(args, kwargs), limit) from None
        back = self._decode(data, len(args), kwargs)
        if self._open:
            self._refuse_changed((args, kwargs), back)
        return data

    def pack_open(self, args: Positions, kwargs: Keywords, limit: int, slots: codec.Slotted) -> bytes:
        """As :meth:`pack`, where some values are to come: an argument that holds one is checked once it is filled."""
        args, kwargs = self._bound(args, kwargs)
        data, unknown = _packed(self.task, self._names(args, kwargs), limit, slots)
        back = self._decode(data, len(args), kwargs, unknown)
        if self._open:
            self._refuse_changed((args, kwargs), back, unknown)
        return data

    def prepare(self) -> None:
        """Make what the first :meth:`unpack` of each usual form would make: all arguments by position."""
        for count in range(self._least, min(len(self._positions), 15) + 1):
            # Annotations that nothing can be made of are told by the job that meets them.
            with contextlib.suppress(Exception):
                self._decoder(count, count, ())
        with contextlib.suppress(Exception):
            self.pack_result(None, 1)

    def accepts(self, name: str, count: int) -> bool:
        """Whether a call with ``count`` positions may still be given ``name``."""
        if name in self._keywords:
            return name not in self._positions[:count]
        return self._others is not None and name not in self._positions

    def unpack(self, data: bytes) -> tuple[Positions, Keywords]:
        """Positions and keywords to call the function with, converted to its annotations.

        Raises:
            ArgumentError: they do not fit the function as it is here.
            CorruptArguments: no enqueue wrote these bytes.
        """
        if data == NOTHING and self._bare:
            return (), {}
        if (found := self._by_position(data)) is not None:
            return found
        try:
            args, kwargs = _sent.decode(data)
        except RecursionError:
            raise self._too_deep() from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptArguments(
                f"the stored arguments of {self.task} cannot be read ({error}): another program wrote or cut them"
            ) from None
        self._bound(tuple(args), kwargs)
        return self._decode(data, len(args), kwargs)

    def pack_result(self, value: object, limit: int) -> bytes:
        """A result as it is stored: what its readers would refuse is refused here.

        Raises:
            ArgumentError: it has a type that cannot be sent.
            PayloadTooLarge: it takes more than ``limit`` bytes.
            ResultMismatch: it does not fit the return annotation.
        """
        if value is None and self._may_be_none:
            return codec.NONE
        data = codec.encode(value, limit, f"result of {self.task}")
        if self._returns is not Any:
            try:
                self._result_decoder.decode(data)
            except RecursionError:
                raise ArgumentError(f"result of {self.task} cannot be sent: {codec.TOO_DEEP}") from None
            except (msgspec.MsgspecError, ValueError, TypeError) as error:
                raise ResultMismatch(
                    f"what {self.task} returned does not fit its return annotation: {_of_result(error)}"
                ) from None
        return data

    def unpack_result(self, data: bytes) -> Any:
        """The result that :meth:`pack_result` packed, converted to the return annotation.

        Raises:
            ResultUndecodable: it does not fit.
        """
        try:
            return self._result_decoder.decode(data or codec.NONE)
        except RecursionError:
            raise ResultUndecodable(
                f"the stored result of {self.task} is {codec.TOO_DEEP}: return a flatter value (job.refresh().result "
                f"has the bytes)"
            ) from None
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise ResultUndecodable(
                f"the stored result of {self.task} does not fit its return annotation: {_of_result(error)}; another "
                f"version of the code may have returned it (job.refresh().result has the bytes)"
            ) from None

    @cached_property
    def types(self) -> dict[str, Any]:
        """Parameter (or ``return``) -> what its values are converted to; see ``unchecked`` for those that are not."""
        found: dict[str, Any] = {}
        for name, annotation in hints(self._function).items():
            found[name] = Any if reason_unchecked(annotation) else annotation
        return found

    @cached_property
    def unchecked(self) -> dict[str, str]:
        """Parameter (or ``return``) -> why its values are not converted to its annotation."""
        reasons = {name: reason_unchecked(annotation) for name, annotation in hints(self._function).items()}
        return {name: reason for name, reason in reasons.items() if reason}

    @cached_property
    def _result_decoder(self) -> msgspec.msgpack.Decoder[Any]:
        return msgspec.msgpack.Decoder(self._returns)

    @cached_property
    def _returns(self) -> Any:
        return self.types.get("return", Any)

    @cached_property
    def _may_be_none(self) -> bool:
        try:
            self._result_decoder.decode(codec.NONE)
        except msgspec.ValidationError:
            return False
        return True

    @cached_property
    def _open(self) -> frozenset[str]:
        """Parameters whose values MessagePack may change the type of, since no annotation says it."""
        if self._loose:
            return frozenset()
        names = {*self._positions, *self._keywords, *filter(None, (self._rest, self._others))}
        return frozenset(name for name in names if name not in self.types or is_open(self.types[name]))

    def _refuse_changed(
        self, sent: tuple[Positions, Keywords], back: tuple[Positions, Keywords], unknown: Unknown = frozenset()
    ) -> None:
        places: list[tuple[int | str, Any, Any]] = [
            *((n, one, other) for n, (one, other) in enumerate(zip(sent[0], back[0], strict=True))),
            *((name, one, back[1][name]) for name, one in sent[1].items()),
        ]
        for place, one, other in places:
            name = self._name_at(place)
            if name not in self._open or place in unknown:
                continue
            try:
                found = codec.changed(one, other)
            except RecursionError:
                raise self._too_deep() from None
            if found is None:
                continue
            what, path = type(found.sent).__name__, f" at {name}{found.path}" if found.path else ""
            raise ArgumentError(
                f"argument {name!r} of {self.task}: {what} would arrive as {type(found.back).__name__}{path}; annotate "
                f"it in the task, {name}: {found.annotation}, or let it with @app.task(loose=True)"
            )

    def _name_at(self, place: int | str) -> str:
        """The parameter that takes what stands at a position or under a name."""
        if isinstance(place, str):
            return place if place in self._keywords else self._others or place
        return self._positions[place] if place < len(self._positions) else self._rest or ""

    def _by_position(self, data: bytes) -> tuple[Positions, Keywords] | None:
        """Arguments in one decode, where all are given by position; None where more must be looked at."""
        # A pair, then a short array whose second byte tells its length: see the MessagePack specification.
        count = data[1] - 0x90 if len(data) > 2 and data[0] == 0x92 else -1
        if self._demanded or not self._least <= count <= min(len(self._positions), 15):
            return None
        try:
            found = (self._decoders.get(count) or self._decoder(count, count, ())).decode(data)
        except RecursionError:
            raise self._too_deep() from None
        except (msgspec.MsgspecError, TypeError, ValueError):
            return None
        return None if found[1] else found

    def _bound(self, args: Positions, kwargs: Keywords) -> tuple[Positions, Keywords]:
        """Arguments that fit the signature, each by position where it can be; one call has one form."""
        names = self._positions
        if len(args) > len(names) and self._rest is None:
            raise self._misfit(f"takes at most {len(names)} arguments by position, got {len(args)}")
        kwargs, more = dict(kwargs), list(args)
        for name in names[len(args) :]:
            if name not in kwargs or name not in self._keywords:
                break
            more.append(kwargs.pop(name))
        for name in kwargs:
            if name in names[: len(more)] and (name in self._keywords or self._others is None):
                raise self._misfit(f"got its argument {name!r} twice, by position and by name")
            if name not in self._keywords and self._others is None:
                raise self._misfit(f"takes no argument {name!r}", misplaced(self.task, name, kwargs[name]))
        for name in (*names[len(more) : self._least], *self._demanded):
            if name not in kwargs or name not in self._keywords:
                raise self._misfit(f"is missing its argument {name!r}")
        return tuple(more), kwargs

    def _names(self, args: Positions, kwargs: Keywords) -> Named:
        found = [
            (place, self._positions[place] if place < len(self._positions) else f"*{self._rest}", value)
            for place, value in enumerate(args)
        ]
        return [*found, *((name, name, value) for name, value in kwargs.items())]

    def _misfit(self, text: str, hint: str = "") -> ArgumentError:
        return ArgumentError(f"{self.task} {text}: it is {self.task}{self.text}{hint}")

    def _too_deep(self) -> ArgumentError:
        return ArgumentError(f"the arguments of {self.task} are {codec.TOO_DEEP}: send a flat list, or ids")

    def _decode(
        self, data: bytes, count: int, kwargs: Keywords, unknown: Unknown = frozenset()
    ) -> tuple[Positions, Keywords]:
        shape: Any = (count, tuple(kwargs)) if kwargs else count
        if unknown:
            shape = (shape, unknown)
        try:
            decoder = self._decoders.get(shape) or self._decoder(shape, count, kwargs, unknown)
            return decoder.decode(data)
        except RecursionError:
            raise self._too_deep() from None
        except (msgspec.ValidationError, TypeError) as error:
            raise ArgumentError(self._explain(str(error), kwargs)) from None

    def _decoder(
        self, shape: Any, count: int, names: Collection[str], unknown: Unknown = frozenset()
    ) -> msgspec.msgpack.Decoder[tuple[Positions, Keywords]]:
        types = self.types
        rest = types.get(self._rest or "", Any)
        positions = [types.get(name, Any) for name in self._positions[:count]]
        positions += [rest] * (count - len(positions))
        others = types.get(self._others or "", Any)
        keywords = {name: types.get(name, Any) if name in self._keywords else others for name in names}
        for place in unknown:
            if isinstance(place, int):
                positions[place] = Any
            else:
                keywords[place] = Any
        # To type checkers these are declarations, not values: hence the detour over Any.
        typed_dict, array = cast(Any, TypedDict), cast(Any, tuple)
        pair = array[array[tuple(positions)], typed_dict("Keywords", keywords) if keywords else dict[str, Any]]
        decoder: msgspec.msgpack.Decoder[tuple[Positions, Keywords]] = msgspec.msgpack.Decoder(pair)
        if len(self._decoders) >= SHAPES:
            self._decoders.clear()
        self._decoders[shape] = decoder
        return decoder

    def _explain(self, text: str, kwargs: Keywords) -> str:
        """``Expected `int`, got `str` - at `$[0][1][2]` `` with the argument's name and the path inside it."""
        what, _, path = text.rpartition(" - at `$")
        path = path.removesuffix("`")
        name, inside = self._culprit(path, kwargs)
        fault = _lower(what.replace("`", ""))
        return f"argument {name!r} of {self.task}: {fault}" + (f" at {name}{inside}" if inside else "")

    def _culprit(self, path: str, kwargs: Keywords) -> tuple[str, str]:
        if path.startswith("[0]["):
            number, _, inside = path[4:].partition("]")
            position = int(number)
            if position < len(self._positions):
                return self._positions[position], inside
            return f"*{self._rest}", f"[{position - len(self._positions)}]{inside}"
        named = path.removeprefix("[1].")
        name = max((key for key in kwargs if named.startswith(key)), key=len, default=named)
        return name, named[len(name) :]


class Unchecked:
    """The signature of a task whose code is elsewhere: everything that can be sent is."""

    def __init__(self, task: str) -> None:
        self.task = task

    def pack(self, args: Positions, kwargs: Keywords, limit: int) -> bytes:
        try:
            return codec.encode((args, kwargs), limit, f"arguments of {self.task}")
        except (ArgumentError, PayloadTooLarge) as error:
            raise _named(error, self.task, _unnamed(args, kwargs), limit) from None

    def pack_open(self, args: Positions, kwargs: Keywords, limit: int, slots: codec.Slotted) -> bytes:
        """See :meth:`Signature.pack_open`; nothing is checked."""
        return _packed(self.task, _unnamed(args, kwargs), limit, slots)[0]

    def accepts(self, name: str, count: int) -> bool:  # noqa: ARG002 - the form of Signature
        """Nobody knows what it takes, so it is given no more than was meant for it."""
        return False

    def unpack_result(self, data: bytes) -> Any:
        """Plain values: numbers, texts, bytes, lists and dictionaries."""
        try:
            return codec.decode(data or codec.NONE)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ResultUndecodable(f"the stored result of {self.task} is not MessagePack: {error}") from None


def _packed(task: str, values: Named, limit: int, slots: codec.Slotted) -> tuple[bytes, Unknown]:
    """Arguments with slots, and which of them have any."""
    raws, unknown = dict[int | str, msgspec.Raw](), set[int | str]()
    for place, name, value in values:
        met = slots.met
        raws[place] = msgspec.Raw(slots.encode(value, limit, f"argument {name!r} of {task}"))
        if slots.met != met:
            unknown.add(place)
    positions = [raw for place, raw in raws.items() if isinstance(place, int)]
    keywords = {place: raw for place, raw in raws.items() if isinstance(place, str)}
    return codec.encode((positions, keywords), limit, f"arguments of {task}"), frozenset(unknown)


def _unnamed(args: Positions, kwargs: Keywords) -> Named:
    """Arguments of a function that is not known: those by position are called by their number."""
    return [*((n, f"{n + 1}", value) for n, value in enumerate(args)), *((n, n, value) for n, value in kwargs.items())]


def _named(error: Exception, task: str, values: Named, limit: int) -> Exception:
    """Why arguments cannot be sent, with the name of the first one that cannot even be sent alone."""
    for _, name, value in values:
        try:
            codec.encode(value, limit, f"argument {name!r} of {task}{codec.culprit(name, value)}")
        except (ArgumentError, PayloadTooLarge) as named:
            return named
    return error


def _of_result(error: Exception) -> str:
    """What a decoder said of a result: the fault, and where in it."""
    what, _, path = str(error).partition(" - at `$")
    return _lower(what.replace("`", "")) + (f" at result{path.removesuffix('`')}" if path else "")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
