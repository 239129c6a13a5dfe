"""How soon a dead member is replaced: at once, until they die too often; then ever later. Decides; starts nothing."""

from __future__ import annotations

from collections import deque

# Seconds before the first late restart, and at most.
FIRST, MOST = 1.0, 60.0


class Restarts:
    """The deaths in one pool.

    Attributes:
        late: consecutive deaths beyond the limit; 0 while all is well.
    """

    def __init__(self, limit: int, period: float) -> None:
        self._limit = limit
        self._period = period
        self._deaths: deque[float] = deque()
        self._wait = 0.0
        self.late = 0

    def delay(self, now: float) -> float:
        """Count a death at ``now`` (monotonic seconds); how many seconds its replacement must wait.

        Beyond the limit within the period it is 1, 2, 4 and so on up to 60 s, until a period has passed quietly:
        members that all die of one cause would otherwise take the machine's time from those who could help.
        """
        deaths = self._deaths
        if deaths and now - deaths[-1] > self._period + self._wait:
            deaths.clear()
            self.late = 0
        deaths.append(now)
        while not self.late and now - deaths[0] > self._period:
            deaths.popleft()
        while len(deaths) > self._limit + 1:
            deaths.popleft()
        if len(deaths) > self._limit:
            self.late += 1
        self._wait = min(MOST, FIRST * 2 ** min(self.late - 1, 10)) if self.late else 0.0
        return self._wait
