"""The flusher: sends what the buffer holds, by size, by age, when asked and when the process ends.

Its thread lives only while something is held: an idle program has none, and a fork of it starts clean.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from headrace.clock import monotonic
from headrace.errors import HeadraceError
from headrace.stats.batch import Batch
from headrace.stats.buffer import Buffer
from headrace.stats.rows import Row
from headrace.store.connection import in_forks

log = logging.getLogger("headrace.stats")

# Seconds between two lines about what was dropped.
QUIET = 60.0


# Sends a batch; returns the rows that were not taken, to be merged again. Where it raises HeadraceError nobody knows
# what was taken, and the same batch may be sent again.
Sender = Callable[[Batch], list[Row]]


class Flusher:
    """One buffer's way out.

    Attributes:
        buffer: what is sent.
        size: calls that wait at most before they are sent.
        age: seconds that a call waits at most.
        failing: why the last flush failed, None after one that did not.
        refused: whether the last flush left counts here, since the line that they go to is full.
        pid: the process that uses it; 0 before its first use, and after its last.
        closing: whether this is the last flush of the process.
    """

    def __init__(self, buffer: Buffer, send: Sender, size: int, age: float) -> None:
        self.buffer = buffer
        self.size = size
        self.age = age
        self._send = send
        self.begin_anew()
        mine = weakref.ref(self)
        # Through a weak reference, so that the end of the process does not keep every flusher of it alive.
        atexit.register(_at_exit, mine)

    def begin_anew(self) -> None:
        """Be without thread, locks and troubles, as a forked child must."""
        self.pid = 0
        self.failing: HeadraceError | None = None
        self.refused = False
        self.closing = False
        self._told = 0
        self._quiet_until = 0.0
        self._warned = False
        self._lock = threading.RLock()
        self._sending = threading.RLock()
        # Not an event: a time limit that is raised in its Python code would keep its lock for ever.
        self._due: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def send_in_time(self, calls: int) -> None:
        """The buffer holds so many calls now: see to it that they are sent in time."""
        self._used_here()
        if calls >= self.size:
            self.rouse()
        with self._lock:
            # Before Python 3.12, the start of a thread waits for ever while the interpreter ends.
            if self._thread is None and not sys.is_finalizing():
                # A daemon: what it has not sent when the program ends is sent by the exit hook.
                self._thread = threading.Thread(target=self._run, name="headrace-stats", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    # The interpreter is about to end, and will flush; or there is no room now, and a later call tries.
                    self._thread = None

    def flush(self) -> None:
        """Send everything that was counted before this call.

        Raises:
            HeadraceError: it could not be sent; it is kept, and sent again by the next flush.

        A flush that is under way is waited for first; where that one fails, this one has failed too.

        Cost: one round trip, two after a failed flush; none when nothing is held.
        """
        self._used_here()
        known = self.failing
        with self._sending:
            if self.failing is not None and self.failing is not known:
                # While this one waited. To try again would take as long again, for each caller one after the other.
                raise copy.copy(self.failing)
            # What was not answered goes alone, with its number; what came since goes after it.
            for _ in range(2 if self.buffer.stuck else 1):
                batch = self.buffer.take()
                if batch is None:
                    return
                try:
                    left = self._send(batch)
                except HeadraceError as error:
                    self.failing = error
                    raise
                self.buffer.answered(batch, left)
                was_blocked = self._blocked()
                self.failing, self.refused, self._warned = None, bool(left), False
                if was_blocked and not left:
                    self._tell_of_losses()
                if left:
                    self.send_in_time(0)
                    return

    def make_room(self) -> bool:
        """Flush for a caller that finds the buffer full; False: that cannot be done now.

        After a flush that failed only the thread tries again: callers wait once for a server that is away, not for
        each count.

        Cost: as :meth:`flush`.
        """
        if self._blocked():
            return False
        try:
            self.flush()
        except HeadraceError as error:
            self._warn(error)
        return not self._blocked()

    def dropped(self) -> None:
        """Counters were dropped: say so, once a minute."""
        now = monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + QUIET
        line = "their line is full: start headrace stats consume" if self.refused else "they come faster than they go"
        log.warning("statistics are lost, %d counters so far: %s", self.buffer.lost, self.failing or line)

    def _tell_of_losses(self) -> None:
        """After an outage: how much it has cost."""
        if self.buffer.lost > self._told:
            log.warning("statistics are sent again; this process has lost %d counters so far", self.buffer.lost)
        self._told, self._quiet_until = self.buffer.lost, 0.0

    def _blocked(self) -> bool:
        return self.failing is not None or self.refused

    def _warn(self, error: HeadraceError) -> None:
        if not self._warned:
            log.warning("statistics could not be sent and will be sent again: %s", error)
        self._warned = True

    def _used_here(self) -> None:
        if not self.pid:
            self.pid = os.getpid()
            in_forks(self)
            if (processes := sys.modules.get("multiprocessing.util")) is not None:
                # Its processes end without the exit hooks of the interpreter.
                processes.Finalize(None, _at_exit, (weakref.ref(self),), exitpriority=0)

    def rouse(self) -> None:
        """Let the thread look at once; it ends when nothing is held."""
        if self._due.empty():
            self._due.put(None)

    def _wait(self, seconds: float) -> None:
        """Wait until somebody rouses the thread or the time is over, and forget who did."""
        with contextlib.suppress(Empty):
            self._due.get(timeout=seconds)
            while True:
                self._due.get_nowait()

    def _run(self) -> None:
        while True:
            self._wait(self.age)
            try:
                self.flush()
            except HeadraceError as error:
                self._warn(error)
                # The store has tried for long; full buffers must not make it try without a pause.
                self._wait(0)
            with self._lock:
                if not self.buffer.held:
                    self._thread = None
                    return


def last_words(flusher: Flusher) -> None:
    """Flush, and say what is lost if that fails."""
    flusher.closing = True
    try:
        flusher.flush()
    except HeadraceError as error:
        log.warning("the last %d counts of this process are lost: %s", flusher.buffer.held, error)
    finally:
        flusher.closing = False
        flusher.rouse()


def _at_exit(mine: Callable[[], Flusher | None]) -> None:
    flusher = mine()
    if flusher is not None and flusher.pid == os.getpid():
        last_words(flusher)
        # Both kinds of hook may call, and one that found no server is enough.
        flusher.pid = 0
