"""Values that come back from MessagePack as another type than they were sent with, and results as bytes. Pure."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

import msgspec

from headrace.errors import ArgumentError, ResultMismatch
from headrace.model import codec
from headrace.model.hidden_values import has_secret_mark
from headrace.model.type_registry import Types, has_records, leaves_type_open

# What MessagePack gives back as it was, whatever reads it.
_KEPT = frozenset({type(None), bool, int, float, str, bytes})
_MADE = frozenset({list, dict})


class Change(NamedTuple):
    """A value that comes back with another type where no annotation says which.

    Attributes:
        path: to the value, such as ``[0]['when']``; empty where it is the whole.
        sent: the value.
        back: what comes back for it.
        annotation: of the whole, with which it would come back as it was sent; empty for a record.
        is_key: whether it is a record that is the key of a dictionary.
    """

    path: str
    sent: object
    back: object
    annotation: str
    is_key: bool = False

    @property
    def place(self) -> str:
        return self.path if self.path[:1] in ("", " ") else f" at {self.path}"


def changed(sent: object, back: object) -> Change | None:
    """The first value that came ``back`` from MessagePack as another type, a tuple as a list, say; None: none did. A
    subclass that comes back as what it extends, such as a defaultdict as a dict, counts as unchanged, unless it is an
    enum's.
    """
    kind = type(sent)
    # MessagePack has lists and dictionaries: if something else came of one, an annotation made it.
    if kind in _KEPT or (kind in _MADE and type(back) not in _MADE):
        return None
    if not isinstance(sent, type(back)) or (isinstance(sent, Enum) and type(back) is not kind):
        return Change("", sent, back, kind.__name__ + _OF_WHAT.get(kind, ""))
    if isinstance(sent, (list, tuple)) and isinstance(back, (list, tuple)):
        return _changed_item(cast("Sequence[object]", sent), cast("Sequence[object]", back))
    if isinstance(sent, (set, frozenset)) and isinstance(back, (set, frozenset)):
        return _changed_member(cast("AbstractSet[object]", sent), cast("AbstractSet[object]", back))
    if isinstance(sent, dict) and isinstance(back, dict):
        return _changed_entry(cast("dict[object, object]", sent), cast("dict[object, object]", back))
    return None


def change_of(what: str, sent: object, back: object) -> Change | None:
    """See :func:`changed`. Raises ArgumentError: the value, which the error calls ``what``, is nested too deeply."""
    try:
        return changed(sent, back)
    except RecursionError:
        raise ArgumentError(f"{what} is {codec.TOO_DEEP}: make it flatter, or several of it") from None


_OF_WHAT: dict[type, str] = {tuple: "[...]", set: "[...]", frozenset: "[...]"}


def _changed_item(sent: Sequence[object], back: Sequence[object]) -> Change | None:
    if set(map(type, sent)) <= _KEPT:
        return None
    form = "list[{}]" if isinstance(sent, list) else "tuple[{}, ...]"
    for n, pair in enumerate(zip(sent, back, strict=True)):
        if (found := changed(*pair)) is not None:
            return Change(f"[{n}]{found.path}", *found[1:3], form.format(found.annotation))
    return None


def _changed_member(sent: AbstractSet[object], back: AbstractSet[object]) -> Change | None:
    if set(map(type, sent)) <= _KEPT:
        return None
    # A set has no order: a member that did not come back has become one that was not sent.
    same, other = {one: one for one in back}, next((one for one in back if one not in sent), None)
    for one in sent:
        if (found := changed(one, same.get(one, other))) is not None:
            return Change(" in it", *found[1:3], f"{type(sent).__name__}[{found.annotation}]")
    return None


def _changed_entry(sent: dict[object, object], back: dict[object, object]) -> Change | None:
    # Keys that differ in type alone become one: then the pairs below meet a changed key first.
    for (key, value), (key_back, value_back) in zip(sent.items(), back.items(), strict=False):
        if (found := changed(key, key_back)) is not None:
            return Change(" as a key", *found[1:3], f"dict[{found.annotation}, ...]")
        if (found := changed(value, value_back)) is not None:
            return Change(f"[{key!r:.40}]{found.path}", *found[1:3], f"dict[{type(key).__name__}, {found.annotation}]")
    return None


def narrowed(sent: object, back: object) -> Change | None:
    """The first record that came ``back`` as a class that its own extends, without what that adds; None: none did.

    A record that is the key of a dictionary counts, too: without annotations it is read as a dictionary, which can be
    no key; and a pydantic model that did not come back equal. Records are dataclasses, attrs classes, Structs and
    models, at any depth.
    """
    # Every job with a record passes here, and most records hold no others.
    flat = type(sent) is type(back) and not _holding(cast(Any, type(back))) and not hasattr(type(back), "model_fields")
    if flat and not isinstance(back, (list, tuple, dict)):
        return None
    stack: list[tuple[str, Any, Any]] = [("", sent, back)]
    unequal: Change | None = None
    while stack:
        path, one, other = stack.pop()
        kind = cast(Any, type(other))
        if (names := _holding(kind)) is None:
            if isinstance(one, dict) and (key := _first_record_key(cast("dict[object, object]", one))) is not None:
                return Change(path, key, {}, "", is_key=True)
            stack += _parts(path, one, other)
        elif type(one) is kind:
            if unequal is None and (lost := _lost(one, other)) is not None:
                unequal = Change(f"{path}.{lost}", one, other, "")
            stack += [(f"{path}.{name}", getattr(one, name, None), getattr(other, name, None)) for name in names]
        elif isinstance(one, kind):
            return Change(path, one, other, "")
    return unequal


def _lost(model: Any, back: Any) -> str | None:
    """The field of a pydantic model that did not come back equal; None: all did, or it is not such a model."""
    kind = cast(Any, type(model))
    if not hasattr(kind, "model_fields") or model == back:
        return None
    values: list[dict[str, Any]] = [
        {name: getattr(one, name, None) for name in kind.model_fields} | (one.__pydantic_private__ or {})
        for one in (model, back)
    ]
    pairs = [(name, value, values[1].get(name)) for name, value in values[0].items()]
    # NaN is not equal to itself.
    return next((name for name, one, other in pairs if one != other and repr(one) != repr(other)), None)


def refused(task: str, name: str, found: Change, reason: str, secret: bool) -> ArgumentError:
    """Why an argument would not arrive as it is; ``reason`` the annotation does not help. ``secret``: name no place."""
    path = f" at {name}{found.path}" if found.path and not secret else ""
    fault = (
        f"argument {name!r} of {task}: {type(found.sent).__name__} would arrive as {type(found.back).__name__}{path}"
    )
    if type(found.sent) is type(found.back) and not found.is_key:
        return ArgumentError(
            f"argument {name!r} of {task}: {type(found.sent).__name__} would not arrive equal{path}: the model leaves "
            f"that out or changes it when it is dumped and validated; send its values instead, or let it with "
            f"@app.task(loose=True)"
        )
    if reason:
        return ArgumentError(f"{fault}; its annotation does not help: {reason}")
    if found.is_key:
        return ArgumentError(f"argument {name!r} of {task}{path}: {codec.RECORD_KEY}")
    if found.annotation:
        advice = f"annotate it in the task, {name}: {found.annotation}"
    else:
        fault, advice = f"{fault}, without what it adds", f"annotate it as {type(found.sent).__name__}"
    return ArgumentError(f"{fault}; {advice}, or let it with @app.task(loose=True)")


def _parts(path: str, one: Any, other: Any) -> Iterable[tuple[str, Any, Any]]:
    if isinstance(other, (list, tuple)) and isinstance(one, (list, tuple)):
        items, others = cast("Sequence[object]", one), cast("Sequence[object]", other)
        met = set(map(type, others))
        if met <= _KEPT or (met == set(map(type, items)) and all(_holding(kind) == () for kind in met)):
            return ()
        return [(f"{path}[{n}]", *pair) for n, pair in enumerate(zip(items, others, strict=False))]
    if isinstance(other, dict) and isinstance(one, dict):
        entries = cast("Mapping[object, object]", one)
        values = cast("Mapping[object, object]", other).items()
        return [(f"{path}[{key!r:.40}]", entries[key], value) for key, value in values if key in entries]
    return ()


def _first_record_key(entries: dict[object, object]) -> object | None:
    if set(map(type, entries)) <= _KEPT:
        return None
    records = (key for key in entries if _holding(cast(Any, type(key))) is not None)
    return next(
        (key for key in records if not getattr(getattr(key, "__struct_config__", None), "array_like", False)), None
    )


@cache
def _holding(kind: Any) -> tuple[str, ...] | None:
    """The fields of a record in which there may be records; None for what is none."""
    if not any(hasattr(kind, name) for name in _RECORDS):
        return None
    try:
        found = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation is any expression of the user's
        found = dict.fromkeys(getattr(kind, "__annotations__", {}), Any)
    return tuple(name for name, annotation in found.items() if _may_hold(annotation))


_RECORDS = ("__struct_fields__", "__dataclass_fields__", "__attrs_attrs__", "model_fields")


def _may_hold(annotation: Any) -> bool:
    try:
        return has_records(annotation) or leaves_type_open(annotation)
    except Exception:  # noqa: BLE001 - msgspec raises what it meets
        return True


# What a decoder says ends with the place: `$[1].a`, or `key` in `$[1].a` of what is wrong in a key of a dictionary.
_PLACE = re.compile(r"(.*) - at ((?:`key[^`]*` in )*)`\$([^`]*)`", re.DOTALL)
# It shows what no member of an enumeration, no literal and no tag is equal to.
_SHOWN = re.compile(r"(Invalid(?: enum)? value) .*", re.DOTALL)


class ResultType:
    """What one function returns.

    Attributes:
        task: the task's name, for messages.
    """

    def __init__(self, task: str, returns: Any, types: Types, *, loose: bool = False) -> None:
        self.task = task
        self._open = not loose and leaves_type_open(returns)
        self._returns = returns
        self._types = types

    def pack(self, value: object, limit: int) -> bytes:
        """A result as it is stored: what its readers would refuse is refused here. Raises ArgumentError: it has a type
        that cannot be sent. Raises PayloadTooLarge: it takes more than ``limit`` bytes. Raises ResultMismatch: it does
        not fit the return annotation, or would come back as another type for want of one.
        """
        if value is None and self._may_be_none:
            return codec.NONE
        data = codec.encode(value, limit, f"result of {self.task}", self._types.encoder)
        if self._returns is not Any or (self._open and type(value) not in _KEPT):
            try:
                back = self._decoder.decode(data)
                found = changed(value, back) if self._open else None
            except RecursionError:
                raise ArgumentError(f"result of {self.task} cannot be sent: {codec.TOO_DEEP}") from None
            except (msgspec.MsgspecError, ValueError, TypeError) as error:
                fault = result_misfit(error, self._returns)
                raise ResultMismatch(f"what {self.task} returned does not fit its return annotation: {fault}") from None
            if found is not None:
                raise ResultMismatch(
                    f"what {self.task} returned{found.place}: {type(found.sent).__name__} would come back as "
                    f"{type(found.back).__name__}; annotate what it returns, -> {found.annotation}, or let it with "
                    f"@app.task(loose=True)"
                )
        return data

    def unpack(self, data: bytes) -> Any:
        """The result that :meth:`pack` packed, as the annotation says. Raises ResultMismatch: it does not fit."""
        try:
            return self._decoder.decode(data or codec.NONE)
        except RecursionError:
            raise ResultMismatch(
                f"the stored result of {self.task} is {codec.TOO_DEEP}: return a flatter value "
                f"(job.refresh().packed_result has the bytes)"
            ) from None
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            hint = "another version of the code may have returned it (job.refresh().packed_result has the bytes)"
            if data == codec.NONE:
                hint = f"a middleware may have swallowed what it raised (job.refresh().swallowed), or {hint}"
            fault = result_misfit(error, self._returns)
            raise ResultMismatch(
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


def result_misfit(error: Exception, returns: Any) -> str:
    fault, keys, path = misfit(str(error), secret=has_secret_mark(returns))
    return fault + (f" at {keys}result{path}" if keys or path else "")


def misfit(text: str, *, secret: bool) -> tuple[str, str, str]:
    """What a decoder said of a value, without the value: the fault, ``key in `` for one in a key, and the path."""
    found = _PLACE.fullmatch(text)
    what, keys, path = found.groups() if found else (text, "", "")
    what = _SHOWN.sub(r"\1", what).replace("`", "")
    fault = "it is secret, and does not fit" if secret else what[:1].lower() + what[1:]
    return fault, keys.replace("`", ""), path
