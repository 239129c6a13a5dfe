"""Hooks and alarms: which watcher holds them, and how far it is. One watcher of all workers holds each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from headrace.model.job import moment
from headrace.protocol.keys import Keys
from headrace.protocol.replies import by_turns, text_pairs
from headrace.protocol.script import Call, load

# Hooks and alarms that one call holds.
MOST = 200

Fields = dict[str, str]
WatchKind = Literal["hook", "alarm"]


def watch_name(kind: WatchKind, name: str) -> str:
    """How a hook or an alarm is stored."""
    return f"{kind}:{name}"


class HeldWatches(msgspec.Struct, frozen=True):
    """What a watcher holds.

    Attributes:
        now: server time, microseconds.
        fields: of each that was asked for, in order, what is stored; None: another watcher holds it.
    """

    now: int
    fields: list[Fields | None]


class StoredWatch(msgspec.Struct, frozen=True):
    """A hook or an alarm that a watcher held within a week: its stored name, when it did last, and how far it is."""

    name: str
    held_us: int
    fields: Fields


def hold_watches(keys: Keys, holder: str, names: Sequence[str], lease: int) -> Call[HeldWatches]:
    """Take what no other watcher holds, and keep what this one does.

    Args:
        holder: names the watcher.
        names: see :func:`watch_name`, at most ``MOST``.
        lease: microseconds after which another watcher may take them; 0: release them now, and take none.

    Cost: one round trip, O(names).
    """

    def parsed(reply: Any) -> HeldWatches:
        return HeldWatches(reply[0], [text_pairs(flat) if flat else None for flat in reply[1]])

    return load("watch_hold").bind(keys, parsed, holder=holder, lease=lease, names=list(names))


def note_watch(
    keys: Keys,
    name: str,
    holder: str,
    fields: Mapping[str, str | int],
    *,
    change: str = "",
    kind: str = "",
    facts: Mapping[str, str | int] | None = None,
) -> Call[bool]:
    """Record how far a hook or an alarm is; False: another watcher holds it, and nothing was stored.

    Args:
        change: an event is told if this field changes by that.
        kind, facts: of the event.

    Cost: one round trip.
    """
    flat, told = by_turns(fields), by_turns(facts or {})
    return load("watch_note").bind(
        keys, bool, watch=name, holder=holder, fields=flat, change=change, kind=kind, facts=told
    )


def stored_watches(keys: Keys, limit: int = 1000) -> Call[list[StoredWatch]]:
    """Those that a watcher held within a week, the last ones first. Cost: one round trip, O(limit)."""

    def parsed(reply: Any) -> list[StoredWatch]:
        return [StoredWatch(name.decode(), moment(at), text_pairs(flat)) for name, at, flat in reply[1]]

    return load("watches").bind(keys, parsed, limit=limit)
