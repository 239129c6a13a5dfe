"""Events: what failed or changed, by time, and as it happens. The scripts that make it happen write them."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from headrace.admin.pagination import Order, check_limit, descending, stream_position
from headrace.errors import OptionsError, StoreUnavailable
from headrace.model.activity import KINDS, EventRecord, event_of
from headrace.model.job_record import Page
from headrace.protocol import streams
from headrace.protocol.script import Call
from headrace.protocol.streams import StreamPiece
from headrace.store.client import Client

# Seconds between two looks of one who follows, and events that one look takes.
EVERY, PIECE = 1.0, 500


class EventLog:
    """``app.events``: the newest 10,000 events, kept until a week after the last one; ``KINDS`` has their kinds.

    Only what fails or changes is told: a job that succeeds writes nothing.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def page(
        self, kinds: Sequence[str] = (), *, limit: int = 100, after: str | None = None, order: Order = "desc"
    ) -> Page[EventRecord]:
        """Events by time.

        Args:
            kinds: only of these; none: all. A page looks at 2,000 events at most.
            limit: 1 to 1000.
            after: ``next`` of the page before, or the id of an event.
            order: ``desc``: the newest first.

        Raises:
            OptionsError: an argument is out of range, or there is no such kind.

        Cost: one round trip.
        """
        return _page(self._client.run(self._told(kinds, limit, after, order)))

    async def apage(
        self, kinds: Sequence[str] = (), *, limit: int = 100, after: str | None = None, order: Order = "desc"
    ) -> Page[EventRecord]:
        """See :meth:`page`."""
        return _page(await self._client.arun(self._told(kinds, limit, after, order)))

    def newest(self) -> str:
        """The id of the newest event, to follow from; ``0-0`` when there is none. Cost: one round trip."""
        return self._client.run(self._end()).newest or "0-0"

    async def anewest(self) -> str:
        """See :meth:`newest`."""
        return (await self._client.arun(self._end())).newest or "0-0"

    def follow(self, kinds: Sequence[str] = (), *, after: str | None = None) -> Iterator[EventRecord]:
        """Give each event once, in order, as it happens; never ends.

        It looks once a second. While the store is away it waits. One who keeps the id of the last event that was dealt
        with, and goes on ``after`` it, misses none of the 10,000 that are kept.

        Args:
            kinds: only of these; none: all.
            after: id of the last event that was seen, ``"0"`` for the first that is kept; None: what happens from the
                first step on.

        Raises:
            OptionsError: there is no such kind or id.
            StoreUnavailable: the store cannot be reached at the first step.

        Cost: one round trip a second.
        """
        checked, place = check_kinds(kinds), stream_position(after)
        return self._follow(checked, place)

    def _follow(self, kinds: Sequence[str], place: str) -> Iterator[EventRecord]:
        place = place or self.newest()
        while True:
            try:
                piece = self._client.run(self._piece(kinds, place))
            except StoreUnavailable:
                # It has waited for as long as a call does.
                continue
            for id, fields in piece.rows:
                yield event_of(id, fields)
            place = _place(piece, place)
            if not piece.last:
                time.sleep(EVERY)

    def afollow(self, kinds: Sequence[str] = (), *, after: str | None = None) -> AsyncIterator[EventRecord]:
        """See :meth:`follow`."""
        checked, place = check_kinds(kinds), stream_position(after)
        return self._afollow(checked, place)

    async def _afollow(self, kinds: Sequence[str], place: str) -> AsyncIterator[EventRecord]:
        place = place or await self.anewest()
        while True:
            try:
                piece = await self._client.arun(self._piece(kinds, place))
            except StoreUnavailable:
                continue
            for id, fields in piece.rows:
                yield event_of(id, fields)
            place = _place(piece, place)
            if not piece.last:
                await asyncio.sleep(EVERY)

    def _end(self) -> Call[StreamPiece]:
        return streams.told(self._client.keys, "events", 0)

    def _piece(self, kinds: Sequence[str], place: str) -> Call[StreamPiece]:
        return streams.told(self._client.keys, "events", PIECE, place, desc=False, kinds=kinds)

    def _told(self, kinds: Sequence[str], limit: int, after: str | None, order: str) -> Call[StreamPiece]:
        place = stream_position(after)
        return streams.told(
            self._client.keys, "events", check_limit(limit), place, desc=descending(order), kinds=check_kinds(kinds)
        )


def check_kinds(kinds: Sequence[str]) -> list[str]:
    """These kinds of events.

    Raises:
        OptionsError: there is no such kind.
    """
    if isinstance(kinds, str):
        raise OptionsError(f"kinds must be a list of kinds, such as [{kinds!r}]")
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(str(kind), KINDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the kinds are {', '.join(KINDS)}"
            raise OptionsError(f"there are no events of kind {kind!r}: {hint}")
    return list(kinds)


def _place(piece: StreamPiece, place: str) -> str:
    """Behind what was looked at, events of other kinds too."""
    return piece.last or (piece.rows[-1][0] if piece.rows else place)


def _page(piece: StreamPiece) -> Page[EventRecord]:
    return Page([event_of(id, fields) for id, fields in piece.rows], piece.count, piece.last or None)
