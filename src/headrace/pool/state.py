"""The state that the scheduler's lock guards: calls, leases, members, and where calls wait. Decides nothing about which
member gets a call.

A line is an ordered dictionary: calls leave it at either end, and any of them from the middle when it is cancelled.
Waits are such that an exception raised asynchronously (a Ctrl-C, ``PyThreadState_SetAsyncExc``) leaves no lock behind.
"""

from __future__ import annotations

import logging
import threading
from _thread import RLock, allocate_lock
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, PENDING, RUNNING
from contextlib import suppress
from threading import TIMEOUT_MAX, Thread, current_thread
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from headrace.clock import monotonic
from headrace.dispatch import Key
from headrace.errors import PoolFull


class CallCondition(RLock):  # type: ignore[misc]  # final for type checkers only
    """The condition of one call: what :class:`concurrent.futures.Future` uses of :class:`threading.Condition`."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def wait(self, timeout: float | None = None) -> bool:
        bell = allocate_lock()
        bell.acquire()
        self._waiting.append(bell.release)
        try:
            self.release()
            return bell.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX))
        finally:
            self.acquire()
            if bell.locked() and bell.release in self._waiting:
                self._waiting.remove(bell.release)

    def notify_all(self) -> None:
        waiting = self._waiting
        while waiting:
            waiting.pop()()


class Latch:
    __slots__ = ("_waiting", "opened")

    def __init__(self) -> None:
        self.opened = False
        self._waiting: list[Callable[[], None]] = []

    def open(self) -> None:
        self.opened = True
        while self._waiting:
            self._waiting.pop()()

    def wait(self, timeout: float | None = None) -> bool:
        bell = allocate_lock()
        bell.acquire()
        self._waiting.append(bell.release)
        # The thread that opens it looks for us after this, or we see that it is open.
        if not self.opened and not bell.acquire(timeout=-1 if timeout is None else min(max(timeout, 0), TIMEOUT_MAX)):
            with suppress(ValueError):
                self._waiting.remove(bell.release)
        return self.opened


class PoolThread(Thread):
    """A thread of a pool's own, which outlives whatever the callbacks of calls raise in it."""


class MemberThread:
    """A thread of the pool's own, and its end: ``Thread.join`` takes a thread for ended whose waiting was cut short."""

    def __init__(self, live: Callable[[], None], name: str) -> None:
        self._ended = Latch()
        self._live = live
        # A daemon, since the interpreter's end would wait for others before the pool is told to finish.
        self.thread = PoolThread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._live()
        finally:
            self._ended.open()

    def join(self, timeout: float | None) -> bool:
        """Wait for its end; True when it has ended, or is the one that asks."""
        if self.thread is current_thread():
            return True
        if self._ended.wait(timeout):
            self.thread.join()
            return True
        return False


log = logging.getLogger("headrace.pool")

T = TypeVar("T")


class Call(Future[T], Generic[T]):
    """What :meth:`headrace.Pool.submit` returns. All of :class:`concurrent.futures.Future` holds.

    Attributes:
        born: monotonic time of its submission.
        line: where it waits; None when it does not. Written under the scheduler's lock.
        waits_for: the member for which it waits; None in the central line.
        key: for the hash strategy. While calls of a key are in the pool, all of them go to one member.
        data: the pickled call, for processes.
        begun: it may no longer be cancelled.
        sent: its thread or process has it, so that it may have had effects.
        watched: a callback is set, which will run in the member's thread.
        silent: no caller will ask for its result; errors are logged.
        alerts: how often it was reported as too long.
        lease: the lease that it grants, or None for a call of a function.
    """

    # Defaults of the class: most calls never change them, and each is made on its caller's time.
    line: OrderedDict[Call[Any], None] | None = None
    waits_for: Member | None = None
    key: Key | None = None
    data: bytes | None = None
    begun: bool = False
    sent: bool = False
    watched: bool = False
    silent: bool = False
    lease: Lease | None = None
    alerts: int = 0

    def __init__(
        self,
        withdraw: Callable[[Call[Any]], bool],
        fn: Callable[..., T] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        # As the base class does, but with a condition that an exception in a caller's thread cannot leave locked: its
        # member would wait for that with the result.
        self._condition = CallCondition()  # type: ignore[assignment]
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[T]], object]] = []
        self.fn: Callable[..., T] | None = fn
        self.args: tuple[Any, ...] | None = args
        self.kwargs: dict[str, Any] | None = kwargs
        self.born = monotonic()
        self._withdraw = withdraw

    def cancel(self) -> bool:
        """Cancel the call; False when it has begun. A cancelled call never runs, and its place in the line is free."""
        if not super().cancel():
            return False
        try:
            # One that was taken out by its member meanwhile is noticed there.
            self._withdraw(self)
        finally:
            self.begin()
        return True

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self.watched = True
        super().add_done_callback(fn)

    def _invoke_callbacks(self) -> None:
        # As the base class does. But what a call raised, such as an exit, a callback may raise again.
        for callback in self._done_callbacks:
            try:
                callback(self)
            except BaseException as error:
                if not isinstance(error, Exception) and not isinstance(current_thread(), PoolThread):
                    raise
                log.exception("a callback of %r failed", self)

    def begin(self) -> bool:
        """From here on it cannot be cancelled; False: it was, or has begun. Tells who waits for a cancelled call."""
        with self._condition:
            if self._state == PENDING:
                self._state, self.begun = RUNNING, True
                return True
            if self._state == CANCELLED:
                self._state = CANCELLED_AND_NOTIFIED
                for waiter in self._waiters:
                    waiter.add_cancelled(self)
        return False

    def drop(self) -> None:
        """Let go of function and arguments: who keeps a result need not keep what it was made of."""
        self.fn = self.args = self.kwargs = None

    @property
    def title(self) -> str:
        fn = self.fn
        if fn is None:
            return "a lease" if self.lease else ""
        return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"


