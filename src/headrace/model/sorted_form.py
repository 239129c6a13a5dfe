"""Values as bytes that are equal for equal values: sets and dictionaries have no order of their own. Pure."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from headrace.model.type_registry import Types

_SIMPLE = frozenset({int, bool, str, bytes, type(None)})


def sorted_form(value: object, types: Types) -> bytes:
    """The bytes of a value that can be sent: of equal values the same, in each process."""
    if _is_sortable(value, types):
        with contextlib.suppress(TypeError):
            # msgspec sorts no keys but texts, and no members of a set that cannot be compared: enumerations, 1 and "a".
            return types.sorting_encoder.encode(value)
    return _form(value, types)


def _is_sortable(value: object, types: Types) -> bool:
    """Whether members of sets have one order: frozensets and NaN can be compared, and none of two is the smaller."""
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        one, is_member = stack.pop()
        if type(one) in _SIMPLE:
            continue
        if is_member and (isinstance(one, frozenset) or one != one):  # noqa: PLR0124 - so NaN is told
            return False
        if isinstance(one, (set, frozenset)):
            stack += [(member, True) for member in cast("set[Any]", one)]
        elif isinstance(one, (list, tuple)):
            stack += [(item, is_member) for item in cast("list[Any]", one) if type(item) not in _SIMPLE]
        elif isinstance(one, Mapping):
            mapping: Mapping[Any, Any] = one  # pyright: ignore[reportUnknownVariableType]
            stack += [(item, is_member) for item in mapping.values()]
        elif fields := list(_fields(one)):
            stack += [(getattr(one, name), is_member) for name in fields]
        else:
            with contextlib.suppress(TypeError):
                stack.append((types.encode(one), is_member))
    return True


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
