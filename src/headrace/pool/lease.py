"""A member for one caller alone. Owns what that caller has asked of it; the desk does the rest."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from headrace.pool.call import Call
    from headrace.pool.desk import Desk
    from headrace.pool.member import Member

T = TypeVar("T")


class Lease:
    """The desk's side of a lease. Written under the desk's lock.

    Attributes:
        holder: the thread that has it; when that has ended, the member is given back.
        member: who is leased; None before it is granted.
        waiting: calls that were asked of it and have not begun.
        over: given back, or its member died.
        forgotten: nobody can use it any more. Written without the lock.
    """

    __slots__ = ("forgotten", "holder", "member", "over", "waiting")

    def __init__(self) -> None:
        self.holder = threading.current_thread()
        self.member: Member | None = None
        self.waiting: deque[Call[Any]] = deque()
        self.over = False
        self.forgotten = False


class Leased:
    """A member of the pool that runs only what is asked through this object; a context manager.

    It is given back at the end of the block, when this object is forgotten, and when the thread that asked for it
    ends, whichever comes first. What was submitted before that still runs.

    Attributes:
        id: the member's number.
    """

    def __init__(self, desk: Desk, lease: Lease, member: int, make: Callable[..., Call[Any]]) -> None:
        self.id = member
        self._desk = desk
        self._lease = lease
        self._make = make

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Call[T]:
        """Run a function on this member, after those submitted before.

        Raises:
            PoolClosed: it was given back, or its member died.
        """
        call = self._make(fn, args, kwargs)
        self._desk.place_leased(self._lease, call)
        return call

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The result of a function on this member."""
        return self.submit(fn, *args, **kwargs).result()

    def release(self) -> None:
        """Give the member back; again does nothing."""
        self._desk.release(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # Only a mark, which the watch sees: this may run in the midst of anything, the desk's lock held included.
        self._lease.forgotten = True
