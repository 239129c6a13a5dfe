"""The writing of counts: from the buffer of a process straight into the buckets, or into a line of batches.

The flusher sends by size, by age, when asked and when the process ends. Its thread lives only while counts are held: an
idle program has none, and a fork of it starts clean. A consumer (``broker.py``) adds the batches of a line to the
buckets.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING

from headrace.clock import monotonic
from headrace.errors import HeadraceError, OptionsError
from headrace.mailbox import Mailbox
from headrace.protocol import stats_calls as protocol
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Applied
from headrace.settings import Settings
from headrace.stats.buffer import Batch, Buffer, Check, Full, LabelledBuffer, Row, encode, spread
from headrace.store.client import Client
from headrace.store.surroundings import aside, in_forks

if TYPE_CHECKING:
    from headrace.stats.broker import Broker

log = logging.getLogger("headrace.stats")

# Seconds between two lines about what was dropped.
QUIET = 60.0

# Sends a batch; returns the rows that were not taken, to be merged again. Where it raises HeadraceError, it is unknown
# what was taken, and the same batch may be sent again.
Sender = Callable[[Batch], list[Row]]


class Flusher:
    """One buffer's way out.

    Attributes:
        size: calls that wait at most before they are sent; ``age``: seconds that a call waits at most.
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
        self._due: Mailbox[None] = Mailbox()
        self._thread: threading.Thread | None = None

    def send_in_time(self, buffered_calls: int) -> None:
        self._used_here()
        if buffered_calls >= self.size:
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
        """Send everything that was counted before this call. Raises HeadraceError: it could not be sent; it is kept,
        and sent again by the next flush. A flush that is under way is waited for first; where that one fails, this one
        has failed too.
        """
        self._used_here()
        known = self.failing
        with self._sending:
            if self.failing is not None and self.failing is not known:
                # While this one waited. To try again would take as long again, for each caller one after the other.
                raise copy.copy(self.failing)
            # A batch without an answer goes alone, with its number; what came since goes after it.
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
                self.failing = None
                self.refused = bool(left)
                self._warned = False
                if was_blocked and not left:
                    self._tell_of_losses()
                if left:
                    self.send_in_time(0)
                    return

    def make_room(self) -> bool:
        """Flush for a caller that finds the buffer full; False: that cannot be done now. After a flush that failed only
        the thread tries again: callers wait once for a server that is away, not for each count.
        """
        if self._blocked():
            return False
        try:
            self.flush()
        except HeadraceError as error:
            self._warn(error)
        return not self._blocked()

    def dropped(self) -> None:
        now = monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + QUIET
        line = "their line is full: start headrace stats consume" if self.refused else "they come faster than they go"
        log.warning("statistics are lost, %d counters so far: %s", self.buffer.lost, self.failing or line)

    def _tell_of_losses(self) -> None:
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
        if self._due.empty():
            self._due.put(None)

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(Empty):
            self._due.get(seconds)
            while True:
                self._due.get(0)

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


# Seconds for which a caller tries to find room in a full buffer that others fill as fast.
WAIT = 60.0
# Seconds for which a process's last batch is remembered: it is not repeated for longer, and such processes are many.
LAST = 60


