"""Values as bytes that are equal for equal values: sets and dictionaries have no order of their own. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from headrace.model.type_registry import Types


def sorted_form(value: object, types: Types) -> bytes:
    """The bytes of a value that can be sent: of equal values the same, in each process."""
    try:
        return types.sorting_encoder.encode(value)
    except TypeError:
        # msgspec sorts no keys but texts, and no members of a set that cannot be compared: enumerations, 1 and "a".
        return _form(value, types)


def orders(plain: object) -> list[list[Any]]:
    """The keys, in their order, of those dictionaries within a decoded value that are not sorted by it."""
    found, left = list[list[Any]](), [plain]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            entries: dict[Any, Any] = one  # pyright: ignore[reportUnknownVariableType]
            if (keys := [*entries]) != sorted(keys, key=repr):
                found.append(keys)
            left += entries.values()
        elif isinstance(one, list):
            left += one  # pyright: ignore[reportUnknownVariableType]
    return sorted(found, key=repr)


def _form(value: Any, types: Types) -> bytes:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        parts: Any = ["dict", sorted((_form(key, types), _form(one, types)) for key, one in mapping.items())]
    elif isinstance(value, (set, frozenset)):
        parts = ["set", sorted(_form(one, types) for one in cast("set[Any]", value))]
    elif isinstance(value, (list, tuple)):
        parts = ["list", [_form(one, types) for one in cast("list[Any]", value)]]
    elif fields := list(_fields(value)):
        parts = ["record", [(name, _form(getattr(value, name), types)) for name in fields]]
        if isinstance(value, msgspec.Struct):
            parts.append(value.__struct_config__.tag)
    else:
        try:
            return _form(types.encode(value), types)
        except TypeError:
            # It is none of theirs: MessagePack has a form for it.
            return types.encoder.encode(value)
    return types.encoder.encode(parts)


def _fields(value: Any) -> Iterator[str]:
    """Those of a Struct, a dataclass or an attrs class, that have a value."""
    kind = cast(Any, type(value))
    names: Any = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    names = names or [one.name for one in getattr(kind, "__attrs_attrs__", ())]
    return (name for name in names if hasattr(value, name))
