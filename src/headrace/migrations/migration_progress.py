"""What a migration shows of itself while it works."""

from __future__ import annotations

import msgspec

from headrace.migrations.step import Leg, Unfinished


class StoreState(msgspec.Struct, frozen=True):
    """What a store says of itself.

    Attributes:
        schema: its layout, 0 where nothing is.
        now: server time, microseconds.
        server: which run of which server this is: cursors mean nothing to another.
        workers: incarnations whose lease has not ended; ten at most.
        owner: who holds, or held, the migration's lease; ``until`` is its end.
        unfinished: what was begun and not ended.
    """

    schema: int
    now: int
    server: str
    workers: tuple[str, ...]
    owner: str
    until: int
    unfinished: Unfinished | None


class Progress(msgspec.Struct, frozen=True):
    """How far a leg has come: keys looked at and changed by this run, and its share of the whole, 0 to 1."""

    leg: Leg
    read: int = 0
    changed: int = 0
    share: float = 0.0


def silent(_: Progress) -> None:
    pass
