"""How starts end, and what the store knows to run: settle, holds, restore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.model.job import Outcome, StartNote
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, blob, load, texts_of


class Settled(msgspec.Struct, frozen=True):
    """The answer to a settle.

    Attributes:
        repeated: this very request had been applied before; its reply was lost.
        stale: ids whose start is not the newest any more: nothing changed for them.
        kept, bytes: finished jobs in the store, and what their results and errors take.
        chores: what this settle, or others, left to do (see ``tend``).
    """

    repeated: bool
    stale: list[str]
    kept: int
    bytes: int
    chores: int


def _settled(reply: Any) -> Settled:
    return Settled(reply[0] == b"repeated", texts_of(reply[1]), *reply[2:])


def settle(
    keys: Keys,
    owner: str,
    request: int,
    outcomes: Sequence[tuple[Outcome, int]],
    failure_ttl: int,
    starts: Sequence[StartNote] = (),
) -> Call[Settled]:
    """Record how starts ended; each job moves to the structure of its new state; O(n log m).

    Args:
        request: grows with each settle; the same number again changes nothing.
        outcomes: at most 1000, each with its claim's ``score``, at which a released job lines up again.
        failure_ttl: microseconds that a job stays which had been asked to stop, or whose record cannot be read.
        starts: of the outcomes that go into the journals of their jobs.
    """
    groups: dict[tuple[str, int], list[Any]] = {}
    for outcome, ready in outcomes:
        rows = groups.setdefault((outcome.kind, outcome.amount), [])
        id = outcome.id if outcome.kind not in _OF_ALIENS else _wire(outcome.id)
        rows += (id, outcome.token, blob(outcome.data), ready)
    notes = [part for one in starts for part in (_wire(one.id), one.ready, one.error, one.signal, one.exit_code)]
    packed = [(kind, amount, rows) for (kind, amount), rows in groups.items()]
    return load("settle").bind(
        keys, _settled, owner=owner, request=request, failure_ttl=failure_ttl, outcomes=packed, starts=notes
    )


# How starts end whose ids may be anything.
_OF_ALIENS = ("corrupt", "interrupted")


def _wire(id: str) -> str | msgspec.Raw:
    return id if id.isascii() else blob(id.encode("utf-8", "surrogateescape"))


def starts_of(call: Call[Settled]) -> list[tuple[str, int]]:
    names = [arg.name for arg in call.script.header.args]
    packed = call.args[names.index("outcomes") - len(names)]
    assert isinstance(packed, bytes)
    # An empty list is not packed.
    rows = [row for group in _groups(packed) for row in group[2]] if packed else []
    # Their data is not a text, though it travels as one: see script.blob.
    return [(_unpacked(id), _integer(token)) for id, token in zip(rows[::4], rows[1::4], strict=True)]


_groups = msgspec.msgpack.Decoder(list[tuple[msgspec.Raw, msgspec.Raw, list[msgspec.Raw]]]).decode


def _unpacked(id: msgspec.Raw) -> str:
    try:
        return _str(id)
    except UnicodeDecodeError:
        # One whose bytes are no text: no other can be taken for the same.
        return bytes(id).decode("utf-8", "replace")


_str = msgspec.msgpack.Decoder(str).decode


_integer = msgspec.msgpack.Decoder(int).decode


class Held(msgspec.Struct, frozen=True):
    """What the store knows of an incarnation.

    Attributes:
        claimed: number of its last claim; ``first``: the first token that this gave.
        settled: number of its last settle.
        starts: a page of what it holds, by token: id and token.
    """

    claimed: int
    first: int
    settled: int
    starts: list[tuple[str, int]]


def _held(reply: Any) -> Held | None:
    if not reply:
        return None
    claimed, first, settled, flat = reply
    couples = zip(flat[::2], flat[1::2], strict=True)
    return Held(
        claimed, first, settled, [(id.decode("utf-8", "surrogateescape"), int(float(token))) for id, token in couples]
    )


def holds(keys: Keys, owner: str, after: int, limit: int) -> Call[Held | None]:
    """What the store knows of an incarnation, with at most 1000 starts of tokens above ``after``; None: nothing."""
    return load("holds").bind(keys, _held, owner=owner, after=after, limit=limit)


class Restored(msgspec.Struct, frozen=True):
    """Starts that were not restored: ``others`` have another state now or a newer start, ``gone`` have no record."""

    others: list[str]
    gone: list[str]


def restore(keys: Keys, owner: str, starts: Sequence[tuple[str, int]], promise: int = 0) -> Call[Restored]:
    """Claim again, under the same tokens, at most 500 starts that the store forgot to be claimed. No token up to the
    largest of these is given out again, also by a server whose clock is behind. ``promise``: until when the store has
    promised the incarnation its lease: a store whose leases are a minute older is an old copy, and no worker claims
    from it.
    """
    return load("restore").bind(
        keys,
        lambda reply: Restored(*(texts_of(ids) for ids in reply)),
        owner=owner,
        starts=[one for start in starts for one in start],
        promise=promise,
    )
