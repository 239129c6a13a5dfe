"""Where the supervisor has tried what jobs do again and again, and does it once for all of them if that is wanted.

Owns the one rehearsal that may be under way: its process and its voice, which the supervisor's loop waits for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
from typing import TYPE_CHECKING, Protocol

from headrace.settings import AUTO, preload_names
from headrace.worker.forking import leak_check
from headrace.worker.messages import Judged, Rehearse
from headrace.worker.preload import trial, warmup

if TYPE_CHECKING:
    from headrace.app import Headrace

log = logging.getLogger("headrace.worker")


class Tell(Protocol):
    """Told what came of a rehearsal; ``adopted``: what is warm was done in this process."""

    def __call__(self, judged: list[Judged], *, adopted: bool) -> None: ...


class Stage:
    """The rehearsals of one supervisor."""

    def __init__(self, app: Headrace, selector: selectors.BaseSelector, tell: Tell) -> None:
        self._app = app
        self._selector = selector
        self._tell = tell
        self._auto = AUTO in preload_names(app.settings.preload)
        self._pid = 0
        self._voice: int | None = None
        self._said = b""

    def rehearse(self, request: Rehearse) -> None:
        """Try what the request names, in a child; the answer is told when that has ended."""
        # A dispatcher may have died and left one under way: its successor asks for itself.
        self.close()
        warmup.write_out()
        never = {task.function for task in self._app.tasks.values()}
        try:
            self._pid, self._voice = trial.begin(request, never)
        except OSError as error:
            log.warning("no rehearsal can be forked (%s): nothing is tried", error)
            self._tell([], adopted=False)
            return
        self._said = b""
        self._selector.register(self._voice, selectors.EVENT_READ, self._on_voice)

    def reaped(self, pid: int) -> bool:
        """Whether this was ours: its process id may be another's from now on."""
        if pid != self._pid:
            return False
        self._pid = 0
        return True

    def close(self) -> None:
        """End what is under way."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._voice is not None:
            self._selector.unregister(self._voice)
            os.close(self._voice)
            self._voice = None

    def _on_voice(self) -> None:
        voice = self._voice
        if voice is None:
            return
        try:
            while data := os.read(voice, 1 << 16):
                self._said += data
        except BlockingIOError:
            return
        self._hang_up()
        judged = trial.read(self._said)
        self._tell(judged, adopted=self._auto and self._adopt(judged))

    def _adopt(self, judged: list[Judged]) -> bool:
        """Do here what the rehearsal found warm, so that whatever is forked from now on finds it done."""
        done: list[str] = []
        for one in judged:
            if one.word != trial.WARM:
                continue
            before = leak_check.look()
            try:
                warmup.preload(one.name)
            except (Exception, SystemExit):
                log.exception("the preload of %s failed, which its rehearsal had not", one.name)
                continue
            for complaint in warmup.complaints(f"the preload of {one.name}", before):
                log.error("%s", complaint)
            done.append(f"{one.name} ({one.cost / 1e3:.3g} ms)")
        if done:
            warmup.compact()
            log.info("runners that are forked from now on find this done: %s", ", ".join(done))
        return bool(done)
