"""Several shards as one store: each call goes where its script's header says, and what several tell is put together.

1. :class:`ShardedStore`, :class:`AsyncShardedStore` and :class:`ShardedEnds` take the places of a store, a store for an
   event loop and a listener for ends. Each holds one a shard.
2. ``_MERGES``: how the values of several shards become one, by script.

Calls are made for the first shard, *home*, as if there were no other. Lists are merged by score and id, as their
cursors are; counts are sums, and each shard is read at its own moment. Imported only where there are several shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from headrace.clock import monotonic
from headrace.errors import OptionsError, StoreUnavailable
from headrace.model.ids import shard_for, shard_of
from headrace.protocol.graph import FlowPage
from headrace.protocol.index_pages import CauseFacts, CausesFound, IndexPage, WalkedPart
from headrace.protocol.operations import StreamPiece
from headrace.protocol.overviews import CountedQueues, Overview, QueueFacts, StoreLoad, WorkerFacts
from headrace.protocol.produce import Accepted
from headrace.protocol.script import Call, Command, unread
from headrace.store.end_listener import EndListener, Tell
from headrace.store.reach import SILENCE, Reach
from headrace.store.store import AsyncStore, Store

if TYPE_CHECKING:
    from headrace.protocol.keys import Keys
    from headrace.protocol.produce import Look
    from headrace.settings import Settings

log = logging.getLogger("headrace.store")

T = TypeVar("T")
R = TypeVar("R", bound=Reach)
MOST_ROWS = 1000  # rows that a page may lie behind, with its own: each shard is asked for all of them
AWAY = 5.0  # a shard that did not answer is left out for so long (seconds)


class _Asked(msgspec.Struct):
    """One call as it goes to shards, and what their answers become. ``partial``: a read that may do without some."""

    parts: list[tuple[int, Call[Any]]]
    merged: Callable[[list[Any]], Any]
    partial: bool = False


class ShardRouter:
    """Where calls go. Pure. ``keys``: of each shard, home first."""

    def __init__(self, keys: Sequence[Keys]) -> None:
        self._keys, self._first = keys, int(keys[0].number.partition("+")[0])
        self._shards = {one.prefix: shard for shard, one in enumerate(keys)}

    def asked(self, call: Call[Any], last: int = 0) -> _Asked:
        """``last``: where the call before it goes. Raises OptionsError: a page by position is too far behind."""
        if isinstance(call, Command):
            # Without a key it belongs to what goes before it.
            own = (shard for prefix, shard in self._shards.items() if str(call.args[1]).startswith(prefix))
            return _Asked([(next(own, last), call)], _only)
        match call.script.header.route.split():
            case ["of", name]:
                shard = self.of(call.args[call.argument(name)])
                return _Asked([(shard, call.on(self._keys[shard]))], _only)
            case ["each", name]:
                return self._each(call, call.argument(name))
            case ["all"]:
                return self._all(call)
            case _:
                # For home, or for the shard that the caller has chosen.
                return _Asked([(self._shards.get(cast(str, call.args[0]), 0), call)], _only)

    def of(self, id: Any) -> int:
        """The shard of an id, or of a request id; home for an id of a greater number, which no shard knows."""
        text = id.decode() if isinstance(id, bytes) else str(id)
        try:
            shard = shard_of(text)
        except ValueError:
            return shard_for(text, self._first)
        return shard if shard < len(self._keys) else 0

    def _each(self, call: Call[Any], place: int) -> _Asked:
        ids: list[str] = msgspec.msgpack.decode(cast(bytes, call.args[place])) if call.args[place] else []
        rows: dict[int, list[int]] = {}
        for n, id in enumerate(ids):
            rows.setdefault(self.of(id), []).append(n)
        parts = [
            (shard, unread(call.on(self._keys[shard], {place: msgspec.msgpack.encode([ids[n] for n in mine])})))
            for shard, mine in rows.items()
        ]

        def merged(replies: list[Any]) -> Any:
            # Of the ids of a shard its script may have told the first ones only.
            found: dict[int, Any] = {}
            for mine, reply in zip(rows.values(), replies, strict=True):
                found |= dict(zip(mine, reply, strict=False))
            whole: list[Any] = []
            for n in range(len(ids)):
                if n not in found:
                    break
                whole.append(found[n])
            return call.parse(whole)

        return _Asked(parts, merged)

    def _all(self, call: Call[Any]) -> _Asked:
        name = call.script.name
        first: dict[int, str | bytes | int] = {}
        args: dict[str, Any] = {arg.name: call.args[call.argument(arg.name)] for arg in call.script.header.args}
        if name == "told" and args["line"] == "acts":
            return _Asked([(0, call)], _only)
        if offset := int(cast(int, args.get("offset", 0))):
            rows = offset + int(cast(int, args["limit"]))
            if rows > MOST_ROWS:
                raise OptionsError(
                    f"over several shards a page by position ends at {MOST_ROWS:,} rows: go on by cursor"
                )
            first |= {call.argument("offset"): 0, call.argument("limit"): rows}
        merge = _MERGES[name]
        if name == "walk":
            names: list[str] = msgspec.msgpack.decode(cast(bytes, args["names"])) if args["names"] else []
            # One structure after the other: rows do not say which they are of.
            first[call.argument("names")] = msgspec.msgpack.encode(names[:1])
            args["names"] = len(names)
            if args["place"]:
                return self._lanes(call, first, args)
        parts = [(n, call.on(keys, first)) for n, keys in enumerate(self._keys)]
        return _Asked(parts, lambda told: merge(args, told), partial=name not in _WHOLE)

    def _lanes(self, call: Call[WalkedPart], first: dict[int, Any], args: dict[str, Any]) -> _Asked:
        """Behind the lines of all shards come the lanes of each, shard after shard; of others only sizes are told."""
        number, _, place = cast(str, args["place"]).partition(" ")
        shard, parts = int(number) if number.isdecimal() else 0, list[tuple[int, Call[WalkedPart]]]()
        for n, keys in enumerate(self._keys):
            more: dict[int, Any] = (
                {call.argument("place"): place} if n == shard else {call.argument(k): 1 for k in ("looks", "limit")}
            )
            if n != shard:
                more[call.argument("place")] = _BEFORE
            parts.append((n, call.on(keys, first | more)))

        def merged(told: list[WalkedPart]) -> WalkedPart:
            part, count = told[shard], sum(one.count for one in told)
            if part.last is not None:
                return msgspec.structs.replace(part, count=count, behind=0, place=f"{shard} {part.place}")
            if shard + 1 < len(told):
                return msgspec.structs.replace(part, count=count, **_lanes_of(shard + 1, args))
            return msgspec.structs.replace(part, count=count, **_next(args))

        return _Asked(parts, merged)


_BEFORE = "-1 -"  # a place that comes before all lanes


def _lanes_of(shard: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"behind": 0, "place": f"{shard} {_BEFORE}", "last": _outside(args)}


def _next(args: Mapping[str, Any]) -> dict[str, Any]:
    return {"behind": 1, "place": "", "last": _outside(args) if args["names"] > 1 else None}


def _outside(args: Mapping[str, Any]) -> tuple[int, str]:
    return (1 << 53 if args["desc"] else 0, "")


def _only(values: list[Any]) -> Any:
    return values[0]


class _Trip:
    """Calls of one round trip, by shard. A merged read is sent to no shard that was away a moment ago."""

    def __init__(self, store: ShardedStore | AsyncShardedStore, calls: Sequence[Call[Any]]) -> None:
        parts: list[Store | AsyncStore] = store.parts
        self._store = store
        self._silent: dict[object, StoreUnavailable] = {}
        self._asked = list[_Asked]()
        self._failed: dict[int, StoreUnavailable] = {}
        self.found: dict[int, list[Any]] = {}
        self.sent: dict[int, list[Call[Any]]] = {}
        away = {shard for shard, until in store.away.items() if until > monotonic()} if store.away else set[int]()
        away = away if len(away) < len(parts) else set[int]()
        last = 0
        for call in calls:
            one = store.router.asked(call, last)
            self._asked.append(one)
            if one.partial and away:
                one.parts = [part for part in one.parts if part[0] not in away]
            for shard, part in one.parts:
                self.sent.setdefault(shard, []).append(part)
            last = one.parts[0][0] if len(one.parts) == 1 else 0
        # Where the shards were before any was asked: one that moves meanwhile does so to a server that answers.
        self._servers = {shard: parts[shard].server for shard in {0, *self.sent}}
        for shard in self._servers:
            parts[shard].revive = store.revive
        # A job that may live anywhere goes to another shard where this one refuses it, and a list shows the rest. Work
        # that must go to a shard which is away waits for it.
        stores = _hasty(calls[0]) if len(self.sent) == 1 else 0
        self.hasty = 1000 if all(one.partial for one in self._asked) else 0 if away & self.sent.keys() else stores

    def in_vain(self, shard: int) -> bool:
        """Whether the shard's server did not answer for another one: each would wait as long, one after the other."""
        error = self._silent.get(self._servers[shard]) if self._silent else None
        if error is not None:
            self.failed(shard, error)
        return error is not None

    def failed(self, shard: int, error: StoreUnavailable) -> None:
        self._failed[shard] = self._silent[self._servers[shard]] = error
        _leave_out(self._store, shard)

    def values(self) -> list[Any]:
        """Raises StoreUnavailable: a shard that is away was asked for something that the others do not have."""
        # Threads ask one shard after the other: the first that was silent must not be asked by the next call.
        self._store.away |= dict.fromkeys(self._failed, monotonic() + AWAY)
        answers = {shard: iter(values) for shard, values in self.found.items()}
        told = list[Any]()
        for one in self._asked:
            missed = [self._failed[shard] for shard, _ in one.parts if shard in self._failed]
            if missed and (not one.partial or len(missed) == len(one.parts)):
                raise missed[0]
            told.append(one.merged([next(answers[shard]) for shard, _ in one.parts if shard in answers]))
        return told


