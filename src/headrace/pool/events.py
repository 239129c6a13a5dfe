"""The options of a pool, its events, and its statistics.

Callbacks and overrun handlers run in a thread of their own, so that slow or broken ones hold up no call.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec

from headrace.clock import monotonic
from headrace.dispatch import Strategy, named
from headrace.errors import OptionsError
from headrace.mailbox import Mailbox
from headrace.pool.scheduler import Scheduler
from headrace.pool.state import Member


class Overrun(msgspec.Struct, frozen=True):
    """Warn about calls that run long.

    Attributes:
        after: seconds that a call runs before the first alert.
        limit: with a limit, alerts come every ``after`` seconds, and at the last of them the member is killed: 1 s and
            5 kill at 5 s. Without one the time doubles, 1, 2, 4 s and so on, and no process is killed.
    """

    after: float
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.after > 0:
            raise OptionsError(f"Overrun(after={self.after!r}): seconds before the first alert, more than 0")
        if self.limit is not None and self.limit < 1:
            raise OptionsError(
                f"Overrun(limit={self.limit!r}): the alert that kills, counted from 1; None kills no process"
            )

    def due(self, number: int) -> float:
        return self.after * (number if self.limit else 2 ** (number - 1))

    def last(self, number: int) -> bool:
        return self.limit is not None and number >= self.limit


class Alert(msgspec.Struct, frozen=True):
    """A call that ran too long, as a handler gets it.

    Attributes:
        kind: ``overrun``, or ``limit`` when its member is being killed.
        call: the function's name; it had run for ``seconds``.
        number: which alert about this call, counted from 1.
    """

    kind: Literal["overrun", "limit"]
    pool: str
    member: int
    call: str
    seconds: float
    number: int


Kind = Literal["thread", "process"]
Handler = Callable[[Alert], object]


class Keywords(TypedDict, total=False):
    """The keywords of :class:`headrace.Pool`; explained at :class:`PoolOptions`, whose fields they are."""

    kind: Kind
    strategy: str | Strategy[Any]
    queue: Literal["fifo", "lifo"]
    backlog: int | None
    overrun: Overrun | float | None
    overrun_handlers: Iterable[Handler] | None
    callbacks: Iterable[object]
    restarts: int
    period: float
    shutdown_timeout: float
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    name: str


class PoolOptions(msgspec.Struct, frozen=True):
    """How a pool works; the keywords of :class:`headrace.Pool`.

    Attributes:
        kind: ``thread`` or ``process``.
        strategy: who gets a call that does not say: a name or a function.
        queue: order in which the central queue is served, ``fifo`` or ``lifo``.
        backlog: calls that may wait; 0 refuses what cannot run at once, None has no bound.
        overrun: alerts for calls that run long; None for none.
        overrun_handlers: called with each alert; the default logs a warning.
        callbacks: objects told of the pool's life, see :class:`headrace.pool.Callbacks`.
        restarts: deaths within ``period`` seconds that are made good at once; later ones wait. 0: one breaks the pool.
        period: see ``restarts``.
        shutdown_timeout: seconds that :meth:`headrace.Pool.stop` lets running calls go on.
        initializer: run in each member before its first call; one that raises is a death.
        initargs: its arguments.
        name: for logs and errors.
    """

    kind: Kind = "thread"
    strategy: str | Strategy[Any] = "available"
    queue: Literal["fifo", "lifo"] = "fifo"
    backlog: int | None = 1_000_000
    overrun: Overrun | float | None = None
    overrun_handlers: Iterable[Handler] | None = None
    callbacks: Iterable[object] = ()
    restarts: int = 5
    period: float = 60.0
    shutdown_timeout: float = 5.0
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        named(self.strategy)
        for field, value, words in (
            ("kind", self.kind, ("thread", "process")),
            ("queue", self.queue, ("fifo", "lifo")),
        ):
            if value not in words:
                raise OptionsError(f"{field}={value!r}: {words[0]!r} or {words[1]!r}")
        for field, number in (
            ("backlog", self.backlog or 0),
            ("restarts", self.restarts),
            ("shutdown_timeout", self.shutdown_timeout),
        ):
            if number < 0:
                raise OptionsError(f"{field}={number!r}: 0 or more")
        if not self.period > 0:
            raise OptionsError(f"period={self.period!r}: seconds in which deaths are counted, more than 0")
        if self.initializer is not None and not callable(self.initializer):
            raise OptionsError(f"initializer={self.initializer!r} cannot be called: pass a function")

    @property
    def alerts(self) -> Overrun | None:
        return Overrun(self.overrun) if isinstance(self.overrun, int | float) else self.overrun


def members(n: int) -> int:
    if isinstance(n, bool) or n < 1:
        raise OptionsError(f"a pool of {n!r} members cannot run anything: 1 or more")
    return n


log = logging.getLogger("headrace.pool")


class Callbacks:
    """What a callback object may have; it needs only one of these, and need not derive from this class."""

    def on_start(self, pool: str) -> None:
        """The pool is about to start its members."""

    def on_member(self, pool: str, member: int) -> None:
        """A member, new or restarted, is ready."""

    def on_death(self, pool: str, member: int, reason: str) -> None:
        """A member ended: ``left`` when it was removed or the pool shut down, else what killed it."""


NAMES = tuple(name for name in vars(Callbacks) if name.startswith("on_"))


class Events:
    def __init__(self, pool: str, callbacks: Iterable[object], handlers: Iterable[Handler] | None) -> None:
        self._pool = pool
        self._callbacks = tuple(callbacks)
        self._handlers: tuple[Handler, ...] = (_warn,) if handlers is None else tuple(handlers)
        self._queue: Mailbox[tuple[Callable[..., object], tuple[Any, ...]] | None] = Mailbox()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        for callback in self._callbacks:
            if knows_none(callback):
                log.warning("%s: %r has none of %s; it will never be called", pool, callback, ", ".join(NAMES))

    def add(self, callback: object) -> None:
        if knows_none(callback):
            raise OptionsError(f"{callback!r} has none of {', '.join(NAMES)}: give it one of them")
        with self._lock:
            self._callbacks += (callback,)

    def remove(self, callback: object) -> None:
        with self._lock:
            self._callbacks = tuple(known for known in self._callbacks if known is not callback)

    def add_handler(self, handler: Handler) -> None:
        with self._lock:
            self._handlers += (handler,)

    def tell(self, name: str, *details: object) -> None:
        for callback in self._callbacks:
            method = getattr(callback, name, None)
            if method is not None:
                self._post(method, (self._pool, *details))

    def alert(self, alert: Alert) -> None:
        for handler in self._handlers:
            self._post(handler, (alert,))

    def close(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._queue.put(None)
                self._thread = None

    def _post(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        with self._lock:
            self._queue.put((function, arguments))
            if self._thread is None:
                thread = threading.Thread(target=self._deliver, name=f"{self._pool}-events", daemon=True)
                with suppress(RuntimeError):  # there is no room for one now: the next event tries again
                    thread.start()
                    self._thread = thread

    def _deliver(self) -> None:
        while (item := self._queue.get()) is not None:
            function, arguments = item
            try:
                function(*arguments)
            except BaseException:  # an exit would end this thread, and with it all that is told later
                log.warning("%s: the callback %r failed", self._pool, function, exc_info=True)


def knows_none(callback: object) -> bool:
    return not any(callable(getattr(callback, name, None)) for name in NAMES)


def _warn(alert: Alert) -> None:
    what = "is killed for it" if alert.kind == "limit" else "goes on"
    log.warning(
        "%s: %s has run for %.3g s on member %d, which %s", alert.pool, alert.call, alert.seconds, alert.member, what
    )


class MemberStats(msgspec.Struct, frozen=True):
    """One member.

    Attributes:
        id: its number; it keeps it over restarts.
        state: ``idle``, ``busy``, ``away`` (starting, or waiting to be restarted) or ``leaving`` (being removed).
        waiting, done: calls that wait for this member, and that it ended.
        restarts: how often it was replaced; ``reason``: what ended it last.
        pid: its process; that of the pool for threads.
        memory: resident bytes of its process; None for threads, and where the system does not tell.
        call: the function that it runs, or empty; it has run for ``seconds``.
        where: file, line and function that a thread is at; empty for processes and idle members.
    """

    id: int
    state: Literal["idle", "busy", "away", "leaving"]
    waiting: int
    done: int
    restarts: int
    pid: int
    memory: int | None
    call: str
    where: str
    seconds: float
    reason: str


class PoolStats(msgspec.Struct, frozen=True):
    """A pool.

    Attributes:
        size: members that it should have.
        waiting: calls that wait, at members and centrally; expired and cancelled ones are not among them.
        central: those of them that wait for any free member, the first for ``oldest`` seconds.
        backlog: how many may wait; None without a bound.
        done: calls that ended.
        broken: why calls are refused at the moment, or empty.
        members: one record each; removed ones that still work are included.
    """

    name: str
    kind: str
    strategy: str
    queue: str
    size: int
    waiting: int
    central: int
    backlog: int | None
    oldest: float
    done: int
    broken: str
    members: tuple[MemberStats, ...]


def census(name: str, options: PoolOptions, scheduler: Scheduler) -> PoolStats:
    """The statistics of a pool. Cost: O(members), and for processes one small file read each."""
    now = monotonic()
    with scheduler.lock:
        members = list(scheduler.members)
        size, waiting, central = scheduler.snapshot.size, scheduler.lines.waiting, len(scheduler.lines.central)
        done = scheduler.retired + sum(member.done for member in members)
        oldest = max(0.0, now - next(iter(scheduler.lines.central)).born) if scheduler.lines.central else 0.0
    chosen = options.strategy if isinstance(options.strategy, str) else getattr(options.strategy, "__name__", "")
    return PoolStats(
        name=name, kind=options.kind, strategy=chosen, queue=options.queue, size=size, waiting=waiting,
        central=central, backlog=options.backlog, oldest=oldest, done=done, broken=scheduler.broken,
        members=tuple(_member(member, options.kind, now) for member in members),
    )  # fmt: skip


def _member(member: Member, kind: str, now: float) -> MemberStats:
    # One reference: what runs may end between two looks at it.
    call, pid = member.running, member.body.pid
    busy = call is not None
    return MemberStats(
        id=member.id, state="leaving" if member.leaving else "away" if member.away else "busy" if busy else "idle",
        waiting=len(member.inbox) + len(member.urgent),
        done=member.done, restarts=member.restarts, pid=pid, memory=_memory(pid) if kind == "process" else None,
        call=call.title if call is not None else "", where=member.body.where() if busy else "",
        seconds=max(0.0, now - member.since) if busy else 0.0, reason=member.reason,
    )  # fmt: skip


def _memory(pid: int) -> int | None:
    if not sys.platform.startswith("linux") or not pid:
        return None
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        # It has just died: the statistics of the others are wanted anyway.
        return None
