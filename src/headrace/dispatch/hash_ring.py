"""Consistent hashing: which member a key belongs to, such that few keys move when members come and go. Pure.

Each member owns ``POINTS`` points on a circle of 32 bits, a key the next point after its own. One member more among n
takes about 1/(n+1) of the keys, evenly from all others, and no key moves between those (Karger et al., 1997). The
circle is cut into ``SLOTS`` once, so that finding an owner is one look into a list, however many members there are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Generic
from zlib import crc32

from headrace.dispatch.load_index import M
from headrace.errors import OptionsError

Key = str | bytes | int

# 128 points keep the busiest of ten members within about a quarter of the mean.
POINTS = 128
# Always the same number: if it grew with the members, keys would move between those that stay.
SLOTS = 1 << 16
_PER_DIGEST = struct.Struct("!16I")


def slot(key: Key) -> int:
    """Where a key lies on the circle: the same in every process, on every machine, for ever.

    Python's own ``hash`` of a text differs between processes.

    Raises:
        OptionsError: the key is neither a text, bytes nor an integer.
    """
    if isinstance(key, str):
        check = crc32(key.encode())
    elif isinstance(key, bytes):
        check = crc32(key)
    elif isinstance(key, int):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        check = crc32(b"%d" % key)
    else:
        raise OptionsError(f"a key is a text, bytes or an integer, not {type(key).__name__}: pass one that names it")
    return (check ^ check >> 16) & 0xFFFF


class Ring(Generic[M]):
    """An immutable circle of members."""

    __slots__ = ("owners",)

    def __init__(self, members: Iterable[M]) -> None:
        """Cost: O(members log members + SLOTS); a few milliseconds for a hundred."""
        owned: dict[int, M] = {}
        for member in members:
            for part in range(POINTS // 16):
                digest = blake2b(f"{member.id}/{part}".encode()).digest()
                # Where two points fall together the same one wins, whatever the order of the members.
                for place in _PER_DIGEST.unpack(digest):
                    if place not in owned or str(member.id) < str(owned[place].id):
                        owned[place] = member
        places = sorted(owned)
        self.owners: list[M] = []
        for place in places:
            # A slot belongs to the first point at or after its beginning.
            self.owners += [owned[place]] * ((place >> 16) + 1 - len(self.owners))
        # The last point's successor is the first one: the circle closes.
        self.owners += [owned[places[0]]] * (SLOTS - len(self.owners))

    def owner(self, key: Key) -> M:
        """The member that this key belongs to. Cost: O(1)."""
        return self.owners[slot(key)]