def _alone(store: ShardedStore | AsyncShardedStore, calls: Sequence[Call[Any]]) -> tuple[int, Call[Any]] | None:
    """One call to one shard, where none was away a moment ago: most are so, and need no trip."""
    route = calls[0].script.header.route
    if len(calls) > 1 or route == "all" or route.startswith("each") or _unnamed(store):
        return None
    if store.away and max(store.away.values()) > monotonic():
        return None
    shard, call = store.router.asked(calls[0]).parts[0]
    store.parts[shard].revive = store.revive
    return shard, call


def _hasty(call: Call[Any]) -> int:
    """Whether a refusal of the first attempt shows that nothing was stored, so that it may be stored elsewhere."""
    return int(call.script.name == "enqueue")


def _leave_out(store: ShardedStore | AsyncShardedStore, shard: int) -> None:
    if store.away.get(shard, 0.0) < monotonic():
        text = "shard %d (%s) is away: lists and sums are those of the other shards"
        log.warning(text, shard, store.parts[shard].target.shown, extra={"code": "store.shard_away"})
    store.away[shard] = monotonic() + AWAY


@contextmanager
def _left_out_if_cut(store: AsyncShardedStore, shard: int) -> Generator[None]:
    """Around a call whose caller may give up: the next one must not wait in vain, too."""
    began = monotonic()
    try:
        yield
    except asyncio.CancelledError:
        if monotonic() > began + SILENCE:
            _leave_out(store, shard)
        raise


