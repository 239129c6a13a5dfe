"""The record of acts: who did what by hand, when and with which reply. Jobs' ordinary life is not in it."""

from __future__ import annotations

import os

from headrace.admin.pagination import Order, check_limit, descending, stream_position
from headrace.errors import OptionsError
from headrace.model.activity import MEANS, Act, act_of, storable
from headrace.model.job_record import Page
from headrace.protocol import streams
from headrace.protocol.script import Call
from headrace.protocol.streams import StreamPiece
from headrace.store.client import Client


class ActLog:
    """``app.acts``: the newest 10,000 acts of people, kept until a year after the last one.

    The dashboard and the command line record each verb, with the store's reply to it. A program that acts for people
    calls :meth:`record` itself.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def page(self, *, limit: int = 100, after: str | None = None, order: Order = "desc") -> Page[Act]:
        """Acts by time.

        Args:
            limit: 1 to 1000.
            after: ``next`` of the page before, or the id of an act.
            order: ``desc``: the newest first.

        Raises:
            OptionsError: an argument is out of range.

        Cost: one round trip.
        """
        return _page(self._client.run(self._told(limit, after, order)))

    async def apage(self, *, limit: int = 100, after: str | None = None, order: Order = "desc") -> Page[Act]:
        """See :meth:`page`."""
        return _page(await self._client.arun(self._told(limit, after, order)))

    def record(
        self,
        verb: str,
        kind: str,
        name: str = "",
        *,
        who: str,
        by: str = "program",
        scope: str = "",
        count: int = 1,
        reply: str = "",
    ) -> str:
        """Record what a person did, after the store has replied; texts are cut to 500 characters.

        Args:
            verb, kind, name: what was done, and to what: ``"retry", "jobs", id``.
            who: the person's name.
            by: ``dashboard``, ``cli``, ``api`` or ``program``.
            scope: what it was done to all of.
            count: how many it was meant for.
            reply: what became of it, in words.

        Returns:
            the id of the record.

        Raises:
            OptionsError: there is no such way to act.

        Cost: one round trip.
        """
        return self._client.run(self._tell(verb, kind, name, who, by, scope, count, reply))

    async def arecord(
        self,
        verb: str,
        kind: str,
        name: str = "",
        *,
        who: str,
        by: str = "program",
        scope: str = "",
        count: int = 1,
        reply: str = "",
    ) -> str:
        """See :meth:`record`."""
        return await self._client.arun(self._tell(verb, kind, name, who, by, scope, count, reply))

    def _told(self, limit: int, after: str | None, order: str) -> Call[StreamPiece]:
        place = stream_position(after)
        return streams.told(self._client.keys, "acts", check_limit(limit), place, desc=descending(order))

    def _tell(
        self, verb: str, kind: str, name: str, who: str, by: str, scope: str, count: int, reply: str
    ) -> Call[str]:
        if by not in MEANS:
            raise OptionsError(f"by must be one of {', '.join(MEANS)}, not {by!r}")
        texts = {"who": who, "by": by, "verb": verb, "kind": kind, "name": name, "scope": scope, "reply": reply}
        kept = {field: storable(text) for field, text in texts.items() if text}
        return streams.tell(self._client.keys, "acts", os.urandom(8).hex(), {**kept, "count": count})


def _page(told: StreamPiece) -> Page[Act]:
    return Page([act_of(id, fields) for id, fields in told.rows], told.count, told.last or None)
