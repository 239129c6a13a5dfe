"""Schema 3: limited jobs wait in lanes, whose class stands in its queue; unique jobs hold a name; pauses have reasons.

Nothing is converted on the way up. Older programs would take a class for a job, and free no name, so they must not work
on such a store. On the way down the structures go that these programs do not know.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from headrace.errors import MigrationRefused
from headrace.migrations.step import Command, Piece, Reads, Step, scanned, walked
from headrace.model.ids import LENGTH
from headrace.protocol.keys import Keys

# Keys that the schema before does not know, by what comes before their colon, or whole.
_OURS = frozenset(
    {"limits", "limited", "limit", "overrides", "superseded", "gate", "behind", "waiting", "timers", "unique", "pauses"}
)
# Before the cursor of the way down while it looks for what refuses it, before anything is written.
_LOOK = "names:"


def up(keys: Keys, cursor: str, size: int) -> Reads:  # noqa: ARG001 - the form of a move
    """Nothing is to be written."""
    yield []
    return Piece()


def down(keys: Keys, cursor: str, size: int) -> Reads:
    """Look whether a job waits for a name; then remove what is known of limits and names, among the next keys.

    Raises:
        MigrationRefused: jobs wait in lanes or for names, or starts hold gates.
    """
    if not cursor:
        yield from _check_rest(keys)
    if not cursor or cursor.startswith(_LOOK):
        return (yield from _check_names(keys, cursor.removeprefix(_LOOK) or "0", size))
    following, names = yield from scanned(keys, cursor, size)
    gone = [name for name in names if name.partition(":")[0] in _OURS]
    writes: list[Command] = [("UNLINK", keys.prefix + name) for name in gone]
    if cursor == "0":
        # What stands for all timers.
        writes.append(("ZREM", keys("scheduled"), "~"))
    return Piece(writes, following, len(names), len(gone), 0.5 + walked(keys, following) / 2 if following else 1.0)


def _check_names(keys: Keys, cursor: str, size: int) -> Reads:
    """No unique job waits for the end of another, among the next keys: nothing would ever line it up."""
    replies = yield [("SCAN", cursor, "MATCH", f"{keys.prefix}unique:*", "COUNT", size)]
    after, found = replies[0]
    held = (yield [("GET", name) for name in found]) if found else []
    # The value of a name is the job that has it or, where another one waits for its end, both.
    followers = [value[LENGTH + 1 :].decode() for value in held if value and len(value) > LENGTH]
    if followers:
        raise MigrationRefused(
            f"unique jobs wait for others of their names, such as {followers[0]}: schema 2 knows no names, and its "
            f"workers would never start them; let them run or cancel them, then migrate"
        )
    share = walked(keys, after.decode()) / 2 if after != b"0" else 0.5
    return Piece(cursor=_LOOK + after.decode() if after != b"0" else "0", share=share)


def _check_rest(keys: Keys) -> Generator[Sequence[Command], list[Any], None]:
    queues, owners = yield [("SMEMBERS", keys("queues")), ("ZRANGE", keys("owners"), 0, -1)]
    lanes = [(queue, f"{keys.prefix}classes:{queue.decode('utf-8', 'surrogateescape')}") for queue in queues]
    held = [f"{keys.prefix}slots:{owner.decode('utf-8', 'surrogateescape')}" for owner in owners]
    replies = yield [("EXISTS", key) for _, key in lanes] + [("EXISTS", key) for key in held]
    waiting = [queue.decode("utf-8", "replace") for (queue, _), there in zip(lanes, replies, strict=False) if there]
    if waiting:
        raise MigrationRefused(
            f"limited jobs wait in {', '.join(sorted(waiting)[:5])}: schema 2 knows no limits, and its workers would "
            f"not find them; let them run or purge these queues, then migrate"
        )
    if any(replies[len(lanes) :]):
        raise MigrationRefused(
            "starts of a worker that died hold limits: let another worker take its jobs back, then migrate"
        )


STEP = Step(3, "limits in lanes, names of unique jobs", up, down)
