"""The scheduler: which call goes to which member, and in what order. Starts, restarts and kills no member.

One lock guards the lines, the loads and what is running; taking a call for a member and writing down that it has it are
one step under it. Strategies choose before, without the lock, from the published snapshot. Futures are never touched
under it, since their callbacks may call back here, and a call is handed over (:meth:`MemberBackend.deliver`) after it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import InvalidStateError
from itertools import count
from typing import Any

from headrace.clock import monotonic
from headrace.dispatch import (
    Key,
    LoadIndex,
    Snapshot,
    Strategy,
    available,
    hash,  # noqa: A004
    next_available,
    no_members,
    nobody_free,
)
from headrace.errors import ClosedError, MemberDied, OptionsError, PoolBroken
from headrace.mailbox import Mailbox
from headrace.pool.state import Call, CallQueues, Latch, Lease, Member

# A choice is made without the lock, so its member may be removed before it is booked; then it is made again.
_TRIES = 100


class Scheduler:
    """The lines and members of one pool.

    Attributes:
        lock: guards all that follows.
        snapshot: replaced, never changed.
        members: those of the snapshot and the leaving ones.
        retired: calls that members ended who are gone.
        closed: why no call is accepted any more; ``broken``: why none is at the moment.
        bell: wakes the watch; None asks it to finish the pool. A finalizer may ring it, in any thread.
    """

    def __init__(self, *, lifo: bool, backlog: int | None) -> None:
        self.bell: Mailbox[bool | None] = Mailbox()
        self.begin_anew()
        self.snapshot: Snapshot[Member] = Snapshot((), LoadIndex(), count().__next__)
        self.members: list[Member] = []
        self.lines = CallQueues(lifo=lifo, backlog=backlog)
        self.retired = 0
        self.closed = ""
        self.broken = ""
        self._ranks: LoadIndex[Member] = self.snapshot.ranks
        # Calls that moved from a removed member to a free one, until the lock is free.
        self._moved: list[tuple[Member, Call[Any]]] = []

    def begin_anew(self) -> None:
        self.lock = threading.Lock()
        self._changed = Latch()

    def place(self, call: Call[Any], choose: Strategy[Member], key: Key | None) -> None:
        """Hand a call to a member, or let it wait. Raises ClosedError, PoolBroken, PoolFull: it will never run."""
        if choose is available:
            member = self._place_centrally(call)
        elif choose is next_available:
            member = self._place_now(call)
        else:
            member = self._place_chosen(call, choose, key)
        if member is not None:
            self.go_on(member, call)

    def place_on(self, member: Member, call: Call[Any]) -> None:
        with self.lock:
            if member.leaving:
                raise ClosedError(f"member {member.id} is leaving the pool")
            now = self._book(member, call, urgent=True)
        if now:
            self.go_on(member, call)

    def place_leased(self, lease: Lease, call: Call[Any]) -> None:
        with self.lock:
            member = lease.member
            if lease.over or member is None:
                raise ClosedError("this lease is over: its member was given back or died; reserve another")
            free = member.running is not None and member.running.lease is lease
            if free:
                self._run(member, call)
            else:
                lease.waiting.append(call)
        if free:
            self.go_on(member, call)

    def _place_centrally(self, call: Call[Any]) -> Member | None:
        with self.lock:
            if self.closed or self.broken:
                raise self.refusal()
            lines = self.lines
            # While calls wait there, no member is idle; then it need not be asked.
            member = None if lines.central else self._ranks.idle()
            if member is not None:
                self._run(member, call)
                self._weigh(member)
                return member
            lines.admit(None, call)
            return None

    def _place_now(self, call: Call[Any]) -> Member | None:
        with self.lock:
            if self.closed or self.broken:
                raise self.refusal()
            member = self._ranks.idle()
            if member is not None:
                self._book(member, call)
                return member
            if self.lines.soon_free(None):
                self.lines.add(None, call)
                return None
            raise nobody_free(self.snapshot.members)

    def _place_chosen(self, call: Call[Any], choose: Strategy[Member], key: Key | None) -> Member | None:
        for _ in range(_TRIES):
            snapshot = self.snapshot
            if not snapshot.size:
                raise self.refusal() if self.closed else no_members()
            member = choose(snapshot, key)
            if member is None:
                return self._place_centrally(call)
            with self.lock:
                if self.closed or self.broken:
                    raise self.refusal()
                if choose is hash and key is not None:
                    # Taken again when the snapshot was replaced meanwhile: two calls of a key must not part.
                    if snapshot is not self.snapshot:
                        continue
                    member = self.lines.home(call, key, member)
                elif member.leaving:
                    continue
                return member if self._book(member, call) else None
        raise OptionsError(f"the strategy {choose!r} keeps choosing members that left: choose from snapshot.members")

    def _book(self, member: Member, call: Call[Any], *, urgent: bool = False) -> bool:
        """Give a call to this member; True when it must be handed over now. Lock held."""
        free = member.running is None and not member.away
        if free:
            self._run(member, call)
        elif urgent:
            member.urgent.append(call)
        else:
            self.lines.admit(member, call)
        self._weigh(member)
        return free

    def refusal(self) -> ClosedError | PoolBroken:
        return PoolBroken(self.broken) if self.broken else ClosedError(self.closed)

    def _run(self, member: Member, call: Call[Any]) -> None:
        member.running = call
        member.since = monotonic()

    def _weigh(self, member: Member) -> None:
        load = len(member.inbox) + len(member.urgent) + (member.running is not None)
        if load != member.load:
            member.load = load
            if not (member.away or member.leaving):
                self._ranks.set(member, load)

    def go_on(self, member: Member, call: Call[Any] | None) -> None:
        """Hand over what was booked; of what was cancelled since, what follows it."""
        while call is not None and not (member.body.deliver(call) if call.lease is None else self._grant(member, call)):
            call = self.finish(member, call)

    def finish(self, member: Member, call: Call[Any]) -> Call[Any] | None:
        following: Call[Any] | None
        with self.lock:
            if member.running is not call:
                return None  # it was killed for it, and another one may work here already
            plain = call.key is None and call.lease is None and member.lease is None
            if plain and member.load == 1 and not (member.leaving or member.doomed or self.closed):
                # What the rest would do when nothing waits for this member alone: most calls end here.
                member.done += 1
                moved = None
                lines = self.lines
                if not lines.central:
                    member.running = None
                    member.load = 0
                    self._ranks.set(member, 0)
                    return None
                following = lines.central.popitem(last=lines.lifo)[0]
                following.line = None
                lines.waiting -= 1
                self._run(member, following)
            else:
                following = self._end(member, call)
                moved, self._moved = self._moved, []
        for other, passed in moved or ():
            self.go_on(other, passed)
        if following is None or following.lease is None:
            return following
        return None if self._grant(member, following) else self.finish(member, following)

    def _end(self, member: Member, call: Call[Any]) -> Call[Any] | None:
        if call.lease is None:
            member.done += 1
        self.lines.leave_home(call)
        if member.doomed:
            # It ended just in time, but its member is being killed: it gets nothing more.
            member.running = None
            return None
        return self._take(member)

    def _grant(self, member: Member, call: Call[Any]) -> bool:
        lease = call.lease
        assert lease is not None
        if not (call.begun or call.begin()):
            return False
        with self.lock:
            if member.running is not call:
                return True
            member.lease, lease.member = lease, member
            # The key's next calls find the member by themselves, and wait for it.
            self.lines.leave_home(call)
            over = lease.over
        with contextlib.suppress(InvalidStateError):
            call.set_result(member.id)
        # The waiter may have given up between the beginning and here: then no other code gives it back.
        return not over

    def _take(self, member: Member) -> Call[Any] | None:
        following: Call[Any] | None
        lease = member.lease
        if lease is not None:
            if lease.waiting:
                self._run(member, following := lease.waiting.popleft())
                return following
            if not lease.over:
                self._run(member, lease_call(self, lease))
                return None
            member.lease = None
        if member.urgent:
            self._run(member, following := member.urgent.popleft())
        elif member.leaving and not (self.closed and member.inbox):
            # In a closed pool the others may have left already, and what waits here is run here.
            member.running = None
            self._vacate(member)
            return None
        elif (following := self.lines.next(member)) is not None:
            self._run(member, following)
        else:
            member.running = None
            if self.closed:
                member.leaving = True
                self._ranks.remove(member)
        self._weigh(member)
        return following

    def withdraw(self, call: Call[Any]) -> bool:
        """Take a call out of its line; False when it does not wait any more, or never did."""
        with self.lock:
            waited = self.lines.remove(call)
            if waited and call.waits_for is not None:
                self._weigh(call.waits_for)
            return waited

    def release(self, lease: Lease) -> None:
        with self.lock:
            member = None if lease.over else lease.member
            lease.over = True
            held = None if member is None else member.running
        if member is None or held is None or held.lease is not lease:
            return
        self.go_on(member, self.finish(member, held))
        if member.leaving and member.running is None:
            member.body.leave()

    def publish(self, members: Iterable[Member]) -> list[Member]:
        """Replace the snapshot; who is no longer in it leaves. Returns those who are idle and must be told."""
        with self.lock:
            new = tuple(members)
            gone = [m for m in self.snapshot.members if m not in new]
            self.lines.starting.update(m for m in new if m not in self.snapshot.members)
            self.members = [*new, *(m for m in self.members if m not in new)]
            self.snapshot = Snapshot(new, self._ranks, self.snapshot.turn)
            for member in gone:
                member.leaving = True
                self.lines.starting.discard(member)
                self._ranks.remove(member)
                self._vacate(member)
            moved, self._moved = self._moved, []
            idle = [m for m in gone if not (m.running or m.urgent)]
        for other, call in moved:
            self.go_on(other, call)
        return idle

    def _vacate(self, member: Member) -> None:
        stay = member.running.key if member.running else None
        inbox, member.inbox = member.inbox, OrderedDict()
        for call in inbox:
            self.lines.waiting -= 1
            if stay is not None and call.key == stay:
                self.lines.add(member, call)
                continue
            call.line = None
            other = self._other(call)
            if other.running is None and not other.away:
                self._run(other, call)
                self._moved.append((other, call))
            else:
                self.lines.add(other, call)
            self._weigh(other)
        self._weigh(member)

    def _other(self, call: Call[Any]) -> Member:
        snapshot = self.snapshot
        if call.key is None:
            least = self._ranks.least()
            return snapshot.members[0] if least is None or least.leaving else least
        home = self.lines.homes[call.key]
        if home.member.leaving:
            home.member = snapshot.ring.owner(call.key)
        return home.member

    def came_up(self, member: Member) -> Call[Any] | None:
        """A thread or process for this member is ready; what it runs first, or None."""
        with self.lock:
            member.away = False
            self.lines.starting.discard(member)
            if not self.closed:
                self.broken = ""
            self._tell()
            if not member.leaving:
                self._ranks.set(member, member.load)
            following = member.running or self._take(member)
        if following is not None and following.lease is not None:
            if not following.begun:
                self.go_on(member, following)
            return None
        return following

    def went_away(self, member: Member, reason: str) -> list[Call[Any]]:
        """The thread or process of this member is gone; the calls that went with it, which the caller must fail. What
        waits for the member stays, and so does a call that was booked for it and never sent.
        """
        with self.lock:
            member.away = True
            self.lines.starting.discard(member)
            member.doomed = False
            member.reason = reason
            self._ranks.remove(member)
            lost: list[Call[Any]] = []
            running = member.running
            if running is not None and (running.sent or running.lease or member.leaving):
                member.running = None
                lost.append(running)
                self.lines.leave_home(running)
            if member.lease is not None:
                lost += member.lease.waiting
                member.lease.waiting.clear()
                member.lease.over = True
                member.lease = None
            if member.leaving:
                # No member will come back for what waits here.
                if self.closed:
                    lost += self.lines.clear(member)
                lost += member.urgent
                member.urgent.clear()
                self._vacate(member)
            self._weigh(member)
            moved, self._moved = self._moved, []
        for other, call in moved:
            self.go_on(other, call)
        return lost

    def expect(self, member: Member) -> None:
        with self.lock:
            if member.away and not member.leaving:
                self.lines.starting.add(member)

    def fall_apart(self, reason: str) -> None:
        with self.lock:
            self.broken = reason
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, Latch()
        changed.open()

    def wait_ready(self, timeout: float | None) -> bool:
        """Wait until no member is away; False when ``timeout`` seconds are over. Raises ClosedError, PoolBroken."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            with self.lock:
                if self.closed or self.broken:
                    raise self.refusal()
                if not any(m.away for m in self.snapshot.members):
                    return True
                changed = self._changed
            left = None if end is None else end - monotonic()
            if (left is not None and left <= 0) or not changed.wait(left):
                return False

    def condemn(self, member: Member, call: Call[Any] | None) -> bool:
        """Give nothing more to a member that is going to be killed; False when it no longer runs this call."""
        with self.lock:
            if call is not None and member.running is not call:
                return False
            member.doomed = member.away = True
            self._ranks.remove(member)
            return True

    def interrupt(self, call: Call[Any]) -> None:
        for member in self.members:
            if member.running is call:
                member.body.interrupt()

    def forget(self, member: Member) -> None:
        with self.lock:
            if member in self.members and member not in self.snapshot.members:
                self.members.remove(member)
                self.retired += member.done

    def shut(self, reason: str) -> list[Member]:
        with self.lock:
            self.closed = self.closed or reason
            self._tell()
            busy = bool(self.lines.central)
            idle = [m for m in self.members if not (m.running or m.urgent or m.inbox or (m.away and busy))]
            for member in idle:
                member.leaving = True
                self._ranks.remove(member)
            return idle

    def unneeded(self, member: Member) -> bool:
        with self.lock:
            # Calls that were booked for it or broadcast to it are its own, and it comes back to run them.
            idle = not (member.running or member.inbox or member.urgent)
            if self.closed and idle and not self.lines.central:
                member.leaving = True
            return member.leaving and idle

    def drain(self) -> list[Call[Any]]:
        """Take all waiting calls out of their lines; who calls this must end them."""
        with self.lock:
            calls = self.lines.clear(None)
            for member in self.members:
                calls += self.lines.clear(member)
                self._weigh(member)
            return calls

    def waiting(self) -> list[Call[Any]]:
        with self.lock:
            places = [self.lines.central, *(m.inbox for m in self.members), *(m.urgent for m in self.members)]
            return [call for place in places for call in place]


def lease_call(scheduler: Scheduler, lease: Lease) -> Call[int]:
    call: Call[int] = Call(scheduler.withdraw, None, (), {})
    call.lease = lease
    return call


def fail(calls: Iterable[Call[Any]], make: Callable[[], BaseException]) -> None:
    """End calls that no member will run any more with an error; what ended or was cancelled before stays as it is."""
    for call in calls:
        call.begin()
        if not call.done():
            # A thread that was given up may deliver its result at this very moment.
            with contextlib.suppress(InvalidStateError):
                call.set_exception(make())
        call.drop()


def died(member: Member, reason: str) -> MemberDied:
    text = f"member {member.id} ended ({reason}) while it ran this call, which may have had effects"
    return MemberDied(f"{text}; call again if it may run twice", member.id, reason)
