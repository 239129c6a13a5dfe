"""One call to a pool: a :class:`concurrent.futures.Future` that knows what it runs. Decides nothing."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, PENDING, RUNNING
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.pool.unbroken import CallCondition

if TYPE_CHECKING:
    from headrace.dispatch.hash_ring import Key
    from headrace.pool.lease import Lease
    from headrace.pool.member import Member
    from headrace.pool.scheduler import Scheduler

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
        watched: somebody has set a callback, which will run in the member's thread.
        silent: nobody will ask for its result; errors are logged.
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
        self, scheduler: Scheduler, fn: Callable[..., T] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
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
        self._scheduler = scheduler

    def cancel(self) -> bool:
        """Cancel the call; False when it has begun. A cancelled call never runs, and its place in the line is free."""
        if not super().cancel():
            return False
        try:
            # One that was taken out by its member meanwhile is noticed there.
            self._scheduler.withdraw(self)
        finally:
            self.begin()
        return True

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self.watched = True
        super().add_done_callback(fn)

    def begin(self) -> bool:
        """From here on it can no longer be cancelled; False when it was, or when it has begun before.

        Who waits for a cancelled call is told by this, so somebody must call it for each.
        """
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
        """The function's name, for people."""
        fn = self.fn
        if fn is None:
            return "a lease" if self.lease else ""
        return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"


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


def outcome(future: Future[Any]) -> tuple[object, BaseException | None]:
    """How a future that is done ended."""
    error = future.exception()
    return (None if error else future.result()), error
