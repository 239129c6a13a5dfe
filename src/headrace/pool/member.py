"""One member as the scheduler sees it, and what its thread or process must be able to do. Decides nothing."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Protocol

from headrace.pool.call import Call
from headrace.pool.lease import Lease


class MemberBackend(Protocol):
    """The thread or process behind a member."""

    pid: int

    def start(self) -> None: ...

    def deliver(self, _call: Call[Any], /) -> bool:
        """Run what was booked: ``member.running``. Said without the scheduler's lock; again does nothing.

        False when it was cancelled before: then somebody must finish it.
        """
        ...

    def leave(self) -> None:
        """Nothing runs and nothing will come."""
        ...

    def kill(self, reason: str) -> None:
        """End it now, with whatever it runs."""
        ...

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in what it runs, where that is possible."""
        ...

    def join(self, timeout: float | None) -> bool:
        """Wait for its thread; True when that has ended, or never ran, or is the one that asks."""
        ...

    def where(self) -> str: ...

    def disown(self) -> None:
        """This is a fork of the pool's process: let go of what belongs to that."""
        ...


class Member:
    """A place in the pool, which survives the threads or processes that fill it. Written under the scheduler's lock.

    Attributes:
        id: its number, from 0; what keys are hashed to.
        load: calls that it has, the running one included.
        running: the call that was booked for it, or the lease that holds it.
        since: monotonic time at which that was.
        inbox: calls that wait for this member, oldest first (ordered, and any of them can be forgotten at once).
        urgent: broadcasts, which go before all else.
        lease: who has it to himself.
        away: there is no thread or process at the moment.
        leaving: it gets no more calls.
        doomed: it is being killed.
        done: calls that it ended.
        restarts: how often its thread or process was replaced.
        reason: what ended that last.
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
