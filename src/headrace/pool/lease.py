"""A member for one caller alone, as that caller uses it. Owns nothing; the scheduler does the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar
from weakref import ref

from headrace.pool.scheduler import Scheduler
from headrace.pool.state import Call, Lease

T = TypeVar("T")


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

    def __exit__(self, *_: object) -> None:
        try:
            self.release()
        except BaseException:
            self._lease.dropped = True
            raise
