"""The crew: members come, die, are replaced, are killed, leave. Decides nothing about who gets which call.

:class:`PoolWatch` is one thread that acts at deadlines: of calls that did not begin in time, and of calls that run
long. It gives back a lease whose holder's thread has ended, and finishes a pool without any holder.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from queue import Empty
from typing import Any, Literal, Self, TypeVar

from headrace.clock import monotonic
from headrace.errors import PoolBroken, WaitTimeout
from headrace.pool.events import Alert, Events, Overrun, PoolOptions
from headrace.pool.scheduler import Scheduler, died, fail
from headrace.pool.state import Call, Lease, Member, MemberBackend, PoolThread

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
            self._thread = PoolThread(target=self._watch, name=f"{self._name}-watch", daemon=True)
            self._thread.start()
        self._bell.put(False)

    def close(self) -> None:
        self._closed = True
        self._bell.put(False)

    def _watch(self) -> None:
        while not self._closed:
            due = min(self._expire_due(), self._look_at_overruns(), self._look_at_leases())
            asked = set[bool | None]()
            with suppress(Empty):
                asked.add(self._bell.get(due - monotonic()))
                while True:
                    asked.add(self._bell.get(0))
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
                call.set_exception(WaitTimeout(f"no member began {call.title} within {timeout:g} s; it never runs"))

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
        lease.user = weakref.ref(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Call[T]:
        """Run a function on this member, after those before. Raises ClosedError: it was given back, or died."""
        call = self._make(fn, args, kwargs)
        self._scheduler.place_leased(self._lease, call)
        return call

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return self.submit(fn, *args, **kwargs).result()

    def release(self) -> None:
        """Give the member back; again does nothing."""
        self._scheduler.release(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


# Seconds before the first late restart, and at most.
FIRST = 1.0
MOST = 60.0


class Restarts:
    """The deaths in one pool; ``late``: consecutive ones beyond the limit."""

    def __init__(self, limit: int, period: float) -> None:
        self._limit = limit
        self._period = period
        self._deaths: deque[float] = deque()
        self._wait = 0.0
        self.late = 0

    def delay(self, now: float) -> float:
        """Count a death at ``now``; how many seconds its replacement must wait: beyond the limit within the period 1,
        2, 4 and so on up to 60, until a period has passed quietly: members that all die must not take all time.
        """
        deaths = self._deaths
        if deaths and now - deaths[-1] > self._period + self._wait:
            deaths.clear()
            self.late = 0
        deaths.append(now)
        while not self.late and now - deaths[0] > self._period:
            deaths.popleft()
        while len(deaths) > self._limit + 1:
            deaths.popleft()
        if len(deaths) > self._limit:
            self.late += 1
        self._wait = min(MOST, FIRST * 2 ** min(self.late - 1, 10)) if self.late else 0.0
        return self._wait


log = logging.getLogger("headrace.pool")


class Members:
    def __init__(self, options: PoolOptions, name: str, body: Callable[[Members, Member], MemberBackend]) -> None:
        self.name = name
        self.options = options
        self.scheduler = Scheduler(lifo=options.queue == "lifo", backlog=options.backlog)
        self.events = Events(name, options.callbacks, options.overrun_handlers)
        self.watch = PoolWatch(name, options.alerts, self.scheduler, self.events, self.kill, self.finish)
        self._body = body
        self._resizing = threading.Lock()
        self._restarts = Restarts(options.restarts, options.period)
        self._burying = threading.Lock()
        self._living: set[Member] = set()
        self._orphaned = False
        _known.add(self)

    def resize(self, n: int) -> None:
        """Have ``n`` members. New ones start in the background; those with the largest ids leave when they are done."""
        with self._resizing:
            members = self.scheduler.snapshot.members[:n]
            new = [Member(number) for number in range(len(members), n)]
            if not self._living:
                self.events.tell("on_start")
            for member in new:
                member.body = self._body(self, member)
            for member in self.scheduler.publish((*members, *new)):
                member.body.leave()
            for member in new:
                with self._burying:
                    self._living.add(member)
                member.body.start()
            self.watch.start()

    def ready(self, member: Member) -> Call[Any] | None:
        self.events.tell("on_member", member.id)
        return self.scheduler.came_up(member)

    def lost(self, member: Member, reason: str) -> float | None:
        """A member's thread or process is gone: tell callers at once. Seconds until it is replaced; None: it is not."""
        calls = self.scheduler.went_away(member, reason)
        delay, late = 0.0, 0
        if not member.leaving:
            with self._burying:
                delay, late = self._restarts.delay(monotonic()), self._restarts.late
            if self.options.restarts and not delay:
                # Before a caller hears of the death: to him the pool is not busy.
                self.scheduler.expect(member)
        else:
            # Those that have not begun will never run: who waits for them is told so. The others died with the member.
            for call in calls:
                call.cancel()
        fail(calls, lambda: died(member, reason))
        self.events.tell("on_death", member.id, reason)
        if member.leaving:
            return None
        text = f"{self.name}: member {member.id} ended: {reason}"
        if not self.options.restarts:
            self._break(f"{text}; restarts=0 lets the first death end the pool", for_good=True)
            return None
        log.warning("%s; it is replaced %s", text, f"in {delay:g} s" if delay else "now")
        if late and all(other.away for other in self.scheduler.snapshot.members):
            hint = "" if self.options.kind == "thread" else (
                "; if processes end while they start, is the program guarded by if __name__ == '__main__'?"
            )  # fmt: skip
            self._break(f"{text}; members keep dying, and the next start is in {delay:g} s{hint}", for_good=False)
        member.restarts += 1
        return delay

    def gone(self, member: Member, reason: str = "") -> None:
        if reason:
            self.events.tell("on_death", member.id, reason)
        self.scheduler.forget(member)
        with self._burying:
            self._living.discard(member)
            last = not self._living and bool(self.scheduler.closed)
        if last:
            self.watch.close()
            self.events.close()

    def _break(self, text: str, *, for_good: bool) -> None:
        log.error("%s", text)
        self.scheduler.fall_apart(text)
        if for_good:
            for member in self.scheduler.shut(text):
                member.body.leave()
        fail(self.scheduler.drain(), lambda: PoolBroken(text))

    def kill(self, member: Member, call: Call[Any], reason: str) -> None:
        if self.scheduler.condemn(member, call):
            member.body.kill(reason)

    def shut(self, *, cancel: bool) -> None:
        for member in self.scheduler.shut(f"{self.name} was shut down: make another pool"):
            member.body.leave()
        if cancel:
            for call in self.scheduler.waiting():
                call.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        limit = None if timeout is None else monotonic() + timeout
        for member in self.scheduler.members:
            while not member.body.join(1.0 if limit is None else min(1.0, max(0.0, limit - monotonic()))):
                if limit is not None and monotonic() >= limit:
                    return False
        return True

    def stop(self, shutdown_timeout: float) -> None:
        """Cancel the calls that wait, let those that run go on for this many seconds, then kill the members."""
        self.shut(cancel=True)
        for member in self.scheduler.members:
            if member.lease is not None:
                self.scheduler.release(member.lease)
        try:
            if self.wait(shutdown_timeout):
                return
        except BaseException:
            self._kill_all()  # a caller that gives up waiting wants the calls to end now
            raise
        self._kill_all()
        self.wait(10)

    def interrupt(self) -> None:
        """The program is asked to end: as :meth:`stop`, and what runs in processes is told."""
        # First, or a member whose call was interrupted would begin one that waits.
        self.shut(cancel=True)
        for member in self.scheduler.members:
            member.body.interrupt()
        self.stop(self.options.shutdown_timeout)

    def _kill_all(self) -> None:
        for member in self.scheduler.members:
            with self.scheduler.lock:
                member.leaving = True
            if not member.body.join(0):
                self.scheduler.condemn(member, None)
                member.body.kill("the pool was stopped")

    def finish(self) -> None:
        """The pool is not used any more, or the interpreter ends: run what was accepted."""
        if not self._orphaned:
            self.shut(cancel=False)

    def orphan(self) -> None:
        self._orphaned = True
        self.scheduler.begin_anew()
        self.scheduler.closed = f"{self.name} belongs to the process that this one was forked from: make a pool here"
        for member in self.scheduler.members:
            member.body.disown()


_known: weakref.WeakSet[Members] = weakref.WeakSet()


def at_exit() -> None:
    """Run what was accepted, as executors do. After a Ctrl-C calls are interrupted, and killed after a time-out."""
    all_known = [*_known]
    # Set by the interpreter when no code has caught it.
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        for each in all_known:
            each.interrupt()
        return
    try:
        for each in all_known:
            each.finish()
        for each in all_known:
            each.wait()
    except KeyboardInterrupt:
        for each in all_known:
            each.interrupt()
        raise


def before_others() -> None:
    """Have :func:`at_exit` run before all exit handlers that were registered until now: the last one runs first."""
    atexit.register(at_exit)


def _in_fork() -> None:
    for each in [*_known]:
        each.orphan()


before_others()
os.register_at_fork(after_in_child=_in_fork)
