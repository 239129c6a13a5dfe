"""What a dispatcher says of its lease and its jobs, and the upkeep that it asks for.

Claims are in claim_calls.py, how starts end is in settle_calls.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.job import moment
from headrace.protocol.keys import OLDEST, SCHEMA, Keys
from headrace.protocol.replies import by_turns, done_and_next, name_of, texts_of
from headrace.protocol.script import Call, load


def register(
    keys: Keys, owner: str, lease: int, metadata: Sequence[str | int], tasks: Mapping[str, str] | None = None
) -> Call[int]:
    """Begin an incarnation's lease, and leave our layout in a store without one; refused where we cannot read a store.

    Args:
        lease: microseconds.
        metadata: field, value, ... shown to people; ``place`` (host:pid) names it in the evidence of crashes.
        tasks: the kind of each task that it knows.

    Returns:
        microseconds for which it is not known whether other incarnations live, since the server, or all of them, were
        silent: until then nothing of theirs is reclaimed.

    Cost: one round trip.
    """
    return load("register").bind(
        keys,
        int,
        owner=owner,
        lease=lease,
        version=SCHEMA,
        oldest=OLDEST,
        metadata=list(metadata),
        tasks=by_turns(tasks or {}),
    )


class Renewed(msgspec.Struct, frozen=True):
    """The answer to a renewal.

    Attributes:
        alive: False when the lease was lost.
        now, due: as in :class:`headrace.protocol.claim_calls.Claimed`.
        lapse: when the first lease in the store ends (microseconds), and whose it is.
        cancels: ids that run here and were asked to stop; ``parking``: tasks that have parked jobs.
        over: when the next finished job's retention ends, 0 when none is kept.
        kept, bytes: finished jobs in the store, and what their results and errors take.
        ends: when the next workflow's retention ends, 0 when none does.
        chore: since when something is left to do that a script began, or from when on; 0 when nothing is.
        resumes: when the next pause ends by itself, 0 when none does.
        held: how many jobs the incarnation holds.
        tick: when the next tick of a schedule is due, 0 when none is, None when that was not asked for.
        paused: those of its queues that are paused; ``ready``: how many of the others have ready jobs.
    """

    alive: bool
    now: int = 0
    due: int = 0
    lapse: int = 0
    lapsing: str = ""
    cancels: tuple[str, ...] = ()
    parking: tuple[str, ...] = ()
    over: int = 0
    bytes: int = 0
    kept: int = 0
    ends: int = 0
    chore: int = 0
    resumes: int = 0
    held: int = 0
    tick: int | None = 0
    paused: tuple[str, ...] = ()
    ready: int = 0


def _renewed(reply: Any) -> Renewed:
    if len(reply) == 1:
        return Renewed(False)
    _, now, due, lapse, lapsing, cancels, parking, over, *rest = reply
    size, kept, ends, chore, resumes, held, tick, paused, ready = rest
    return Renewed(
        True,
        now,
        moment(due),
        moment(lapse),
        name_of(lapsing),
        tuple(texts_of(cancels)),
        tuple(texts_of(parking)),
        moment(over),
        size,
        kept,
        moment(ends),
        moment(chore),
        moment(resumes),
        held,
        None if tick == -1 else moment(tick),
        tuple(texts_of(paused)),
        ready,
    )


def renew(
    keys: Keys,
    owner: str,
    lease: int,
    metadata: Sequence[str | int] = (),
    queues: Sequence[str] = (),
    ticks: bool = True,
) -> Call[Renewed]:
    """Keep everything that an incarnation holds for another lease.

    Args:
        queues: that it serves: one with work and no wake-up token gets a token.
        ticks: also hear when the next tick is due.

    Cost: one round trip, O(log workers), however many jobs it holds.
    """
    rest = {"metadata": list(metadata), "names": list(queues), "ticks": int(ticks)}
    return load("renew").bind(keys, _renewed, owner=owner, lease=lease, **rest)


def reclaim(keys: Keys, victim: str, known_dead: bool, limit: int, ttl: int) -> Call[tuple[str, int]]:
    """Give what a dead incarnation ran back to its queues; each start counts as a crash.

    Args:
        known_dead: its own supervisor saw it die; otherwise only once its lease is over.
        limit: at most 500 jobs.
        ttl: microseconds that a job stays whose crash budget is used up.

    Returns:
        ``alive``, ``some`` (call again) or ``done``, and how many jobs moved.

    Cost: one round trip.
    """
    return load("reclaim").bind(
        keys,
        lambda reply: (reply[0].decode(), reply[1]),
        owner=victim,
        known=int(known_dead),
        limit=limit,
        ttl=ttl,
    )


def retire(keys: Keys, owner: str, ttl: int = 0, why: str = "") -> Call[bool]:
    """End an incarnation that holds nothing; False when it still holds jobs.

    Args:
        ttl: microseconds that those stay which were broadcast to it, had not begun, and end as cancelled.
        why: what ended it; empty: it leaves in order.

    Cost: one round trip.
    """
    return load("retire").bind(keys, lambda reply: reply == b"ok", owner=owner, ttl=ttl, why=why)


def promote(keys: Keys, limit: int) -> Call[tuple[int, int, int, int]]:
    """Make due jobs ready, and open the gates of limits that are due.

    Returns:
        how many, server time, when the next is due (0: none is scheduled), 1 where gates were opened; microseconds.

    Cost: one round trip, O(limit log n).
    """
    return load("promote").bind(keys, lambda reply: (reply[0], reply[1], moment(reply[2]), reply[3]), limit=limit)


def sweep(keys: Keys, limit: int, most: int, room: int) -> Call[tuple[int, int, int]]:
    """Remove finished jobs whose retention is over or that exceed the caps on count (``most``) and bytes (``room``).

    Returns:
        how many, server time, and when the next retention ends (0: nothing is kept).

    Cost: one round trip, O(limit log n).
    """
    return load("sweep").bind(keys, done_and_next, limit=limit, most=most, room=room)


def unpark(keys: Keys, task: str, limit: int, queues: Sequence[str]) -> Call[int]:
    """Make parked jobs of a task ready, each at its old place in its queue; returns how many.

    For a worker that knows the task, serves these queues, has room for so many and claims in the same trip. Jobs of
    other queues stay parked: the workers that serve those may not know the task.

    Cost: one round trip; it looks at 500 jobs at most.
    """
    return load("unpark").bind(keys, int, task=task, limit=limit, names=list(queues))


class Note(msgspec.Struct, frozen=True):
    """What a running job says of itself: progress (a share from 0 to 1, None: unchanged), a text, lines of its log.

    Attributes:
        swallowed: JSON of the :class:`headrace.model.job.JobError` that a middleware swallowed; empty: none.
        spent: limits, and units that it cost them beyond what its enqueue said.
    """

    id: str
    token: int
    progress: float | None = None
    text: str = ""
    lines: tuple[str, ...] = ()
    swallowed: str = ""
    spent: tuple[tuple[str, int], ...] = ()


def note(keys: Keys, owner: str, notes: Sequence[Note], most: int = 1000, request: int = 0) -> Call[int]:
    """Store progress and log lines of running jobs, for the newest starts only; returns how many notes were stored.

    Args:
        most: lines kept a job.
        request: a number that grows with each note; the same number again stores no line twice. 0: not numbered.

    Cost: one round trip.
    """
    rows = [
        (
            n.id,
            n.token,
            "" if n.progress is None else str(n.progress),
            n.text,
            n.lines,
            *([n.swallowed, n.spent] if n.spent else [n.swallowed] * bool(n.swallowed)),
        )
        for n in notes
    ]
    return load("note").bind(keys, int, owner=owner, request=request, notes=rows, most=most)
