"""What a dispatcher knows of its starts, to compare with what the store knows of them. Pure: no I/O, no clock.

A server may forget the last moments of its history: a power cut takes what was not on disk, a failover what was not
replicated. Whole scripts are lost, the latest ones. Those of this incarnation carry growing numbers, so the last number
that the store remembers says which of them it forgot; those are done again. What the store holds for this incarnation,
and nobody here knows, is handed back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from headrace.model.job import Claim, Outcome
from headrace.protocol.script import Call
from headrace.protocol.settle_calls import Held, Settled, starts_of

# How long (seconds) a settle is kept, and how much of them: a server forgets seconds, not minutes. What is forgotten by
# both sides is handed back as interrupted.
KEEP, KEEP_BYTES, KEEP_OUTCOMES = 60.0, 16 << 20, 50_000
# Bytes that one takes besides its outcomes, about.
OVERHEAD = 1000

Rows = list[tuple[str, int]]
"""Starts: the job's id and the token."""


class Sent(msgspec.Struct, frozen=True):
    """A settle that was sent.

    Attributes:
        number: of the request.
        call: as it was sent, so that it can be sent again.
        outcomes: how many ends it says.
        at: monotonic seconds.
    """

    number: int
    call: Call[Settled]
    outcomes: int
    at: float

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return OVERHEAD + sum([len(arg) for arg in self.call.args if isinstance(arg, bytes)])


class Repair(msgspec.Struct, frozen=True):
    """What makes both sides agree.

    Attributes:
        restore: starts whose claims the store forgot, ended ones included.
        again: settles that it forgot, oldest first.
        unknown: starts that nobody here knows.
    """

    restore: Rows = msgspec.field(default_factory=Rows)
    again: list[Call[Settled]] = msgspec.field(default_factory=list[Call[Settled]])
    unknown: Rows = msgspec.field(default_factory=Rows)

    def __bool__(self) -> bool:
        return bool(self.restore or self.again or self.unknown)


class Starts(msgspec.Struct):
    """The starts of one incarnation.

    Attributes:
        held: ids of claimed jobs whose settle was not sent, by token.
        claimed, settled: numbers of the last claim and the last settle that were answered.
        sent: settles of late, oldest first; ``size`` and ``outcomes`` of all of them.
    """

    held: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    claimed: int = 0
    settled: int = 0
    sent: deque[Sent] = msgspec.field(default_factory=deque[Sent])
    size: int = 0
    outcomes: int = 0

    @property
    def untold(self) -> bool:
        """Whether the store may not know yet how some of them ended."""
        return bool(self.held) or any(sent.number > self.settled for sent in self.sent)

    def took(self, claims: Iterable[Claim], number: int) -> None:
        for claim in claims:
            self.held[claim.token] = claim.id
        self.claimed = max(self.claimed, number)

    def ended(self, batch: Sequence[tuple[Outcome, Claim]], call: Call[Settled], number: int, now: float) -> None:
        for outcome, _ in batch:
            self.held.pop(outcome.token, None)
        sent = Sent(number, call, len(batch), now)
        self.sent.append(sent)
        self.size += sent.size
        self.outcomes += sent.outcomes
        while self.sent and (now - self.sent[0].at > KEEP or self.size > KEEP_BYTES or self.outcomes > KEEP_OUTCOMES):
            old = self.sent.popleft()
            self.size -= old.size
            self.outcomes -= old.outcomes

    def forget(self, ids: Iterable[str]) -> None:
        """What the store does not count as held by us, whatever still runs here."""
        gone = set(ids)
        self.held = {token: id for token, id in self.held.items() if id not in gone}

    def view(self) -> Starts:
        """A copy, to compare with what the store answers later."""
        return msgspec.structs.replace(self, held=dict(self.held), sent=self.sent.copy())


def compare(view: Starts, store: Held) -> Repair:
    """What the store forgot, and what nobody here knows.

    The store may know more than this side in one way only: a claim was applied whose answer is not here yet. Its starts
    have tokens from ``store.first`` on, and its repetition brings them.
    """
    lost = [sent for sent in view.sent if sent.number > store.settled]
    ended = [start for sent in lost for start in starts_of(sent.call)]
    there = {token for _, token in store.starts}
    known = view.held.keys() | {token for _, token in ended}
    coming = store.first if store.claimed > view.claimed else None
    restore: Rows = []
    if store.claimed < view.claimed:
        running = [(id, token) for token, id in view.held.items()]
        restore = sorted((start for start in running + ended if start[1] not in there), key=lambda start: start[1])
    # One that was never answered is repeated anyway.
    again = [sent.call for sent in lost if sent.number <= view.settled]
    unknown = [start for start in store.starts if start[1] not in known and (coming is None or start[1] < coming)]
    return Repair(restore, again, unknown)
