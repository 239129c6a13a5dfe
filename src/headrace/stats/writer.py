"""The writer: what becomes of counts once they are merged. Straight into the buckets, or into a line of batches that
somebody else adds to them.

Owns one buffer, its flusher, and the numbers of what goes past them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.clock import monotonic
from headrace.errors import CounterFull
from headrace.protocol import stats_calls as protocol
from headrace.protocol.script import Call
from headrace.protocol.stats_calls import Applied
from headrace.settings import Settings
from headrace.stats.batch import Batch, encode
from headrace.stats.buffer import Buffer, Check, Full, LabelledBuffer
from headrace.stats.flusher import Flusher
from headrace.stats.rows import Row, spread
from headrace.store.aside import aside
from headrace.store.client import Client

if TYPE_CHECKING:
    from headrace.stats.broker import Broker

log = logging.getLogger("headrace.stats")

# Seconds for which a caller tries to find room in a full buffer that others fill as fast.
WAIT = 60.0
# Seconds for which a process's last batch is remembered: nobody repeats it for longer, and such processes are many.
LAST = 60


class Writer:
    """One application's counts on their way.

    Attributes:
        buffer: what is merged and not yet sent.
        flusher: who sends it.
        broker: over which; None where the store itself takes it.
    """

    def __init__(self, way: Client, settings: Settings) -> None:
        self.way = way
        self.settings = settings
        self.broker = _broker(settings) if settings.stats == "amqp" else None
        self.buffer = Buffer()
        self.flusher = Flusher(self.buffer, self._send, settings.stats_buffer, settings.stats_flush_interval)
        # Now, though nothing connects yet: at the end of the interpreter the driver can no longer be imported.
        from headrace.store.store import Slots

        self._slots = Slots()

    def merged(self, calls: int) -> None:
        """The buffer holds so many calls now."""
        # Not the first call alone: it may have been interrupted here, or have found no room for a thread.
        if calls & 63 == 1 or calls == self.flusher.size:
            self.flusher.send_in_time(calls)

    def merge(
        self, lane: LabelledBuffer, label: str, fields: Mapping[str, int], at: float, check: Check, *, wait: bool = True
    ) -> None:
        """Add counts to the buffer; without one (``stats_buffer=0``), store them.

        Raises: as :meth:`LabelledBuffer.add`, but for ``Full``; without a buffer as :meth:`through`.
        """
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
        """See :meth:`merge`."""
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

        With ``stats_overflow="block"`` the caller flushes, or waits for whoever does, and what cannot be sent then is
        lost. With ``"drop_oldest"``, the oldest counts are, and nobody waits.

        Args:
            wait: whether the caller may wait at all.

        Returns:
            how many calls the buffer holds now.
        """
        if self.settings.stats_overflow == "drop_oldest":
            self.flusher.send_in_time(self.flusher.size)
            make_room = self._drop_oldest
        else:
            make_room = self.flusher.make_room if wait else _no_room
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
        """Store one row now.

        Raises:
            CounterFull: a counter refused it.
            StoreUnavailable, StoreFull: as :meth:`headrace.store.store.Store.run`.

        Cost: one round trip.
        """
        slots = self._slots
        sender, number = slots.take()
        applied = self.way.run(self._through(row, sender, number))
        slots.answered(sender, number)
        refuse(applied)

    async def athrough(self, row: Row) -> None:
        """See :meth:`through`."""
        slots = self._slots
        sender, number = slots.take()
        applied = await self.way.arun(self._through(row, sender, number))
        slots.answered(sender, number)
        refuse(applied)

    def _through(self, row: Row, sender: str, number: int) -> Call[Applied]:
        return protocol.add(self.way.keys, sender, number, spread([row]))

    def _send(self, batch: Batch) -> list[Row]:
        if self.broker is not None:
            return self.broker.send(batch)
        if self.settings.stats == "stream":
            return self._line_up(batch)
        calls = batch.writes(self.way.keys, LAST if self.flusher.closing else protocol.WINDOW)
        _tell(self.way.store.run_all(calls))
        return []

    def _line_up(self, batch: Batch) -> list[Row]:
        settings, portions = self.settings, batch.messages()
        replies: list[Applied] = self.way.store.run_all(
            [
                protocol.send(
                    self.way.keys,
                    sender,
                    batch.number,
                    encode(rows),
                    settings.stats_stream_max,
                    settings.stats_overflow == "block",
                )
                for sender, rows in portions
            ]
        )
        # A line that is full leaves them here, where they go on merging: bounded by the series, not by the calls.
        return [row for (_, rows), reply in zip(portions, replies, strict=True) if reply.word == "full" for row in rows]


def _no_room() -> bool:
    return False


def _broker(settings: Settings) -> Broker:
    # Loaded where it is wanted: most programs have no broker.
    from headrace.stats.broker import Broker

    return Broker(settings)


def _tell(replies: Sequence[Applied]) -> None:
    refused = [name for reply in replies for name in reply.refused]
    if refused:
        log.warning("%d counters are full or hold no number and were refused: %s", len(refused), refused[0])


def refuse(applied: Applied) -> None:
    """Raise for a counter that took nothing.

    Raises:
        CounterFull: names it.
    """
    if applied.refused:
        raise CounterFull(
            f"the counter {applied.refused[0]} took nothing: its sum would exceed 64 bits, or its key is not Headrace's"
        )