def _parts(kind: type[R], urls: Sequence[str], settings: Settings, number: str) -> list[R]:
    parts = [kind(url, settings, shard, number) for shard, url in enumerate(urls)]
    for part, url in zip(parts, urls, strict=True):
        part.elsewhere = [other.keys.prefix for other in parts if other.url != url]
    return parts


def _unnamed(store: ShardedStore | AsyncShardedStore) -> bool:
    return store.parts[1].store_id == "" and store.away.get(0, 0.0) < monotonic()


def _name(parts: Sequence[Reach]) -> None:
    for part in parts[1:]:
        part.store_id = parts[0].kept_store_id


class ShardedStore(Store):
    """A :class:`Store` of several shards; all but calls is that of home. ``away``: until when one is left out."""

    def __init__(self, urls: Sequence[str], settings: Settings, number: str, away: dict[int, float]) -> None:
        super().__init__(urls[0], settings, 0, number)
        self.parts = _parts(Store, urls, settings, number)
        self.router = ShardRouter([part.keys for part in self.parts])
        self.away = away

    def run_all(self, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:  # noqa: ARG002 - the trip decides
        if (alone := _alone(self, calls)) is not None:
            shard, call = alone
            try:
                found: list[Any] = self.parts[shard].run_all([call], _hasty(call))
            except StoreUnavailable:
                _leave_out(self, shard)
                raise
            self.round_trips = sum(part.round_trips for part in self.parts)
            return found
        trip = _Trip(self, calls)
        if (error := self._meet()) is not None:
            trip.failed(0, error)
        for shard, sent in trip.sent.items():
            if trip.in_vain(shard):
                continue
            try:
                trip.found[shard] = self.parts[shard].run_all(sent, trip.hasty)
            except StoreUnavailable as error:
                trip.failed(shard, error)
        self.round_trips = sum(part.round_trips for part in self.parts)
        return trip.values()

    def _meet(self) -> StoreUnavailable | None:
        if _unnamed(self):
            try:
                self.parts[0].run(self.parts[0].greeting())
            except StoreUnavailable as error:
                return error
            _name(self.parts)
        return None

    def run_at(self, shard: int, call: Call[T]) -> T:
        self._meet()
        value: T = self.parts[shard].run(call)
        return value

    def close(self) -> None:
        for part in self.parts:
            part.close()


class AsyncShardedStore(AsyncStore):
    """As :class:`ShardedStore`, for an event loop. A call asks all shards at once."""

    def __init__(self, urls: Sequence[str], settings: Settings, number: str, away: dict[int, float]) -> None:
        super().__init__(urls[0], settings, 0, number)
        self.parts = _parts(AsyncStore, urls, settings, number)
        self.router = ShardRouter([part.keys for part in self.parts])
        self.away = away

    async def run_all(self, calls: Sequence[Call[Any]], hasty: int = 0) -> list[Any]:  # noqa: ARG002 - as above
        if (alone := _alone(self, calls)) is not None:
            shard, call = alone
            try:
                with _left_out_if_cut(self, shard):
                    found: list[Any] = await self.parts[shard].run_all([call], _hasty(call))
            except StoreUnavailable:
                _leave_out(self, shard)
                raise
            self.round_trips = sum(part.round_trips for part in self.parts)
            return found
        trip = _Trip(self, calls)
        if (error := await self._meet()) is not None:
            trip.failed(0, error)

        async def ask(shard: int, sent: list[Call[Any]]) -> None:
            if trip.in_vain(shard):
                return
            try:
                with _left_out_if_cut(self, shard):
                    trip.found[shard] = await self.parts[shard].run_all(sent, trip.hasty)
            except StoreUnavailable as error:
                trip.failed(shard, error)

        await asyncio.gather(*(ask(shard, sent) for shard, sent in trip.sent.items()))
        self.round_trips = sum(part.round_trips for part in self.parts)
        return trip.values()

    async def _meet(self) -> StoreUnavailable | None:
        if _unnamed(self):
            try:
                with _left_out_if_cut(self, 0):
                    await self.parts[0].run(self.parts[0].greeting())
            except StoreUnavailable as error:
                return error
            _name(self.parts)
        return None

    async def close(self) -> None:
        for part in self.parts:
            await part.close()


class ShardedEnds:
    """A listener a shard, which connects when a caller waits there first."""

    def __init__(self, urls: Sequence[str], settings: Settings, number: str, _: dict[int, float]) -> None:
        self._parts = _parts(EndListener, urls, settings, number)
        self._router = ShardRouter([part.keys for part in self._parts])
        self.revive: Any = None

    @property
    def fault(self) -> str:
        return next((part.fault for part in self._parts if part.fault), "")

    @property
    def round_trips(self) -> int:
        return sum(part.round_trips for part in self._parts)

    def add(self, looks: Sequence[tuple[str, Look]], tell: Tell) -> None:
        for shard, mine in groupby(
            sorted(looks, key=lambda row: self._router.of(row[0])), lambda row: self._router.of(row[0])
        ):
            self._parts[shard].revive = self.revive
            self._parts[shard].add(list(mine), tell)

    def follow(self, id: str, look: Look, tell: Tell) -> None:
        part = self._parts[self._router.of(id)]
        part.revive = self.revive
        part.follow(id, look, tell)

    def remove(self, ids: Sequence[str], tell: Tell) -> None:
        for part in self._parts:
            part.remove(ids, tell)

    def first(self) -> bool:
        return True

    def second(self) -> None:
        """As :meth:`first`: the stores' own connections serve all who ask."""

    def close(self) -> None:
        for part in self._parts:
            part.close()


# -- what several shards tell, as one ----------------------------------------------------------------------------------


def accepted_of(told: Sequence[Accepted], moved: dict[str, str]) -> Accepted:
    """The answers to an enqueue whose jobs are on several shards. What one refused the others may have stored."""
    if len(told) == 1 and not moved:
        return told[0]
    duplicates = {id: holder for one in told for id, holder in one.duplicates.items()}
    clashes = {id: holder for one in told for id, holder in one.clashes.items()}
    full = next((one.full for one in told if one.full is not None), None)
    word = next((one.word for one in told if one.word not in ("ok", "repeated")), told[0].word)
    missing = next((one.missing for one in told if one.missing), "")
    return Accepted(word, duplicates, clashes, full, missing, moved)


Args = Mapping[str, Any]


def _any(_: Args, told: list[Any]) -> Any:
    return next((one for one in told if one), told[0])


def _overview(_: Args, told: list[Overview]) -> Overview:
    queues: dict[str, list[QueueFacts]] = {}
    workers: dict[str, list[WorkerFacts]] = {worker.owner: [] for worker in told[0].workers}
    # A worker has another name at a shard that lost its lease. Verbs know it by the one that it has at home.
    names = {worker.place: worker.owner for worker in told[0].live}
    for one in told:
        for queue in one.queues:
            queues.setdefault(queue.name, []).append(queue)
        for worker in one.workers:
            lives = worker.owner not in workers and worker.lease > one.now
            owner = names.get(worker.place, worker.owner) if lives else worker.owner
            workers.setdefault(owner, []).append(worker)
    # A worker registers at each, with its version.
    return Overview(
        max(one.now for one in told), _added(one.states for one in told),
        [_queue(queues[name]) for name in sorted(queues)], [_worker(parts) for parts in workers.values()],
        _added(one.parked for one in told), sum(one.bytes for one in told), told[0].deploys,
    )  # fmt: skip


def _added(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _queue(parts: list[QueueFacts]) -> QueueFacts:
    oldest, note = (one.oldest for one in parts if one.oldest), (one.note for one in parts if one.note)
    return QueueFacts(
        parts[0].name, sum(one.size for one in parts), any(one.paused for one in parts), min(oldest, default=0),
        max(one.until for one in parts), next(note, ""), sum(one.held for one in parts),
    )  # fmt: skip


def _worker(parts: list[WorkerFacts]) -> WorkerFacts:
    running = sum(one.running for one in parts)
    return WorkerFacts(parts[0].owner, max(one.lease for one in parts), running, parts[0].metadata)


def _load(_: Args, told: list[StoreLoad]) -> StoreLoad:
    fullest = max(told, key=lambda one: one.memory / one.max_memory if one.max_memory else 0.0)
    return StoreLoad(
        max(one.now for one in told), _added(one.ready for one in told),
        frozenset(name for one in told for name in one.paused), _counted([one.running for one in told]),
        _counted([one.due for one in told]), min((one.first_tick for one in told if one.first_tick), default=0),
        fullest.memory, fullest.max_memory,
    )  # fmt: skip


def _counted(told: list[CountedQueues]) -> CountedQueues:
    counts = _added(one.counts for one in told)
    return CountedQueues(sum(one.total for one in told), sum(one.looked for one in told), counts)


def _page(args: Args, told: list[IndexPage]) -> IndexPage:
    rows = [
        (row, record)
        for one in told
        for row, record in zip(one.rows, one.records or [None] * len(one.rows), strict=True)
    ]
    rows.sort(key=_place, reverse=bool(args["desc"]))
    rows = rows[args["offset"] : args["offset"] + args["limit"]]
    with_records = any(one.records for one in told)
    return IndexPage(
        sum(one.count for one in told), [row for row, _ in rows], [record for _, record in rows] if with_records else []
    )


def _flow_page(args: Args, told: list[FlowPage]) -> FlowPage:
    seen = sorted(
        (row for one in told for row in one.seen), key=lambda row: (row[1], row[0]), reverse=bool(args["desc"])
    )
    seen = seen[args["offset"] : args["offset"] + args["limit"]]
    stored = {record.id: record for one in told for record in one.rows}
    return FlowPage(sum(one.count for one in told), seen, [stored[id] for id, _ in seen if id in stored])


def _walk(args: Args, told: list[WalkedPart]) -> WalkedPart:
    """Rows up to where the shard stopped that came least far; the others are read again from there."""
    desc = bool(args["desc"])
    # Rows of lanes are read again when all lines have been told.
    lanes = any(one.place or len(one.rows) > one.lined for one in told)
    stops = [one.last for one in told if one.last is not None and not one.place]
    stop = (max(stops) if desc else min(stops)) if stops else None
    rows = [
        (row, record)
        for one in told
        for row, record in list(zip(one.rows, one.records or [None] * len(one.rows), strict=True))[: one.lined]
    ]
    rows.sort(key=_place, reverse=desc)
    if stop is not None:
        rows = [row for row in rows if (_place(row) >= stop if desc else _place(row) <= stop)]
    at: dict[str, Any]
    if len(rows) > args["limit"]:
        rows = rows[: args["limit"]]
        at = {"last": _place(rows[-1])}
    else:
        at = {"last": stop} if stop is not None else _lanes_of(0, args) if lanes else _next(args)
    return WalkedPart(
        sum(one.count for one in told), sum(one.looked for one in told), [row for row, _ in rows],
        [record for _, record in rows] if any(one.records for one in told) else [], **at,
    )  # fmt: skip


def _place(row: tuple[tuple[str, int], Any]) -> tuple[int, str]:
    (id, score), _ = row
    return (score, id)


def _told(args: Args, told: list[StreamPiece]) -> StreamPiece:
    def moment(id: str) -> tuple[int, ...]:
        return tuple(int(part) for part in id.split("-"))

    limit: int = args["limit"]
    desc, last = bool(args["desc"]), ""
    stops = [moment(one.last) for one in told if one.last]
    stop = (max(stops) if desc else min(stops)) if stops else None
    rows = [row for one in told for row in one.rows]
    rows.sort(key=lambda row: moment(row[0]), reverse=desc)
    if stop is not None:
        rows = [row for row in rows if (moment(row[0]) >= stop if desc else moment(row[0]) <= stop)]
        last = "-".join(map(str, stop))
    if len(rows) > limit:
        # Two shards may have an entry of the same id, and a cursor passes by both.
        last = rows[limit - 1][0]
        rows = [row for n, row in enumerate(rows) if n < limit or row[0] == last]
    newest = max((one.newest for one in told if one.newest), key=moment, default="")
    return StreamPiece(sum(one.count for one in told), rows, last, newest)


def _causes(args: Args, told: list[CausesFound]) -> CausesFound:
    found: dict[str, list[CauseFacts]] = {}
    for cause in (cause for one in told for cause in one.causes):
        found.setdefault(cause.id, []).append(cause)
    causes = [_cause(parts) for parts in found.values()]
    causes.sort(key=lambda cause: cause.number if args["by"] == "number" else cause.last, reverse=True)
    return CausesFound(max(sum(one.count for one in told) - sum(map(len, found.values())) + len(found), 0), causes)


def _cause(parts: list[CauseFacts]) -> CauseFacts:
    newest = max(parts, key=lambda one: one.last)
    return msgspec.structs.replace(
        newest,
        number=sum(one.number for one in parts),
        first=min(one.first for one in parts),
        newest=[record for one in sorted(parts, key=lambda one: -one.last) for record in one.newest],
    )


# Not reads: each shard must do them.
_WHOLE = ("pause", "restored", "resume")
_MERGES: dict[str, Callable[[Args, list[Any]], Any]] = {
    "causes_read": _causes, "flow_count": lambda _, told: sum(told), "flow_page": _flow_page, "greet": _any,
    "load": _load, "overview": _overview, "page": _page, "pause": _any,
    "paused": lambda _, told: sorted({name for names in told for name in names}), "resume": _any, "restored": _any,
    "told": _told, "walk": _walk,
}  # fmt: skip
