"""What every list of an application gives: a piece of it, and where the next one begins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A piece of a list, itself a sequence of its rows.

    Attributes:
        rows: what is listed. Fewer than asked for when a filter passed over most of those looked at.
        count: how many the whole list has.
        next: what to give as ``after`` for the next page; None when there is no more.
    """

    rows: Sequence[T]
    count: int
    next: str | None

    def __iter__(self) -> Iterator[T]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, n: int) -> T:
        return self.rows[n]
