"""What a duty of the dispatcher is: a time, a call that is due then, and what its reply tells. See maintenance.py."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.protocol import consume
from headrace.protocol.script import Call
from headrace.worker.dispatcher.timers import NEVER

# The most rows that one call handles.
BATCH = 500
# A lease that is over is looked at so much later (seconds): at the very moment its owner may still be renewing.
LATE = 0.05


class Duty(Protocol):
    """One duty. Times are this process's monotonic seconds; what the server says in its own time is converted.

    Attributes:
        at: when it is due; infinity while that is not known. :meth:`call` moves it on.
        makes_ready: whether it may make jobs ready: a worker that leaves when all is done does it first.
    """

    at: float
    makes_ready: bool

    def call(self, now: float, /) -> Call[Any]:
        """The call that is due."""
        ...

    def on_reply(self, reply: Any, sent: float, /) -> None:
        """Learn from the reply to a call that was made at ``sent``."""
        ...

    def told(self, renewed: consume.Renewed, sent: float, /) -> None:
        """Learn from the reply to a renewal when the duty is due next."""
        ...


def moment(now: float, server_now: int, at: int) -> float:
    """When it is here that time by the server's clock; infinity for 0, which says that there is none."""
    return now + max(0, at - server_now) / 1e6 if at else NEVER
