"""What people ask of queues, workers and the store: pause, resume, purge, command, logs, stacks, layout."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.model.server_facts import ServerFacts, server_facts
from headrace.protocol.keys import Keys
from headrace.protocol.replies import done_and_next, text_of, texts_of
from headrace.protocol.script import Call, load


def tell_stacks(keys: Keys, owner: str, text: str) -> Call[bytes]:
    """Keep for a minute what an incarnation's runners were doing. Cost: one round trip."""
    return load("stacks_tell").bind(keys, bytes, owner=owner, text=text)


def read_stacks(keys: Keys, owner: str) -> Call[bytes]:
    """What an incarnation told last of its runners' stacks, as JSON; empty: nothing of late. Cost: one round trip."""
    return load("stacks_read").bind(keys, bytes, owner=owner)


def pause(keys: Keys, queue: str, duration: int = 0, note: str = "") -> Call[bool]:
    """Stop claims of a queue; False when it was paused already.

    Args:
        duration: microseconds after which it ends by itself, whatever end it had; 0: only ``resume`` ends it.
        note: why, for people.

    Cost: one round trip, O(workers) when it has an end.
    """
    return load("pause").bind(keys, bool, queue=queue, duration=duration, note=note)


def resume(keys: Keys, queue: str) -> Call[bool]:
    """Allow claims of a queue again; False when it was not paused. Cost: one round trip."""
    return load("resume").bind(keys, bool, queue=queue)


def resume_due(keys: Keys, limit: int) -> Call[tuple[int, int, int]]:
    """Resume queues whose pause has come to its own end.

    Args:
        limit: at most 1000.

    Returns:
        how many, server time, and when the next pause ends (0: none does by itself); microseconds.

    Cost: one round trip, O(limit log n).
    """
    return load("resume_due").bind(keys, done_and_next, limit=limit)


def paused(keys: Keys) -> Call[list[str]]:
    """Names of the queues that are paused, in order. Cost: one round trip."""
    return load("paused").bind(keys, lambda reply: sorted(text_of(name) for name in reply))


def purge(keys: Keys, queue: str, limit: int = 1000) -> Call[tuple[int, int]]:
    """Delete up to ``limit`` ready jobs of a queue; returns how many, and how many are left. Cost: one round trip."""
    return load("purge").bind(keys, lambda reply: (reply[0], reply[1]), queue=queue, limit=limit)


def command(keys: Keys, owner: str, word: str) -> Call[str]:
    """Say a word to a live incarnation, which hears it at once.

    Returns:
        ``told``, ``silent`` (it lives, and is not connected just now) or ``gone``.

    Cost: one round trip.
    """
    return load("command").bind(keys, bytes.decode, owner=owner, word=word)


def logs(keys: Keys, id: str, limit: int = 1000) -> Call[list[str]]:
    """The last lines that a job logged. Cost: one round trip."""
    return load("logs").bind(keys, texts_of, id=id, limit=limit)


def server_info(keys: Keys) -> Call[ServerFacts | None]:
    """What the server says of itself; None where it does not tell us. Cost: one round trip."""
    return load("server_info").bind(keys, lambda reply: server_facts(reply) if reply else None)


class Greeting(msgspec.Struct, frozen=True):
    """A store's layout, and whether it is on its way to another: between two, no program may touch it."""

    version: int
    moving: bool


def greet(keys: Keys, version: int) -> Call[Greeting]:
    """Compare layouts: the version that the store has (below 1: none of Headrace's); an empty store takes ours.

    Cost: one round trip.
    """
    return load("greet").bind(keys, lambda reply: Greeting(reply[0], bool(reply[1])), version=version)


# What was learned is kept so long (seconds), and so many lines of it.
KEPT, LINES = 30 * 86400, 500
# Lines of one call, and characters of each.
_AT_ONCE, _LONGEST = 200, 500


def learn(keys: Keys, lines: Sequence[str]) -> Call[None]:
    """Remember what jobs did again in each runner; see :mod:`headrace.worker.preload.apply`.

    Args:
        lines: those first that are to be tried first; the first 200 count, and 500 characters of each.

    Cost: one round trip, O(lines log n).
    """
    names = [line[:_LONGEST] for line in lines[:_AT_ONCE]]
    return load("learn").bind(keys, lambda _: None, names=names, keep=KEPT * 1_000_000, most=LINES)


def learned(keys: Keys) -> Call[list[str]]:
    """What jobs did again in each runner, as it was given to :func:`learn`; at most 500 lines. Cost: one round trip."""
    return load("learned").bind(keys, texts_of, keep=KEPT * 1_000_000)
