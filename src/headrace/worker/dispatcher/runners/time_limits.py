"""When a start must be stopped: a heap of deadlines. Decides; stops nothing."""

from __future__ import annotations

import heapq
from typing import Literal

import msgspec

from headrace.worker.dispatcher.runners.runner_handle import Attempt

Stage = Literal["soft", "again", "hard"]

# Seconds until a start that was interrupted is interrupted again.
AGAIN = 0.1


class Deadline(msgspec.Struct, frozen=True, order=True):
    """One limit of one start.

    Attributes:
        stage: ``soft`` (interrupt the code), ``again`` (it was told, and goes on), or ``hard`` (kill the runner).
    """

    when: float
    token: int
    stage: Stage


class Limits:
    """Deadlines of the starts that run. A deadline whose start has ended is forgotten when it comes."""

    def __init__(self, kill_timeout: float) -> None:
        self._heap: list[Deadline] = []
        self._kill_timeout = kill_timeout

    def begin(self, start: Attempt, now: float) -> None:
        plan, token = start.plan, start.claim.token
        if plan.timeout is not None:
            start.limited_at = now + plan.timeout
            heapq.heappush(self._heap, Deadline(start.limited_at, token, "soft"))
        hard = plan.hard_timeout
        if hard is None and plan.timeout is not None:
            hard = plan.timeout + self._kill_timeout
        if hard is not None:
            start.kill_at = now + hard
            heapq.heappush(self._heap, Deadline(start.kill_at, token, "hard"))

    def cancel(self, start: Attempt, now: float) -> None:
        """The start was asked to stop; the kill follows after ``kill_timeout``."""
        kill_at = now + self._kill_timeout
        start.kill_at = min(start.kill_at or kill_at, kill_at)
        heapq.heappush(self._heap, Deadline(kill_at, start.claim.token, "hard"))

    def remind(self, start: Attempt, now: float) -> None:
        """The start was interrupted: do so again after a while, twice as long each time, until it ends.

        A signal that comes in the moment before a system call that waits does not end that call.
        """
        heapq.heappush(self._heap, Deadline(now + AGAIN * 2**start.reminders, start.claim.token, "again"))
        start.reminders += 1

    @property
    def next(self) -> float:
        """When the next one is due; infinity when none is."""
        return self._heap[0].when if self._heap else float("inf")

    @staticmethod
    def concerns(deadline: Deadline, start: Attempt) -> bool:
        """Whether a deadline is one of this start, not of one that was taken back: the job has its token again."""
        if deadline.stage == "soft":
            return start.limited_at == deadline.when
        if deadline.stage == "hard":
            return 0 < start.kill_at <= deadline.when
        return start.reminders > 0

    def due(self, now: float) -> list[Deadline]:
        found: list[Deadline] = []
        while self._heap and self._heap[0].when <= now:
            found.append(heapq.heappop(self._heap))
        return found
