"""Plain values that nobody can change: what the cache hands to all its callers is one object.

Pure. Freezing happens once, when a value arrives; a hit costs nothing for it.
"""

from __future__ import annotations

import copy
import sys
from typing import Any, NoReturn, cast

from headrace.errors import FrozenValue

# What a number, or a text beside its characters, takes.
SCALAR = 56
_CONTAINERS = (dict, list)


def _refuse(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise FrozenValue(
        f"this {kind} comes from the cache and is shared by the whole process: change a copy "
        f"({kind}(value), or copy.deepcopy(value) for what is in it), and store that with cache.set"
    )


class FrozenDict(dict[Any, Any]):
    """A dict that refuses to be changed. ``dict(value)`` and ``copy.deepcopy(value)`` make plain ones."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> Any:
        return dict, (list(self.items()),)


class FrozenList(list[Any]):
    """A list that refuses to be changed. ``list(value)`` and ``copy.deepcopy(value)`` make plain ones."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> Any:
        return list, (list(self[:]),)


def freeze(value: Any) -> tuple[Any, int]:
    """A decoded MessagePack, used up, as one that cannot be changed any more; and the memory that its containers take.

    In bytes, estimated, without what is in texts and bytes: the encoded size says that.
    """
    size = SCALAR
    kind = type(cast(object, value))
    if kind is dict:
        plain: dict[Any, Any] = value
        for name, inner in plain.items():
            if type(inner) in _CONTAINERS:
                plain[name], more = freeze(inner)
                size += more
        value = FrozenDict(plain)
        return value, size + 2 * SCALAR * len(plain) + sys.getsizeof(value)
    if kind is list:
        row: list[Any] = value
        for place, inner in enumerate(row):
            if type(inner) in _CONTAINERS:
                row[place], more = freeze(inner)
                size += more
        value = FrozenList(row)
        return value, size + SCALAR * len(row) + sys.getsizeof(value)
    return value, size
