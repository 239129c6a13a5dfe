"""What the thread or process behind a member asks of its pool, and what it reports there."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.pool.pool_options import PoolOptions
from headrace.pool.scheduler import Scheduler
from headrace.pool.state import Call, Member


class BackendOwner(Protocol):
    """A pool as its back-ends see it.

    Attributes:
        name: of the pool.
        options: what its user has chosen.
        scheduler: which call a member runs next.
    """

    name: str
    options: PoolOptions
    scheduler: Scheduler

    def ready(self, member: Member) -> Call[Any] | None:
        """A member's thread or process can work; what it runs first, or None."""
        ...

    def lost(self, member: Member, reason: str) -> float | None:
        """A member's thread or process is gone; the seconds that its replacement waits, or None: there is none."""
        ...

    def gone(self, member: Member, reason: str = "") -> None:
        """A member's thread or process has ended and will not be replaced."""
        ...
