"""The watch of a pool, and members for one caller alone.

:class:`PoolWatch` is one thread that acts at deadlines:

1. a call that did not begin in time is taken out of its line and fails;
2. a call that runs long is reported, and its member is killed at the last alert;
3. a lease whose holder's thread has ended is given back;
4. work that an exception in a caller's thread left half done is repaired;
5. a pool without any holder is finished.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from queue import Empty
from typing import Any, Literal, Self, TypeVar
from weakref import ref

from headrace.clock import monotonic
from headrace.errors import CallTimeout
from headrace.pool.events import Alert, Events, Overrun
from headrace.pool.scheduler import Scheduler
from headrace.pool.state import Call, Lease, Member

# Seconds between two looks at who holds leases.
_LOOK = 0.25


class PoolWatch:
    def __init__(
        self,
        name: str,
        alerts: Overrun | None,
        scheduler: Scheduler,
        events: Events,
        kill: Callable[[Member, Call[Any], str], None],
        finish: Callable[[], None],
    ) -> None:
        """Make one that does not run yet; ``kill`` ends a member, ``finish`` a pool that is not used any more."""
        self._name = name
        self._alerts = alerts
        self._scheduler = scheduler
        self._events = events
        self._kill, self._finish = kill, finish
        self._due: list[tuple[float, int, float, Call[Any]]] = []
        self._number = count()
        self._most = 64
        self._leases = False
        self._closed = False
        self._bell = scheduler.bell
        # Guards what is due.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def expire(self, call: Call[Any], timeout: float) -> None:
        deadline = call.born + timeout
        with self._lock:
            # Calls end long before their deadlines, as a rule; they must not be kept until then.
            if len(self._due) > self._most:
                due = [entry for entry in self._due if not entry[3].done()]
                heapify(due)
                self._due = due
                self._most = max(64, 2 * len(self._due))
            first = self._due[0][0] if self._due else float("inf")
            heappush(self._due, (deadline, next(self._number), timeout, call))
        if deadline < first:
            self._bell.put(False)

    def mind_leases(self) -> None:
        if not self._leases:
            self._leases = True
            self._bell.put(False)

    def start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._watch, name=f"{self._name}-watch", daemon=True)
            self._thread.start()
        self._bell.put(False)

    def close(self) -> None:
        self._closed = True
        self._bell.put(False)

    def _watch(self) -> None:
        while not self._closed:
            due = min(self._expire_due(), self._look_at_overruns(), self._look_at_leases())
            self._answer(None if due == float("inf") else min(max(due - monotonic(), 0), threading.TIMEOUT_MAX))

    def _answer(self, wait: float | None) -> None:
        asked = set[bool | Lease | None]()
        with suppress(Empty):
            asked.add(self._bell.get(timeout=wait))
            while True:
                asked.add(self._bell.get_nowait())
        for lease in asked:
            if isinstance(lease, Lease):
                self._scheduler.end_lease(lease)
        if True in asked:
            _repair(self._scheduler)
        if None in asked:
            self._finish()

    def _expire_due(self) -> float:
        while True:
            with self._lock:
                if not self._due or self._due[0][0] > monotonic():
                    return self._due[0][0] if self._due else float("inf")
                _, _, timeout, call = heappop(self._due)
            # The code that takes it out of its line decides: from here on no member can get it.
            if self._scheduler.withdraw(call) and call.begin():
                call.set_exception(CallTimeout(f"no member began {call.title} within {timeout:g} s; it never runs"))

    def _look_at_overruns(self) -> float:
        alerts, now = self._alerts, monotonic()
        if alerts is None:
            return float("inf")
        soonest = now + alerts.after
        for member in self._scheduler.members:
            call = member.running
            if call is None or call.lease is not None or member.away:
                continue
            seconds = now - member.since
            if seconds >= alerts.due(call.alerts + 1):
                call.alerts += 1
                last = alerts.last(call.alerts)
                kind: Literal["limit", "overrun"] = "limit" if last else "overrun"
                self._events.alert(Alert(kind, self._name, member.id, call.title, seconds, call.alerts))
                if last:
                    self._kill(member, call, f"killed: {call.title} ran for {seconds:.3g} s")
                    continue
            soonest = min(soonest, member.since + alerts.due(call.alerts + 1))
        return soonest

    def _look_at_leases(self) -> float:
        if not self._leases:
            return float("inf")
        self._leases = False
        leases = [member.lease for member in self._scheduler.members if member.lease is not None]
        self._leases = self._leases or bool(leases)
        for lease in leases:
            if lease.forgotten:
                self._scheduler.release(lease)
        return monotonic() + _LOOK if leases else float("inf")


def _repair(scheduler: Scheduler) -> None:
    """Repair what an exception raised asynchronously in a caller's thread left half done; O(members and waiting calls).

    Callers' threads only add and withdraw their own calls. So the lines and what is booked are true; what may be wrong
    are the counts, and a member that was not told what is booked for it. To tell it again does no harm.
    """
    with scheduler.lock:
        _recount(scheduler)
        members = [(m, None if m.away else m.running) for m in scheduler.members]
    for member, booked in members:
        scheduler.go_on(member, booked)
        if member.leaving and not (member.running or member.urgent):
            member.body.leave()


def _recount(scheduler: Scheduler) -> None:
    lines, members = scheduler.lines, scheduler.members
    waiting = [call for line in (lines.central, *(member.inbox for member in members)) for call in line]
    lines.waiting = len(waiting)
    running = (member.running for member in members)
    keys = Counter(call.key for call in (*waiting, *running) if call is not None and call.key is not None)
    for key, home in [*lines.homes.items()]:
        home.calls = keys[key]
        if not home.calls:
            del lines.homes[key]
    for member in members:
        scheduler.weigh_anew(member)


T = TypeVar("T")


class Leased:
    """A member of the pool that runs only what is asked through this object; a context manager.

    It is given back at the end of the block, when this object is forgotten, and when the thread that asked for it ends.
    Calls that were submitted before still run.
    """

    def __init__(self, scheduler: Scheduler, lease: Lease, member: int, make: Callable[..., Call[Any]]) -> None:
        self.id = member
        self._scheduler = scheduler
        self._lease = lease
        self._make = make
        # No __del__: an exception in it would be lost, and the lease kept.
        lease.user = ref(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Call[T]:
        """Run a function on this member, after those submitted before. Raises PoolClosed: it was given
        back, or died.
        """
        call = self._make(fn, args, kwargs)
        self._scheduler.place_leased(self._lease, call)
        return call

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return self.submit(fn, *args, **kwargs).result()

    def release(self) -> None:
        """Give the member back; again does nothing."""
        try:
            self._scheduler.release(self._lease)
        except BaseException:
            self._lease.dropped = True  # the watch gives it back
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except BaseException:
            self._lease.dropped = True
            raise