class Lease:
    """The scheduler's side of a lease. Written under the scheduler's lock.

    Attributes:
        holder: the thread that has it; when that has ended, the member is given back.
        member: who is leased; None before it is granted.
        waiting: calls that were asked of it and have not begun.
        over: given back, or its member died.
        user: the object through which it is used, unless that was forgotten.
    """

    __slots__ = ("holder", "member", "over", "user", "waiting")

    def __init__(self) -> None:
        self.holder = threading.current_thread()
        self.member: Member | None = None
        self.waiting: deque[Call[Any]] = deque()
        self.over = False
        self.user: ref[object] | None = None

    @property
    def forgotten(self) -> bool:
        """It cannot be used any more. For the watch: ``is_alive`` that is cut short takes the thread for ended."""
        return (self.user is not None and self.user() is None) or not self.holder.is_alive()


class MemberBackend(Protocol):
    pid: int

    def start(self) -> None: ...

    def deliver(self, _call: Call[Any], /) -> bool:
        """Run what was booked, without the scheduler's lock; again does nothing. False: it was cancelled before."""
        ...

    def leave(self) -> None: ...

    def kill(self, reason: str) -> None: ...

    def interrupt(self) -> None: ...

    def join(self, timeout: float | None) -> bool:
        """Wait for its thread; True when that has ended, or never ran, or is the one that asks."""
        ...

    def where(self) -> str: ...

    def disown(self) -> None:
        """This is a fork of the pool's process: let go of what belongs to that."""


class Member:
    """A place in the pool, which survives the threads or processes that fill it. Written under the scheduler's lock.

    Attributes:
        id: its number, from 0; what keys are hashed to.
        load: calls that it has, the running one included.
        running: the call that was booked for it, or the lease that holds it, since ``since``.
        inbox: calls that wait for this member, oldest first (ordered, and any of them can be forgotten at once).
        urgent: broadcasts, which go before all else.
        lease: who has it to himself.
        away: there is no thread or process at the moment.
        leaving: it gets no more calls; ``doomed``: it is being killed.
        done: calls that it ended.
        restarts: how often its thread or process was replaced; ``reason``: what ended that last.
    """

    __slots__ = (
        "away", "body", "done", "doomed", "id", "inbox", "lease", "leaving", "load", "reason", "restarts",
        "running", "since", "urgent",
    )  # fmt: skip

    body: MemberBackend

    def __init__(self, id: int) -> None:
        self.id = id
        self.load = 0
        self.running: Call[Any] | None = None
        self.since = 0.0
        self.inbox: OrderedDict[Call[Any], None] = OrderedDict()
        self.urgent: deque[Call[Any]] = deque()
        self.lease: Lease | None = None
        self.away = True
        self.leaving = False
        self.doomed = False
        self.done = 0
        self.restarts = 0
        self.reason = ""

    def __repr__(self) -> str:
        return f"<Member {self.id} load={self.load}>"


def settle(call: Call[Any], result: object, error: BaseException | None) -> None:
    """Give a call its end, unless it has one: that of a member that was given up may come late."""
    try:
        if error is None:
            call.drop()
            call.set_result(result)
        else:
            if call.silent and not call.done():
                log.warning("a cast of %s failed", call.title, exc_info=error)
            call.drop()
            call.set_exception(error)
    except InvalidStateError:
        return


class KeyHome:
    """Where the calls of one key are, while there are any: a resize must not let a later one overtake."""

    __slots__ = ("calls", "member")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.calls = 0


class CallQueues:
    """The waiting calls of one pool.

    Attributes:
        central: those that wait for any free member.
        waiting: how many wait there and at members; ``backlog``: how many may.
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
        call.waits_for = member
        call.line = self.central if member is None else member.inbox
        call.line[call] = None
        self.waiting += 1

    def admit(self, member: Member | None, call: Call[Any]) -> None:
        if self.waiting >= self.backlog:
            self._check_room(member)
        self.add(member, call)

    def soon_free(self, member: Member | None) -> bool:
        if member is not None:
            return member in self.starting and not member.inbox
        return len(self.central) < sum(not each.inbox for each in self.starting)

    def _surplus(self) -> int:
        empty = sum(not each.inbox for each in self.starting)
        return self.waiting - (len(self.starting) - empty) - min(empty, len(self.central))

    def next(self, member: Member) -> Call[Any] | None:
        inbox, line = member.inbox, self.central
        # The first that came: neither those of a busy key nor the central ones may starve the others.
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
        line = call.line
        if line is None:
            return False
        del line[call]
        call.line = None
        self.waiting -= 1
        self.leave_home(call)
        return True

    def clear(self, member: Member | None) -> list[Call[Any]]:
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

    def home(self, call: Call[Any], key: Key, member: Member) -> Member:
        """The member for a new call of a key: where the key's other calls are, or else the chosen one."""
        home = self.homes.get(key)
        there = member if home is None else home.member
        if self.waiting >= self.backlog and (there.running is not None or there.away):
            self._check_room(there)
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

    def _check_room(self, member: Member | None) -> None:
        if not self.soon_free(member) and self._surplus() >= self.backlog:
            text = f"{self.waiting} calls wait already, as many as backlog= allows"
            raise PoolFull(f"{text}: call again later, or raise it")
