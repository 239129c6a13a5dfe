"""What a migration is made of: steps between two layouts, the pieces they work in, and which steps a store needs.

Pure: a step asks for replies and says what to write; it never sees a connection. The migrator applies a piece's writes
together with the place where the next piece begins, so a step needs no memory and may be ended anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from redis.crc import key_slot

from headrace.errors import OptionsError
from headrace.protocol.keys import Keys

Command: TypeAlias = tuple[str | bytes | int, ...]
Direction = Literal["up", "down"]


class Piece(msgspec.Struct, frozen=True):
    """What one piece of a step came to.

    Attributes:
        writes: commands, applied all or none; harmless when they are applied twice.
        cursor: where the next piece begins; empty when the step is done.
        read: keys looked at.
        changed: keys that the writes concern.
        share: how much of the step is behind us after this piece, 0 to 1.
    """

    writes: Sequence[Command] = ()
    cursor: str = ""
    read: int = 0
    changed: int = 0
    share: float = 1.0


Reads: TypeAlias = Generator[Sequence[Command], list[Any], Piece]
# From a place (empty: the start) and a size (keys, roughly) to what there is to write.
Move: TypeAlias = Callable[[Keys, str, int], Reads]


class Step(msgspec.Struct, frozen=True):
    """The way from one layout to the next, and back.

    Attributes:
        version: the layout that ``up`` leads to and ``down`` leads away from.
        title: what changes, in a few words that follow "schema 2:".
        up, down: one piece of the way; it yields commands that only read, and gets their replies.
        needed: whether this version's programs must refuse a store that lacks the step.
    """

    version: int
    title: str
    up: Move
    down: Move
    needed: bool = True


class Leg(msgspec.Struct, frozen=True):
    """One step of a journey, in one direction, from where it was left."""

    step: Step
    direction: Direction
    cursor: str = ""

    @property
    def move(self) -> Move:
        return self.step.up if self.direction == "up" else self.step.down

    @property
    def leads_to(self) -> int:
        return self.step.version if self.direction == "up" else self.step.version - 1


class Unfinished(msgspec.Struct, frozen=True):
    """A leg that a migration began and did not end: layout, direction, and where its next piece begins."""

    version: int
    direction: Direction
    cursor: str


class StoreState(msgspec.Struct, frozen=True):
    """What a store says of itself.

    Attributes:
        schema: its layout, 0 where nothing is.
        now: server time, microseconds.
        server: the run of the server: cursors mean nothing to another.
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


def state_of(
    schema: bytes | None, mark: Sequence[bytes], time: Sequence[bytes], owners: Sequence[bytes], server: str
) -> StoreState:
    """What replies say of a store. Raises ValueError, KeyError: no Headrace wrote its schema or its mark."""
    facts = {mark[n].decode(): mark[n + 1].decode() for n in range(0, len(mark), 2)}
    now, found, under_way = int(time[0]) * 1_000_000 + int(time[1]), int(schema or 0), None
    if facts:
        # Cursors are of one run of a server: after a restart its table is arranged anew.
        cursor = facts["cursor"] if facts["server"] == server else ""
        under_way = Unfinished(int(facts["version"]), "up" if facts["direction"] == "up" else "down", cursor)
    if found < 0 or (under_way is not None and under_way.version < 2):
        raise ValueError("there is no such layout")
    alive = tuple(owners[n].decode() for n in range(0, len(owners), 2) if float(owners[n + 1]) > now)
    return StoreState(found, now, server, alive, facts.get("owner", ""), int(facts.get("until", 0)), under_way)


class Progress(msgspec.Struct, frozen=True):
    """How far a leg has come: keys looked at and changed by this run, and its share of the whole, 0 to 1."""

    leg: Leg
    read: int = 0
    changed: int = 0
    share: float = 0.0


def in_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    found = sorted(steps, key=lambda step: step.version)
    versions = [step.version for step in found]
    for wanted, version in enumerate(versions, 2):
        if version != wanted:
            fault = f"there are two steps to {version}" if version < wanted else f"there is no step to {wanted}"
            raise OptionsError(f"{fault}: versions count up from 2, one step each")
    return tuple(found)


def plan(steps: Sequence[Step], schema: int, target: int, unfinished: Unfinished | None = None) -> list[Leg]:
    """The legs from a store's layout to another. A leg that was begun goes on, or is taken back from its start: half of
    a step fits neither layout. ``steps``: in order. Raises OptionsError: no step leads to the target.
    """
    newest = steps[-1].version if steps else 1
    if not 1 <= target <= newest:
        raise OptionsError(f"there is no schema {target}: this Headrace knows 1 to {newest}")
    by_version = {step.version: step for step in steps}
    # Half a step belongs to either side: from there, up leads to its version, down to the one before.
    low, high, cursors = schema, schema, dict[tuple[int, Direction], str]()
    if unfinished is not None:
        low, high = unfinished.version - 1, unfinished.version
        cursors[unfinished.version, unfinished.direction] = unfinished.cursor
    found: list[tuple[int, Direction]] = []
    if target > low:
        found = [(version, "up") for version in range(low + 1, target + 1)]
    elif target < high:
        found = [(version, "down") for version in range(high, target, -1)]
    return [Leg(by_version[version], way, cursors.get((version, way), "")) for version, way in found]


def scanned(keys: Keys, cursor: str, size: int) -> Generator[Sequence[Command], list[Any], tuple[str, list[str]]]:
    """Names, without their prefix, of the next keys; and the cursor after them, empty at the end."""
    replies = yield [("SCAN", cursor or "0", "MATCH", f"{keys.prefix}*", "COUNT", size)]
    after, found = replies[0]
    names = dict.fromkeys(key.decode("utf-8", "surrogateescape").removeprefix(keys.prefix) for key in found)
    return ("" if after == b"0" else after.decode()), list(names)


def raw(commands: Sequence[Command]) -> list[list[bytes | int]]:
    """Commands whose keys are named as the scan found them: what other programs put among ours need not be UTF-8."""
    return [[w.encode("utf-8", "surrogateescape") if isinstance(w, str) else w for w in words] for words in commands]


def walked(keys: Keys, cursor: str) -> float:
    """How much of the keyspace a SCAN for these keys has seen at this cursor, 0 to 1.

    Servers count a cursor up from its highest bit, whatever the size of their table, so its bits in reverse are the
    share: a progress bar needs no count of what there is. Newer nodes of a cluster have a table for each slot, and the
    lowest 14 bits of the cursor are the slot.
    """
    number = int(cursor or 0)
    if number & (1 << 14) - 1 == key_slot(keys.prefix.encode()):
        number >>= 14
    return int(f"{number & (1 << 64) - 1:064b}"[::-1], 2) / (1 << 64)
