"""What the dispatcher logs, in the form of the log: the actions of its core, of which floods are folded."""

from __future__ import annotations

import logging
import time

from headrace.worker.dispatcher.dispatcher_events import Log
from headrace.worker.dispatcher.links.log_folding import Flood

log = logging.getLogger("headrace.worker")


class DispatcherLog:
    """Writes lines, unless more than a few of one code and task come within a second."""

    def __init__(self, *, fold: bool) -> None:
        """Make one.

        Args:
            fold: False where the user asked for a line of each start.
        """
        self._fold = fold
        self._flood = Flood()

    @property
    def next(self) -> float:
        """When :meth:`pass_on` must be called (monotonic seconds)."""
        return self._flood.next

    def write(self, action: Log) -> None:
        """Write a line, or count it."""
        extra = action.extra or {}
        task = extra.get("facts", {}).get("task", "")
        if task and self._fold:
            now, code = time.monotonic(), extra.get("code", "")
            self.pass_on(now)
            if not self._flood.admits(code, task, action.level, now):
                return
        log.log(action.level, action.text, *action.args, extra=action.extra)

    def pass_on(self, now: float) -> None:
        """Tell how many lines were held back, when their second is over."""
        for level, code, task, count in self._flood.rest(now):
            facts = {"task": task, "more": count}
            log.log(level, "and %d more of %s (%s)", count, task, code, extra={"code": code, "facts": facts})
