"""Where calls go that were made for *home*, the first shard, as if there were no other; and what several shards tell,
as one. Pure.

1. :class:`ShardRouter`: each script's header says which shards are asked.
2. ``_MERGES``: how the values of several shards become one, by script. Lists are merged by score and id, as their
   cursors are; counts are sums, and each shard is read at its own moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import rows_by_shard, shard_for, shard_of
from headrace.protocol.graph import FlowPage
from headrace.protocol.index_pages import CauseFacts, CausesFound, IndexPage, WalkedPart
from headrace.protocol.operations import StreamPiece
from headrace.protocol.overviews import CountedQueues, Overview, QueueFacts, StoreLoad, WorkerFacts
from headrace.protocol.produce import Accepted
from headrace.protocol.script import Call, Command, unread

if TYPE_CHECKING:
    from headrace.protocol.keys import Keys

Args = Mapping[str, Any]

MOST_ROWS = 1000  # rows that a page may lie behind, with its own: each shard is asked for all of them
_BEFORE = "-1 -"  # a place that comes before all lanes


class Asked(msgspec.Struct):
    """One call as it goes to shards, and what their answers become. ``partial``: a read that may do without some."""

    parts: list[tuple[int, Call[Any]]]
    merged: Callable[[list[Any]], Any]
    partial: bool = False


class ShardRouter:
    """Where calls go. Pure. ``keys``: of each shard, home first."""

    def __init__(self, keys: Sequence[Keys]) -> None:
        self._keys, self._first = keys, int(keys[0].number.partition("+")[0])
        self._shards = {one.prefix: shard for shard, one in enumerate(keys)}

    def asked(self, call: Call[Any], last: int = 0) -> Asked:
        """``last``: where the call before it goes. Raises OptionsError: a page by position is too far behind."""
        if isinstance(call, Command):
            # Without a key it belongs to what goes before it.
            own = (shard for prefix, shard in self._shards.items() if str(call.args[1]).startswith(prefix))
            return Asked([(next(own, last), call)], _only)
        if (alone := self.alone(call)) is not None:
            return Asked([alone], _only)
        route, _, name = call.script.header.route.partition(" ")
        return self._all(call) if route == "all" else self._each(call, call.argument(name))

    def alone(self, call: Call[Any]) -> tuple[int, Call[Any]] | None:
        """The shard of a call that goes to one, whatever it says. Every enqueue passes here."""
        route = call.script.header.route
        if route in ("desk", "home"):
            # For home, or for the shard that the caller has chosen.
            return self._shards.get(cast(str, call.args[0]), 0), call
        if not route.startswith("of "):
            return None
        shard = self.of(call.args[call.argument(route[3:])])
        return shard, call.on(self._keys[shard])

    def of(self, id: Any) -> int:
        """The shard of an id, or of a request id; home for an id of a greater number, which no shard knows."""
        text = id.decode() if isinstance(id, bytes) else str(id)
        try:
            shard = shard_of(text)
        except ValueError:
            return shard_for(text, self._first)
        return shard if shard < len(self._keys) else 0

    def _each(self, call: Call[Any], place: int) -> Asked:
        ids: list[str] = msgspec.msgpack.decode(cast(bytes, call.args[place])) if call.args[place] else []
        rows = rows_by_shard(map(self.of, ids))
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

        return Asked(parts, merged)

    def _all(self, call: Call[Any]) -> Asked:
        name = call.script.name
        first: dict[int, str | bytes | int] = {}
        args: dict[str, Any] = {arg.name: call.args[call.argument(arg.name)] for arg in call.script.header.args}
        if name == "told" and args["line"] == "acts":
            return Asked([(0, call)], _only)
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
        return Asked(parts, lambda told: merge(args, told), partial=name not in _WHOLE)

    def _lanes(self, call: Call[WalkedPart], first: dict[int, Any], args: dict[str, Any]) -> Asked:
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
            return msgspec.structs.replace(part, count=count, **_behind(args))

        return Asked(parts, merged)


def _only(values: list[Any]) -> Any:
    return values[0]


def _lanes_of(shard: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"behind": 0, "place": f"{shard} {_BEFORE}", "last": _outside(args)}


def _behind(args: Mapping[str, Any]) -> dict[str, Any]:
    return {"behind": 1, "place": "", "last": _outside(args) if args["names"] > 1 else None}


def _outside(args: Mapping[str, Any]) -> tuple[int, str]:
    return (1 << 53 if args["desc"] else 0, "")


# -- what several shards tell, as one ----------------------------------------------------------------------------------


def accepted_of(told: Sequence[Accepted], moved: dict[str, str]) -> Accepted:
    """The answers to an enqueue whose jobs are on several shards. What one refused the others may have stored."""
    duplicates = {id: holder for one in told for id, holder in one.duplicates.items()}
    clashes = {id: holder for one in told for id, holder in one.clashes.items()}
    full = next((one.full for one in told if one.full is not None), None)
    word = next((one.word for one in told if one.word not in ("ok", "repeated")), told[0].word)
    missing = next((one.missing for one in told if one.missing), "")
    return Accepted(word, duplicates, clashes, full, missing, moved)


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
        at = {"last": stop} if stop is not None else _lanes_of(0, args) if lanes else _behind(args)
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
