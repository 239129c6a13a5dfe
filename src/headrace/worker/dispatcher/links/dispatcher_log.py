"""What the dispatcher logs, in the form of the log: the actions of its core, of which floods are folded."""

from __future__ import annotations

import logging
import time

from headrace.worker.dispatcher.dispatcher_events import Log

log = logging.getLogger("headrace.worker")

# Lines of one code and task that a second has room for.
MOST = 10


class DispatcherLog:
    """Writes lines, unless more than a few of one code and task come within a second. Times are monotonic seconds.

    Attributes:
        next: when :meth:`pass_on` must be called.
    """

    def __init__(self, *, fold: bool = True) -> None:
        """Make one; ``fold``: False where the user asked for a line of each start."""
        self.next = float("inf")
        self._fold = fold
        self._since = 0.0
        self._counts: dict[tuple[str, str], list[int]] = {}

    def write(self, action: Log) -> None:
        extra = action.extra or {}
        task = extra.get("facts", {}).get("task", "")
        if task and self._fold:
            now, code = time.monotonic(), extra.get("code", "")
            self.pass_on(now)
            if not self.admits(code, task, action.level, now):
                return
        log.log(action.level, action.text, *action.args, extra=action.extra)

    def pass_on(self, now: float) -> None:
        """Tell how many lines were held back, when their second is over."""
        for level, code, task, count in self.rest(now):
            facts = {"task": task, "more": count}
            log.log(level, "and %d more of %s (%s)", count, task, code, extra={"code": code, "facts": facts})

    def admits(self, code: str, task: str, level: int, now: float) -> bool:
        """Whether a line is to be logged; else it is counted."""
        if now - self._since >= 1.0 and self.next > now:
            self._counts.clear()
            self._since = now
        row = self._counts.setdefault((code, task), [0, level])
        row[0] += 1
        if row[0] > MOST:
            self.next = self._since + 1.0
        return row[0] <= MOST

    def rest(self, now: float) -> list[tuple[int, str, str, int]]:
        """Level, code, task and number of lines that were held back, once their second is over."""
        if now < self.next:
            return []
        held = [(level, *key, count - MOST) for key, (count, level) in self._counts.items() if count > MOST]
        self._counts.clear()
        self._since, self.next = now, float("inf")
        return held
