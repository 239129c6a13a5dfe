"""The clock of a test: it runs with the server's, and is moved ahead of it on request.

Owns one number. What it means to the store is in kit_store.py; what happens when it moves, in kit.py.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

from headrace.settings import Duration, microseconds, seconds


class VirtualClock:
    """The time of a kit, which decides when delays, retries, leases and retentions are over.

    Attributes:
        offset: microseconds that it is ahead of the server's clock.
    """

    def __init__(self, moved: Callable[[int], None]) -> None:
        """Use ``kit.clock``; ``moved`` is called with the microseconds of each move."""
        self.offset = 0
        self._moved = moved

    @property
    def now(self) -> dt.datetime:
        """The time of the test, in UTC. Cost: none."""
        return dt.datetime.fromtimestamp(self.microseconds / 1e6, dt.UTC)

    @property
    def microseconds(self) -> int:
        """The same, in microseconds."""
        return time.time_ns() // 1000 + self.offset

    def advance(
        self, amount: Duration = 0, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let time pass: what becomes due by then is ready to run, and what expires by then is gone.

        Nothing runs; ``drain`` does that. Limits of code that runs (``timeout=``) and Python's own clocks do not
        change.

        Args:
            amount: seconds or a timedelta; the parts are added to it.

        Raises:
            OptionsError: the sum is negative: time does not go back.

        Cost: a few round trips, and two more per 1,000 keys of the test.
        """
        parts = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self.move(microseconds(_sum(amount, parts)))

    def move(self, by: int) -> None:
        """As :meth:`advance`, in microseconds."""
        if by > 0:
            self.offset += by
            self._moved(by)


def _sum(amount: Duration, parts: dt.timedelta) -> float:
    whole = amount if isinstance(amount, dt.timedelta) else dt.timedelta(seconds=amount)
    return seconds(whole + parts, "the time that passes")
