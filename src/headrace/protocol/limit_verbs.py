"""What is said of limits: what code declares, what an operator puts over it, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.model.job import Claim, number
from headrace.model.limit_rules import ALL, DeclaredLimits, LimitPage, state_of
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, blob, load, text_of

# Rows of one page, of limits or of values.
MOST_ROWS = 500

_decode = msgspec.msgpack.Decoder(list[tuple[str, str, int, str]]).decode


def declare_limits(keys: Keys, owner: str, tasks: Iterable[str], declared: DeclaredLimits) -> Call[int]:
    """Say which limits code has. Numbers that changed count at once, also for what waits.

    What was said first by newer code, and a live worker says, stays: so of two releases that run side by side the newer
    one counts, whichever worker begins last. Of ``tasks`` those without a declared limit have none any more. An empty
    ``owner`` is a program that is not a worker. Returns of how many limits, tasks and queues newer code says otherwise;
    below 0: the incarnation is gone.
    """
    rows = [part if isinstance(part, str) else blob(part) for part in declared.rows]
    return load("limit_declare").bind(
        keys, int, owner=owner, tasks=list(tasks), limits=list(declared.limits), rows=rows
    )


def _page(reply: Any, size: int | None) -> LimitPage:
    now, count, flat, limited = reply
    # A later version may keep other fields there.
    rows_of = {text_of(limited[n]): limited[n + 1] for n in range(0, len(limited), 2)}
    named = {
        what: tuple(row[0] for row in _decode(rows))
        for what, rows in rows_of.items()
        if what.startswith(("task:", "queue:"))
    }
    rows = [state_of(row, now) for row in flat]
    return LimitPage(rows, count, rows[-1].name if size and len(rows) == size < count else None, now, named)


def read_limits(
    keys: Keys,
    names: Sequence[str] = (),
    after: str = "",
    limit: int = MOST_ROWS,
    value: str = ALL,
    *,
    values: bool = False,
) -> Call[LimitPage]:
    """Limits, or one of their values, as they count now. ``names``: of limits; none: a page of all, by name, that
    begins behind ``after``. ``value``: of the limits that are named. ``values``: after each limit its values are told:
    those that an operator has set, or whose jobs wait.
    """
    return load("limit_read").bind(
        keys, lambda reply: _page(reply, None if names else limit), names=list(names), after=after, limit=limit,
        value=value, values=int(values),
    )  # fmt: skip


def change_limit(
    keys: Keys,
    limit: str,
    value: str,
    declared: Sequence[str],
    parts: Sequence[tuple[str, int, Sequence[str]]],
    gone: Sequence[str] = (),
) -> Call[str | frozenset[str]]:
    """Put parts over what code declares of a limit or of one of its values, or take them away.

    ``declared`` is for a store that does not know the limit. Each part has the microseconds that it counts (0: without
    end). Returns the parts that there were before; or ``unknown``, or ``shared``: the limit goes by no value.
    """
    flat = [word for part in parts for word in part]
    return load("limit_change").bind(
        keys, lambda reply: reply.decode() if isinstance(reply, bytes) else frozenset(map(bytes.decode, reply)),
        limit=limit, value=value, declared=list(declared), parts=flat, gone=list(gone),
    )  # fmt: skip


class Deleted(NamedTuple):
    """What became of a limit that was to be deleted.

    Attributes:
        word: ``deleted``; ``some``: there is more to delete, call again; ``unknown``; ``declared``; ``held``.
        jobs: that wait for it, or jobs and programs that hold it.
        places: workers whose code declares it.
    """

    word: str
    jobs: int = 0
    places: tuple[str, ...] = ()

    @property
    def in_use(self) -> str:
        """Why it cannot be deleted now, and what to do; empty: it can."""
        if self.word == "declared":
            places = ", ".join(self.places[:5]) + (", ..." if len(self.places) > 5 else "")
            return f"is declared by code that runs ({places}): take it out of the code and restart these workers first"
        if self.word == "held":
            return f"is held by {self.jobs:,} jobs or programs: pause it, so that no more start, and delete it then"
        return ""


def _deleted(reply: Any) -> Deleted:
    word, told = reply[0].decode(), reply[1] if len(reply) > 1 else 0
    if isinstance(told, int):
        return Deleted(word, told)
    return Deleted(word, places=tuple(text_of(place) for place in told))


def delete_limit(keys: Keys, limit: str) -> Call[Deleted]:
    """Forget a limit that no running code declares and nothing holds. Cost: one round trip for 500 overrides."""
    return load("limit_delete").bind(keys, _deleted, limit=limit)


class HoldAnswer(NamedTuple):
    """The answer to a program that wants to hold a gate.

    Attributes:
        word: ``held``; ``closed``; ``unknown``; ``shared``: the limit goes by no value; ``values``: it goes by one.
        opens: when a closed gate opens, microseconds; 0: it is not known.
    """

    word: str
    now: int
    opens: int


def hold_limit(
    keys: Keys, limit: str, value: str, holder: str, lease: int, declared: Sequence[str]
) -> Call[HoldAnswer]:
    """Have a program pass a gate as a job would, and hold it until it lets go or its lease is over. ``holder`` ends
    with a point and its lease: the same again is one hold. ``value`` is ``ALL`` where the limit goes by none.
    """
    return load("limit_hold").bind(
        keys, lambda reply: HoldAnswer(reply[0].decode(), reply[1], number(reply[2])), limit=limit, value=value,
        holder=holder, lease=lease, declared=list(declared),
    )  # fmt: skip


class GateAnswer(NamedTuple):
    """The answer to a start on another shard, which ``held`` all gates of its job or none; ``gates``: that it holds."""

    held: bool
    now: int
    opens: int
    gates: list[str]


def take_limits(keys: Keys, claim: Claim, holder: str, lease: int) -> Call[GateAnswer]:
    """Have a start on another shard pass all gates of its job, or none. ``keys`` are of the shard of limits."""
    return load("limit_take").bind(
        keys,
        lambda reply: GateAnswer(reply[0] == b"held", reply[1], number(reply[2]), [gate.decode() for gate in reply[3]]),
        task=claim.task, queue=claim.queue, args=claim.args, by_key=claim.key, cost=claim.cost, holder=holder,
        lease=lease,
    )  # fmt: skip


def keep_hold(keys: Keys, gate: str, holder: str, lease: int) -> Call[bool]:
    """Go on holding a gate, ``<limit>:<value>``. False: the lease was over."""
    return load("limit_keep").bind(keys, bool, passed=gate, holder=holder, lease=lease)


def release_hold(
    keys: Keys, limit: str, gate: str, holder: str, spent: int = 0, since: int = 0, refused: int = -1, unused: int = 0
) -> Call[bool]:
    return load("limit_release").bind(
        keys, bool, limit=limit, passed=gate, holder=holder, spent=spent, since=since, refused=refused, unused=unused
    )
