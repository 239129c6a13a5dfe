"""The consumer: takes batches of counts out of their line and adds them to the buckets, many batches as one.

A batch is added exactly once: leaving the line and being counted is one script. Any number of consumers may run; they
get in each other's way without harm.
"""

from __future__ import annotations

import logging

import msgspec

from headrace.errors import HeadraceError
from headrace.protocol import stats_calls as protocol
from headrace.stats.batch import LINE_ROWS, decode
from headrace.stats.rows import Row, spread
from headrace.store.client import Client

log = logging.getLogger("headrace.stats")

# Batches that one round trip brings.
PEEK = 500


class Taken(msgspec.Struct, frozen=True):
    """What one step did, and what it saw before.

    Attributes:
        batches: added to the buckets.
        waiting: batches in the line.
        lag: seconds since the oldest of them was sent; 0 when there was none.
        lost: batches that a full line pushed out, so far.
    """

    batches: int
    waiting: int
    lag: float
    lost: int


class Consumer:
    """One consumer of an application's line of batches."""

    def __init__(self, way: Client) -> None:
        self._way = way

    def step(self) -> Taken:
        """Add the oldest batches to the buckets, as many as one script may.

        Raises:
            StoreUnavailable, StoreFull: nothing was added, or all of it: the next step finds out.

        Cost: two round trips, one when the line is empty.
        """
        keys = self._way.keys
        line = self._way.run(protocol.peek(keys, PEEK))
        lag = max(0, line.now - line.oldest) / 1e6 if line.oldest else 0.0
        if not line.batches:
            return Taken(0, line.waiting, lag, line.lost)
        rows, count = _merge(line.batches)
        first, last = line.batches[0][0], line.batches[count - 1][0]
        applied = self._way.run(protocol.consume(keys, first, last, spread(rows)))
        if applied.refused:
            log.warning("%d counters were refused, such as %s", len(applied.refused), applied.refused[0])
        # Gone: another consumer was quicker, or a lost reply hid that it was us.
        return Taken(count if applied.word == "ok" else 0, line.waiting, lag, line.lost)

    def close(self) -> None:
        """It holds nothing. Closing twice is fine."""


def _merge(batches: list[tuple[str, bytes]]) -> tuple[list[Row], int]:
    """Rows of the first batches, until there are many; and how many batches that is."""
    rows: list[Row] = []
    for count, (id, message) in enumerate(batches, 1):
        try:
            rows += decode(message)
        except (msgspec.MsgspecError, HeadraceError, ValueError) as error:
            # One that nobody can read must not stop those behind it.
            log.warning("batch %s cannot be read and was skipped: %s", id, error)
        if len(rows) >= LINE_ROWS:
            return rows, count
    return rows, len(batches)