class Writer:
    def __init__(self, client: Client, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.broker: Broker | None = None
        if settings.stats == "amqp":
            # Loaded where it is wanted: most programs have no broker.
            from headrace.stats import broker

            self.broker = broker.Broker(settings)
        self.buffer = Buffer()
        self.flusher = Flusher(self.buffer, self._send, settings.stats_buffer, settings.stats_flush_interval)
        # Now, though nothing connects yet: at the end of the interpreter the driver can no longer be imported.
        from headrace.store.store import Slots

        self._slots = Slots()

    def merged(self, calls: int) -> None:
        # Not the first call alone: it may have been interrupted here, or have found no room for a thread.
        if calls & 63 == 1 or calls == self.flusher.size:
            self.flusher.send_in_time(calls)

    def merge(
        self, lane: LabelledBuffer, label: str, fields: Mapping[str, int], at: float, check: Check, *, wait: bool = True
    ) -> None:
        """Add counts to the buffer; without one (``stats_buffer=0``), store them. Raises all but ``Full``."""
        if self.flusher.size:
            try:
                self.merged(lane.add(label, fields, at, check))
            except Full:
                self.merge_in_full(lane, label, fields, at, check, wait=wait)
        elif fields:
            self.through(lane.row(label, fields, at, check))

    async def amerge(
        self, lane: LabelledBuffer, label: str, fields: Mapping[str, int], at: float, check: Check
    ) -> None:
        if self.flusher.size:
            try:
                self.merged(lane.add(label, fields, at, check))
            except Full:
                await aside(lambda: self.merge_in_full(lane, label, fields, at, check))
        elif fields:
            await self.athrough(lane.row(label, fields, at, check))

    def merge_in_full(
        self, lane: LabelledBuffer, label: str, fields: Mapping[str, int], at: float, check: Check, *, wait: bool = True
    ) -> int:
        """Add counts where the buffer was full: once there is room; else some are dropped, counted and logged.

        With ``stats_overflow="block"`` a caller that may ``wait`` flushes, or waits for the thread that does, and what
        cannot be sent then is lost. With ``"drop_oldest"``, the oldest counts are, and no caller waits. Returns how
        many calls the buffer holds now.
        """
        if self.settings.stats_overflow == "drop_oldest":
            self.flusher.send_in_time(self.flusher.size)
            make_room = self._drop_oldest
        else:
            make_room = self.flusher.make_room if wait else lambda: False
        deadline = monotonic() + WAIT
        more = True
        while more:
            # Also a flush that fails makes room: what it sends waits apart. Others may take it, though.
            more = make_room() and monotonic() < deadline
            with suppress(Full):
                return lane.add(label, fields, at, check)
        self.buffer.lost += len(fields)
        self.flusher.dropped()
        return self.buffer.calls

    def _drop_oldest(self) -> bool:
        self.buffer.drop_oldest()
        self.flusher.dropped()
        return True

    def through(self, row: Row) -> None:
        """Store one row now. Raises OptionsError: a counter refused it."""
        slots = self._slots
        sender, number = slots.take()
        applied = self.client.run(self._through(row, sender, number))
        slots.answered(sender, number)
        refuse(applied)

    async def athrough(self, row: Row) -> None:
        slots = self._slots
        sender, number = slots.take()
        applied = await self.client.arun(self._through(row, sender, number))
        slots.answered(sender, number)
        refuse(applied)

    def _through(self, row: Row, sender: str, number: int) -> Call[Applied]:
        return protocol.add(self.client.keys, sender, number, spread([row]))

    def _send(self, batch: Batch) -> list[Row]:
        if self.broker is not None:
            return self.broker.send(batch)
        if self.settings.stats == "stream":
            return self._line_up(batch)
        calls = batch.writes(self.client.keys, LAST if self.flusher.closing else protocol.WINDOW)
        refused = [name for reply in self.client.store.run_all(calls) for name in reply.refused]
        if refused:
            log.warning("%d counters are full or hold no number and were refused: %s", len(refused), refused[0])
        return []

    def _line_up(self, batch: Batch) -> list[Row]:
        keys, portions = self.client.keys, batch.messages()
        most, block = self.settings.stats_stream_max, self.settings.stats_overflow == "block"
        calls = [protocol.send(keys, sender, batch.number, encode(rows), most, block) for sender, rows in portions]
        replies = self.client.store.run_all(calls)
        # A line that is full leaves them here, where they go on merging: bounded by the series, not by the calls.
        return [row for (_, rows), reply in zip(portions, replies, strict=True) if reply.word == "full" for row in rows]


def refuse(applied: Applied) -> None:
    if applied.refused:
        raise OptionsError(
            f"the counter {applied.refused[0]} took nothing: its sum would exceed 64 bits, or its key is not Headrace's"
        )
