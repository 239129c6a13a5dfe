"""What a function's annotations say, and which of them MessagePack can be converted to. Pure."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from functools import partial
from inspect import Parameter, get_annotations, isroutine, unwrap
from typing import Any

import msgspec
from msgspec import inspect as kinds

from headrace.model.type_registry import Types, full_name


class Unresolved:
    """An annotation whose names are not known at run time, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Parameter (or ``return``) -> annotation; one that cannot be resolved does not spoil the others."""
    inner: Any = unwrap(function.func if isinstance(function, partial) else function)
    if not isroutine(inner) and not isinstance(inner, type):
        # The annotations of an object are those of its fields.
        inner = type(inner).__call__
    try:
        return typing.get_type_hints(inner, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation is any expression of the user's
        return {name: _alone(inner, name, value) for name, value in get_annotations(inner).items()}


def _alone(function: Any, name: str, annotation: Any) -> Any:
    holder = type("holder", (), {"__annotations__": {name: annotation}})
    try:
        return typing.get_type_hints(holder, getattr(function, "__globals__", {}), include_extras=True)[name]
    except Exception as error:  # noqa: BLE001
        return Unresolved(f"{annotation!r} cannot be resolved: {error}")


def reason_unchecked(annotation: Any, types: Types) -> str:
    """Why values are not converted to an annotation; empty when they are."""
    if isinstance(annotation, Unresolved):
        return annotation.reason
    try:
        msgspec.msgpack.Decoder(annotation)
        alien = next((cls for cls in _custom(kinds.type_info(annotation)) if not types.knows(cls)), None)
    except Exception as error:  # noqa: BLE001 - msgspec raises what it meets
        return str(error)
    return f"MessagePack has no {full_name(alien)}: app.types.add(...) says how one is sent" if alien else ""


def returned(function: Callable[..., Any], types: Types) -> Any:
    """The annotation of what a function returns; ``Parameter.empty`` where there is none to convert values to."""
    annotation = hints(function).get("return", Parameter.empty)
    return Parameter.empty if annotation is Parameter.empty or reason_unchecked(annotation, types) else annotation


def is_open(annotation: Any) -> bool:
    """Whether an annotation leaves the type of a value in it to MessagePack: Any, object, a bare list."""
    return any(
        isinstance(kind, kinds.AnyType) or (isinstance(kind, kinds.CustomType) and kind.cls is object)
        for kind in _within(kinds.type_info(annotation))
    )


def has_records(annotation: Any, types: Types | None = None) -> bool:
    """Whether values of an annotation are, or hold, records whose classes may be extended: what that adds gets lost.

    Args:
        types: the application's: it says itself what becomes of the classes that it added.
    """
    kinds_of_records = (kinds.StructType, kinds.DataclassType, kinds.NamedTupleType, kinds.TypedDictType)
    return any(
        isinstance(kind, kinds_of_records)
        or (
            isinstance(kind, kinds.CustomType)
            and hasattr(kind.cls, "model_fields")
            and not (types is not None and types.has_added(kind.cls))
        )
        for kind in _within(kinds.type_info(annotation))
    )


def _custom(kind: Any) -> Iterator[type]:
    """Types that msgspec knows nothing of."""
    return (inner.cls for inner in _within(kind) if isinstance(inner, kinds.CustomType))


def _within(kind: Any) -> Iterator[kinds.Type]:
    """A type and those in it; fields of records are not looked into."""
    yield kind
    for name in ("item_type", "key_type", "value_type", "type"):
        inner = getattr(kind, name, None)
        if isinstance(inner, kinds.Type):
            yield from _within(inner)
    for name in ("item_types", "types"):
        for inner in getattr(kind, name, ()):
            yield from _within(inner)
