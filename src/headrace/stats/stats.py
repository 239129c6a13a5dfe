"""``app.stats``: count, observe, find. Merged in this process, flushed in one round trip, never in the way of a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headrace.errors import OptionsError, SettingsError
from headrace.model.ids import make_id
from headrace.protocol import index_pages
from headrace.protocol import stats_calls as protocol
from headrace.settings import Duration, Settings
from headrace.stats.broker import Consumer
from headrace.stats.buffer import Full, LabelledBuffer, check_count, check_nothing, observed, spread
from headrace.stats.reading import Reading, SeriesQuery
from headrace.stats.resolutions import (
    WORKERS,
    Event,
    Every,
    Moment,
    Resolutions,
    check_id,
    field_of,
    instant,
    layout_of,
    pack,
    unpack,
    workers_layout,
)
from headrace.stats.writer import Writer, last_words, refuse
from headrace.store.client import Client, Steps, then, twin, verb
from headrace.store.surroundings import aside

if TYPE_CHECKING:
    from headrace.stats.broker import BrokerConsumer


def kept(settings: Settings) -> Resolutions:
    """The resolutions of the setting ``stats_keep``; SettingsError: it cannot be read."""
    try:
        return layout_of(settings.stats_keep)
    except OptionsError as error:
        raise SettingsError(f"stats_keep={settings.stats_keep!r} cannot be used: {error}") from None


class Stats:
    """Counters and histograms by label, field and time.

    Counts are merged in this process. They are sent every ``stats_flush_interval`` (one second), after
    ``stats_buffer`` calls, when the process ends, and by ``flush``; readers do not see them before. A process that is
    killed loses at most the counts of one interval and of the time that a flush takes. Where 200,000 different counters
    wait, the call that adds another one flushes, or waits for a flush that is under way (``stats_overflow``).
    """

    def __init__(
        self, client: Client, settings: Settings, *, clock: Callable[[], float] = time.time,
        writer: Writer | None = None, layout: Resolutions | None = None, prefix: str = "",
    ) -> None:  # fmt: skip
        self.settings = settings
        self.layout = layout or kept(settings)
        self._client = client
        self._clock = clock
        self._writer = writer or Writer(client, settings)
        self._lane: LabelledBuffer = self._writer.buffer.lane(self.layout, prefix)
        # What every count needs, one look-up away.
        self._count = self._lane.add
        self._size = settings.stats_buffer
        self._keep_events = round(settings.stats_events)
        # What workers count is right below the root, and nowhere else.
        self._engine = {} if prefix else {WORKERS: workers_layout(self.layout)}

    def scope(self, name: str, keep: Mapping[str, Duration] | str | None = None) -> Stats:
        """Statistics below a label of their own, with resolutions of their own; the buffer is shared. ``keep``: how
        long each resolution is kept, such as ``{"second": 600, "hour": timedelta(days=30)}``; as this one's when left
        out. A reader must say the same. Raises OptionsError: the name or a resolution cannot be used. Cost: none.
        """
        layout = self.layout if keep is None else layout_of(keep)
        prefix = self._lane.label(name)
        return Stats(self._client, self.settings, clock=self._clock, writer=self._writer, layout=layout, prefix=prefix)

    def add(self, label: str, fields: Mapping[str, int], at: Moment | None = None) -> None:
        """Count: ``add("views/product/44", {"count/chrome/11": 1})``.

        Adds to the label and all that it is part of (``views/product``, ``views``), and to each field and all that it
        is part of (``count/chrome``, ``count``), in every resolution that is kept. No fields, nothing stored.

        Args:
            fields: what to add to each, integers of 64 bits; they may be negative.
            at: when it happened; now when left out. What its resolution no longer keeps is not stored.

        Raises:
            OptionsError: a label, field, number or time cannot be used; nothing was added.
            OptionsError, StoreUnavailable, StoreFull: only with the setting ``stats_buffer=0``.

        Cost: no round trip; about a microsecond. With ``stats_buffer=0``, or when the buffer is full, one round trip.
        """
        size = self._size
        if size:
            moment = self._clock() if at is None else instant(at)
            try:
                calls = self._count(label, fields, moment)
            except Full:
                calls = self._writer.merge_in_full(self._lane, label, fields, moment, check_count)
            # Written out from Writer.merged: a call would cost as much as the count.
            if calls & 63 == 1 or calls == size:
                self._writer.merged(calls)
        else:
            self._writer.merge(self._lane, label, fields, self._moment(at), check_count)

    async def aadd(self, label: str, fields: Mapping[str, int], at: Moment | None = None) -> None:
        """See :meth:`add`; it awaits only with ``stats_buffer=0``, and where ``add`` would wait for room."""
        await self._writer.amerge(self._lane, label, fields, self._moment(at), check_count)

    def observe(self, label: str, fields: Mapping[str, float], at: Moment | None = None) -> None:
        """Put values into histograms: ``observe("pages/home", {"seconds": 0.25})``, a finite number each.

        They merge over labels, fields, time and processes as counts do; percentiles are at most 2 % off. Raises and
        cost: as :meth:`add`.
        """
        self._writer.merge(self._lane, label, observed(fields), self._moment(at), check_nothing)

    async def aobserve(self, label: str, fields: Mapping[str, float], at: Moment | None = None) -> None:
        """See :meth:`observe`."""
        await self._writer.amerge(self._lane, label, observed(fields), self._moment(at), check_nothing)

    def absorb(self, label: str, counts: Mapping[str, int], at: float | None = None) -> None:
        """Merge counts that were summed elsewhere, those of histograms' buckets included; for the engine itself. It
        never waits: what finds no room is lost. Raises and cost: as :meth:`add`.
        """
        self._writer.merge(self._lane, label, counts, self._moment(at), check_nothing, wait=False)

    @verb
    def event(
        self,
        label: str,
        fields: Mapping[str, int],
        meta: Mapping[str, Any] | None = None,
        at: Moment | None = None,
        id: str | None = None,
    ) -> Steps[str | None]:
        """Count, and store what else is known of it for the setting ``stats_events`` (seven days). Not buffered.

        That time begins when it happened, or when it was told if that is later. With an ``id`` it is stored and counted
        once, however often this is called within that time; ``meta`` has 64 KiB of MessagePack at most. Returns the id;
        None: an event of this id is stored already. Raises OptionsError, StoreUnavailable, StoreFull: as :meth:`add`.
        Raises ArgumentError, PayloadTooLarge: ``meta`` cannot be stored. Cost: one round trip.
        """
        moment = self._moment(at)
        row = self._lane.row(label, fields, moment)
        made = make_id(int(moment * 1000) % (5 << 40), int.from_bytes(os.urandom(7)) >> 1)
        name = made if id is None else check_id(id)
        body = pack(row.label, int(moment // 1), fields, meta or {})
        counts = spread([row] if fields else [])
        call = protocol.event(self._client.keys, name, round(moment * 1e6), self._keep_events, body, counts)
        applied: protocol.Applied = yield call
        refuse(applied)
        return None if applied.word == "known" and id is not None else name

    @verb
    def get_event(self, id: str) -> Steps[Event | None]:
        """The stored event of an id; None when there is none, or its time is over. Cost: one round trip."""
        return then(protocol.look(self._client.keys, [id]), lambda found: unpack(id, found[0]))

    @verb
    def events(self, start: Moment | None = None, end: Moment | None = None, limit: int = 100) -> Steps[list[Event]]:
        """The latest events of any label that happened within ``stats_events``, the newest first, at most 1,000: only
        those from ``start`` on and before ``end``. Cost: two round trips.
        """
        if not 1 <= limit <= 1000:
            raise OptionsError(f"limit must be 1 to 1000, not {limit!r}")
        since = None if start is None else instant(start, "start") * 1_000_000
        until = None if end is None else instant(end, "end") * 1_000_000 - 1
        keys, piece = self._client.keys, index_pages.Slice(limit, since=since, until=until)
        page: index_pages.IndexPage = yield index_pages.page(keys, "stat-events", piece)
        ids = [id for id, _ in page.rows]
        bodies: list[bytes | None] = (yield protocol.look(keys, ids)) if ids else []
        found = (unpack(id, body) for id, body in zip(ids, bodies, strict=True))
        return [event for event in found if event is not None]

    def find(
        self, label: str, start: Moment, end: Moment | None = None, every: Every | None = None, *,
        inclusive: bool | None = None, fields: tuple[str, ...] = (),
    ) -> Reading:  # fmt: skip
        """What was counted under a label, from the bucket that holds ``start`` up to the one that holds ``end``.

        Asks nothing yet: see :class:`headrace.stats.Reading` for the total, the series and the children.

        Args:
            label: empty for the root.
            end: not part of the range, nor is its bucket; left out, it is now, and the bucket of now is part of it.
            every: the resolution of the edges and of the series; the finest that is kept when left out.
            inclusive: whether the bucket that holds ``end`` is part of the range.
            fields: read these counts only, which is less to send where a label has many; no histograms then.

        Raises:
            OptionsError: a label, time, resolution or field cannot be used, or the range ends before it begins.

        Cost: none.
        """
        first = instant(start, "start")
        last = int(self._clock()) if end is None else instant(end, "end")
        if last < first:
            raise OptionsError(f"the range ends before it begins: start={start!r}, end={end!r}")
        query = SeriesQuery(
            self._lane.label(label), self.layout, first, last, "", end is None if inclusive is None else inclusive,
            tuple(field_of(field) for field in fields), self._engine,
        )  # fmt: skip
        level = query.kept.level(every) if every else query.kept.levels[0]
        return Reading(self._client, replace(query, every=level.cut.name), self._clock)

    def of_workers(self) -> Stats:
        """Where a worker counts what is of itself, in resolutions and for a time of their own. Cost: none."""
        return self.scope(WORKERS, workers_layout(self.layout).text)

    def flush(self) -> None:
        """Store everything that was counted before this call. Raises StoreUnavailable, StoreFull: it is kept, and sent
        again within ``stats_flush_interval``; so too where a flush that was under way, which this one waited for, has
        failed. Cost: one round trip; none when nothing waits.
        """
        self._writer.flusher.flush()

    async def aflush(self) -> None:
        """See :meth:`flush`."""
        await aside(self.flush)

    def close(self) -> None:
        """Flush; what cannot be stored is logged as lost. It may be used again."""
        last_words(self._writer.flusher)
        if self._writer.broker is not None:
            self._writer.broker.close()

    def consumer(self) -> Consumer | BrokerConsumer:
        """The worker that adds to the buckets what programs line up, with ``stats="stream"`` or ``"amqp"``. Raises
        SettingsError, MissingExtra: the broker cannot be used. Cost: none.
        """
        if self.settings.stats != "amqp":
            return Consumer(self._client)
        from headrace.stats.broker import BrokerConsumer

        return BrokerConsumer(self._client, self.settings)

    @property
    def client(self) -> Client:
        """How calls reach the server."""
        return self._client

    @property
    def pending(self) -> int:
        """Calls of this process that are not known to be stored. Cost: none."""
        return self._writer.buffer.held

    @property
    def lost(self) -> int:
        """Counters of this process that were dropped, since too many different ones waited. Cost: none."""
        return self._writer.buffer.lost

    def lag(self) -> protocol.Line:
        """How far behind ``headrace stats consume`` is, with ``stats="stream"`` or ``"amqp"``.

        With a broker, ``waiting`` are the batches that no consumer has fetched (one fetches up to 500), and ``oldest``
        is a time before which nothing waits: that of the last batch that was added. Raises BrokerUnavailable: it does
        not answer. Cost: one round trip, and one to the broker.
        """
        return self.behind(self._client.run(protocol.peek(self._client.keys)))

    async def alag(self) -> protocol.Line:
        """See :meth:`lag`."""
        line = await self._client.arun(protocol.peek(self._client.keys))
        return await aside(lambda: self.behind(line))

    def behind(self, line: protocol.Line) -> protocol.Line:
        """A line that was peeked at, with what waits at the broker if there is one. Cost: one round trip to that."""
        broker = self._writer.broker
        if broker is None:
            return line
        waiting = broker.waiting()
        return replace(line, waiting=waiting, oldest=line.upto if waiting else 0)

    def _moment(self, at: Moment | None) -> float:
        return self._clock() if at is None else instant(at)

    def __repr__(self) -> str:
        kept = ", ".join(level.cut.name for level in self.layout.levels)
        return f"<Stats by {kept}>"

    aevent = twin(event)
    aget_event = twin(get_event)
    aevents = twin(events)
