"""Where calls wait: in the central line, at members, and how many may. Owns no member; guarded by the scheduler's lock.

A line is an ordered dictionary: calls leave it at either end, and any of them from the middle when it is cancelled.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from headrace.dispatch.hash_ring import Key
from headrace.errors import PoolFull
from headrace.pool.state import Call, Member


class KeyHome:
    """Where the calls of one key are, while there are any: a resize must not let a later one overtake."""

    __slots__ = ("calls", "member")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.calls = 0


class CallQueues:
    """The waiting calls of one pool.

    Attributes:
        central: those that wait for whoever is free.
        waiting: how many wait there and at members.
        backlog: how many may.
        homes: of keys that have calls in the pool, running ones included.
        starting: members that will be ready in a moment: each counts as free for one call, which waits for it.
        lifo: whether the newest central call is served first.
    """

    __slots__ = ("backlog", "central", "homes", "lifo", "starting", "waiting")

    def __init__(self, *, lifo: bool, backlog: int | None) -> None:
        self.central: OrderedDict[Call[Any], None] = OrderedDict()
        self.waiting = 0
        self.backlog = float("inf") if backlog is None else backlog
        self.homes: dict[Key, KeyHome] = {}
        self.starting: set[Member] = set()
        self.lifo = lifo

    def add(self, member: Member | None, call: Call[Any]) -> None:
        """Let a call wait for a member, or for whoever is free, beyond the backlog if need be."""
        call.waits_for = member
        call.line = self.central if member is None else member.inbox
        call.line[call] = None
        self.waiting += 1

    def admit(self, member: Member | None, call: Call[Any]) -> None:
        """Let a new call wait. Raises PoolFull: too many wait already."""
        if self.waiting >= self.backlog and not self.soon_free(member) and self._surplus() >= self.backlog:
            raise self.too_many()
        self.add(member, call)

    def soon_free(self, member: Member | None) -> bool:
        """Whether this member, or one of all, is starting and has no call yet."""
        if member is not None:
            return member in self.starting and not member.inbox
        return len(self.central) < sum(not each.inbox for each in self.starting)

    def _surplus(self) -> int:
        """How many calls will wait when the members that are starting have taken one each."""
        empty = sum(not each.inbox for each in self.starting)
        return self.waiting - (len(self.starting) - empty) - min(empty, len(self.central))

    def next(self, member: Member) -> Call[Any] | None:
        """Take out the call that this member runs next; None when nothing waits for it."""
        inbox, line = member.inbox, self.central
        # Whoever came first: neither those of a busy key nor the central ones may starve the others.
        if inbox and not (line and next(iter(line)).born < next(iter(inbox)).born):
            call = inbox.popitem(last=False)[0]
        elif line:
            call = line.popitem(last=self.lifo)[0]
        else:
            return None
        call.line = None
        self.waiting -= 1
        return call

    def remove(self, call: Call[Any]) -> bool:
        """Take out a call that nobody waits for; False when it does not wait."""
        line = call.line
        if line is None:
            return False
        del line[call]
        call.line = None
        self.waiting -= 1
        self.leave_home(call)
        return True

    def clear(self, member: Member | None) -> list[Call[Any]]:
        """Take out all that waits for a member, or for whoever is free; who calls this must end it."""
        line = self.central if member is None else member.inbox
        calls = list(line)
        line.clear()
        self.waiting -= len(calls)
        for call in calls:
            call.line = None
            self.leave_home(call)
        if member is not None:
            calls += member.urgent
            member.urgent.clear()
        return calls

    # -- keys --------------------------------------------------------------------------------------------------------

    def home(self, call: Call[Any], key: Key, member: Member) -> Member:
        """The member for a new call of a key: where the key's other calls are, or else the one that was chosen.

        Raises:
            PoolFull: too many wait already, and this one would.
        """
        home = self.homes.get(key)
        there = member if home is None else home.member
        full = self.waiting >= self.backlog and (there.running is not None or there.away)
        if full and not self.soon_free(there) and self._surplus() >= self.backlog:
            raise self.too_many()
        if home is None:
            home = self.homes[key] = KeyHome(member)
        home.calls += 1
        call.key = key
        return there

    def leave_home(self, call: Call[Any]) -> None:
        """A call is no longer in the pool; a second time does nothing."""
        key, call.key = call.key, None
        home = None if key is None else self.homes.get(key)
        if key is not None and home is not None:
            home.calls -= 1
            if not home.calls:
                del self.homes[key]

    def too_many(self) -> PoolFull:
        return PoolFull(f"{self.waiting} calls wait already, as many as backlog= allows: call again later, or raise it")
