"""A member for one caller alone. Owns what that caller has asked of it; the scheduler does the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from headrace.pool.call import Call
    from headrace.pool.member import Member
    from headrace.pool.scheduler import Scheduler

T = TypeVar("T")


class Lease:
    """The scheduler's side of a lease. Written under the scheduler's lock.

    Attributes:
        holder: the thread that has it; when that has ended, the member is given back.
        member: who is leased; None before it is granted.
        waiting: calls that were asked of it and have not begun.
        over: given back, or its member died.
        user: the object through which it is used, unless that was forgotten.
        dropped: its user was cut short as it got it or gave it back. Written without the lock.
    """

    __slots__ = ("dropped", "holder", "member", "over", "user", "waiting")

    def __init__(self) -> None:
        self.holder = threading.current_thread()
        self.member: Member | None = None
        self.waiting: deque[Call[Any]] = deque()
        self.over = False
        self.user: ref[Leased] | None = None
        self.dropped = False

    @property
    def forgotten(self) -> bool:
        """Nobody can use it any more. For the watch: ``is_alive`` that is cut short takes the thread for ended."""
        return self.dropped or (self.user is not None and self.user() is None) or not self.holder.is_alive()


class Leased:
    """A member of the pool that runs only what is asked through this object; a context manager.

    It is given back at the end of the block, when this object is forgotten, and when the thread that asked for it
    ends, whichever comes first. What was submitted before that still runs.

    Attributes:
        id: the member's number.
    """

    def __init__(self, scheduler: Scheduler, lease: Lease, member: int, make: Callable[..., Call[Any]]) -> None:
        self.id = member
        self._scheduler = scheduler
        self._lease = lease
        self._make = make
        # No __del__: an exception in it would be lost, and the lease kept.
        lease.user = ref(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Call[T]:
        """Run a function on this member, after those submitted before.

        Raises:
            PoolClosed: it was given back, or its member died.
        """
        call = self._make(fn, args, kwargs)
        self._scheduler.place_leased(self._lease, call)
        return call

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The result of a function on this member."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except BaseException:
            self._lease.dropped = True
            raise
