"""Schema 2: workflows are found by index, and a queue's wake-up token is a sorted set.

Owns the one walk over the keyspace that makes schema 2 of schema 1, and the one back. Every write states what shall be,
so a piece may be applied twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from headrace.errors import MigrationRefused
from headrace.migrations.step import Command, Piece, Reads, Step, scanned, walked
from headrace.model.ids import is_flow, is_node, milliseconds_of
from headrace.protocol.keys import Keys

STATES = ("pending", "running", "stopped", "succeeded", "failed", "cancelled")
FINAL = ("succeeded", "failed", "cancelled")
# Fields of a workflow's record that the step reads, in this order.
_FIELDS = ("definition", "st", "created", "ttl")


class _Writes(msgspec.Struct):
    """What a piece has to write: commands, and index rows gathered into one command an index."""

    keys: Keys
    now: int
    commands: list[Command] = msgspec.field(default_factory=list[Command])
    rows: dict[str, list[str | int]] = msgspec.field(default_factory=lambda: defaultdict[str, list[str | int]](list))
    changed: int = 0

    def row(self, index: str, score: int, id: str) -> None:
        self.rows[index] += (score, id)

    def all(self) -> list[Command]:
        return [*self.commands, *(("ZADD", index, *rows) for index, rows in self.rows.items())]


def _piece(writes: _Writes, cursor: str, read: int) -> Piece:
    return Piece(writes.all(), cursor, read, writes.changed, walked(writes.keys, cursor) if cursor else 1.0)


def _ids(names: list[str], kind: str) -> list[str]:
    return [name.removeprefix(kind) for name in names if name.startswith(kind)]


def up(keys: Keys, cursor: str, size: int) -> Reads:
    after, names = yield from scanned(keys, cursor, size)
    queues = _ids(names, "wake:")
    flows = [id for id in _ids(names, "flow:") if is_flow(id)]
    nodes = [id for id in _ids(names, "job:") if is_node(id)]
    replies = yield [
        ("TIME",),
        *(("TYPE", keys.wake(queue)) for queue in queues),
        *(("PTTL", keys.job(id)) for id in nodes),
        *(command for id in flows for command in _look_at(keys, id)),
    ]
    writes = _Writes(keys, int(replies[0][0]) * 1_000_000 + int(replies[0][1]))
    types, rest = replies[1 : 1 + len(queues)], replies[1 + len(queues) :]
    for queue, kind in zip(queues, types, strict=True):
        if kind == b"list":
            writes.commands += (("DEL", keys.wake(queue)), ("ZADD", keys.wake(queue), 0, ""))
            writes.changed += 1
    for id, ttl in zip(nodes, rest, strict=False):
        if ttl > 0:
            # A node lives as long as its workflow; should the server drop it, the workflow could never end.
            writes.commands.append(("PERSIST", keys.job(id)))
            writes.changed += 1
    facts = rest[len(nodes) :]
    for id, record, ttl, abandoned in zip(flows, facts[::3], facts[1::3], facts[2::3], strict=True):
        if not isinstance(record, Exception) and not abandoned:
            _index(writes, id, [value.decode("utf-8", "replace") if value else "" for value in record], ttl)
    return _piece(writes, after, len(names))


def _look_at(keys: Keys, id: str) -> tuple[Command, ...]:
    # Whose making was not finished is not a workflow yet, and must not seem to be a pending one.
    return ("HMGET", keys.flow(id), *_FIELDS), ("PTTL", keys.flow(id)), ("ZSCORE", keys("chores"), f"abandon:{id}")


def _index(writes: _Writes, id: str, record: list[str], remaining: int) -> None:
    """Give a workflow its index rows, and its record what older ones lack; a record in no known state is left alone.
    ``remaining``: milliseconds until the server would drop the record, negative when it would not.
    """
    definition, state, created, ttl = record
    keys, flow = writes.keys, writes.keys.flow(id)
    missing = {} if state else {"st": "pending"}
    state = state or "pending"
    if state not in STATES:
        return
    if not created.isdigit():
        created = missing["created"] = str(milliseconds_of(id) * 1000)
    if remaining > 0:
        writes.commands.append(("PERSIST", flow))
        if state in FINAL:
            writes.row(keys("lapses"), writes.now + remaining * 1000, id)
        else:
            missing["ttl"] = str(remaining * 1000)
    if not ttl:
        # Who made it asked for no end: today's setting must not give it one.
        missing.setdefault("ttl", "-1")
    if missing:
        writes.commands.append(("HSET", flow, *(word for pair in missing.items() for word in pair)))
    for view in {keys.flows(f"{first}|{second}") for first in ("", definition) for second in ("", state)}:
        writes.row(view, int(created), id)
    writes.changed += 1


def down(keys: Keys, cursor: str, size: int) -> Reads:
    """Drop the indexes among the next keys, and turn wake-up sets into lists. Records keep what they have. Raises
    MigrationRefused: workflows run or are stopped, or have chores left: the older programs know nothing of them.
    """
    if not cursor:
        yield from _check_rest(keys)
    after, names = yield from scanned(keys, cursor, size)
    queues = _ids(names, "wake:")
    replies = yield [("TYPE", keys.wake(queue)) for queue in queues]
    writes = _Writes(keys, 0)
    for queue, kind in zip(queues, replies, strict=True):
        if kind == b"zset":
            writes.commands += (("DEL", keys.wake(queue)), ("RPUSH", keys.wake(queue), 1))
            writes.changed += 1
    for view in _ids(names, "flows:"):
        writes.commands.append(("UNLINK", f"{keys.prefix}flows:{view}"))
        writes.changed += 1
    return _piece(writes, after, len(names))


def _check_rest(keys: Keys) -> Generator[Sequence[Command], list[Any], None]:
    running, stopped, chores = yield [
        *(("ZCARD", keys.flows(f"|{state}")) for state in ("running", "stopped")),
        ("ZCARD", keys("chores")),
    ]
    if running or stopped:
        raise MigrationRefused(
            f"{running} workflows run and {stopped} are stopped: schema 1 knows no workflows, and its workers would "
            f"run their jobs as if each stood alone; let them end or cancel them, then migrate"
        )
    if chores:
        raise MigrationRefused(
            f"{chores} chores of workflows are not done: let a worker run until there are none (an hour at most), then "
            f"migrate"
        )


STEP = Step(2, "workflows by index, wake-up tokens as sorted sets", up, down)
