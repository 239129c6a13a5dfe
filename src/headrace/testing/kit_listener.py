"""What hears of ends in a test: the real listener, at the kit's time, which tells a wait that nothing can end.

Without a drain nothing runs, and a wait without a time would last for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.store.end_listener import EndListener, Look, Tell
from headrace.testing.drained import DrainError
from headrace.testing.virtual_clock import VirtualClock

# Seconds for which a wait goes on while no drain does anything: another thread, or task, may begin one.
PATIENCE = 1.0


class KitListener(EndListener):
    """The listener of an application that a kit has taken over."""

    def __init__(self, url: str, settings: Settings, clock: VirtualClock, progress: Callable[[], int | None]) -> None:
        """Make one.

        Args:
            progress: a number that changes while jobs run; None while one does.
        """
        super().__init__(url, settings)
        self._clock = clock
        self._progress = progress

    def add(self, looks: Sequence[tuple[str, Look]], tell: Tell) -> None:
        super().add([(id, partial(self._now, look)) for id, look in looks], tell)
        self._doubt([id for id, _ in looks], tell, self._progress())

    def ask(self, calls: Sequence[Call[Any]], tell: Tell) -> None:
        super().ask([call.at(-self._clock.offset) for call in calls], tell)

    def _now(self, look: Look, keys: Keys, id: str, wait: int) -> Call[Any]:
        return look(keys, id, wait).at(-self._clock.offset)

    def _doubt(self, ids: Sequence[str], tell: Tell, before: int | None) -> None:
        timer = threading.Timer(PATIENCE, self._judge, (ids, tell, before))
        timer.daemon = True
        timer.start()

    def _judge(self, ids: Sequence[str], tell: Tell, before: int | None) -> None:
        """Tell those who still wait that nothing has run since."""
        waiting = [id for id in ids if (wait := self._waits.get(id)) is not None and tell in wait.tells]
        if not waiting:
            return
        now = self._progress()
        if now is None or now != before:
            self._doubt(waiting, tell, now)
            return
        many = f"job {waiting[0]}" + (f" and {len(waiting) - 1} more" if len(waiting) > 1 else "")
        tell(
            DrainError(
                f"a wait for {many} cannot end: nothing runs in a test until it drains. Call drain() before, have "
                f"adrain() run beside the wait, or use mode='inline'"
            )
        )
