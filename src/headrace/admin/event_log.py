"""Events, acts and hooks of an application, as operators read them and code declares them.

1. :class:`EventLog`: failures and changes, by time and live. The scripts that cause an event write it.
2. :class:`ActLog`: each act by hand, with its author, time and reply. The ordinary life of jobs is not in it.
3. :class:`EventHooks`: functions of the application that jobs of Headrace's own call with events.
"""

from __future__ import annotations

import difflib
import inspect
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from headrace.admin.job_paging import Order, check_limit, descending, stream_position
from headrace.errors import OptionsError, StoreUnavailable
from headrace.model.activity import KINDS, MEANS, Act, ChainedAct, EventRecord, act_of, entry_hash, event_of, storable
from headrace.model.job_record import Page
from headrace.protocol import operations
from headrace.protocol.operations import StreamPiece
from headrace.protocol.script import Call
from headrace.store.client import Client, Steps, then, twin, verb

T = TypeVar("T")

# Seconds between two looks of one who follows, events that one look takes, and events that a shard keeps.
EVERY = 1.0
PIECE = 500
KEPT = 10_000


class EventLog:
    """``app.events``: the newest 10,000 events, kept until a week after the last one; ``KINDS`` has their kinds.

    Only what fails or changes is told: a job that succeeds writes nothing.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @verb
    def page(
        self, kinds: Sequence[str] = (), *, limit: int = 100, after: str | None = None, order: Order = "desc"
    ) -> Steps[Page[EventRecord]]:
        """Events by time. Cost: one round trip. Raises OptionsError: an argument is out of range, or there is no such
        kind.

        Args:
            kinds: only of these; none: all. A page looks at 2,000 events at most.
            limit: 1 to 1000.
            after: ``next`` of the page before, or the id of an event.
            order: ``desc``: the newest first.
        """
        place, size, desc = stream_position(after), check_limit(limit), descending(order)
        call = operations.told(self._client.keys, "events", size, place, desc=desc, kinds=check_kinds(kinds))
        return then(call, lambda told: _page(told, event_of))

    @verb
    def newest(self) -> Steps[str]:
        """The id of the newest event, to follow from; ``0-0`` when there is none. Cost: one round trip."""
        return then(operations.told(self._client.keys, "events", 0), lambda found: found.newest or "0-0")

    def follow(self, kinds: Sequence[str] = (), *, after: str | None = None) -> Iterator[EventRecord]:
        """Give each event once, in order, as it happens; never ends.

        It looks once a second. While the store is away it waits. Of several shards the others go on, and events of one
        that did not answer come when it does, behind newer ones. One who keeps the id of the last event that was dealt
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
        followed = _FollowedEvents(self._client, kinds, place or self.newest())
        while True:
            try:
                piece = self._client.run(followed.next_piece())
            except StoreUnavailable:
                # It has waited for as long as a call does.
                continue
            for id, fields in followed.new_rows(piece):
                yield event_of(id, fields)
            if followed.at_end:
                time.sleep(EVERY)

    def afollow(self, kinds: Sequence[str] = (), *, after: str | None = None) -> AsyncIterator[EventRecord]:
        """See :meth:`follow`."""
        checked, place = check_kinds(kinds), stream_position(after)
        return self._afollow(checked, place)

    async def _afollow(self, kinds: Sequence[str], place: str) -> AsyncIterator[EventRecord]:
        import asyncio  # only a program with an event loop pays for it

        followed = _FollowedEvents(self._client, kinds, place or await self.anewest())
        while True:
            try:
                piece = await self._client.arun(followed.next_piece())
            except StoreUnavailable:
                continue
            for id, fields in followed.new_rows(piece):
                yield event_of(id, fields)
            if followed.at_end:
                await asyncio.sleep(EVERY)

    apage = twin(page)
    anewest = twin(newest)


class _FollowedEvents:
    """How far one who follows is. A look that lacked a shard is made again when all answer.

    Attributes:
        at_end: no more were there at the last look.
    """

    def __init__(self, client: Client, kinds: Sequence[str], place: str) -> None:
        self.at_end = False
        self._client, self._kinds, self._place = client, kinds, place
        # Where the first look began that lacked a shard, empty if none did; and what was given from there on.
        self._lacked_at, self._given = "", OrderedDict[object, None]()
        self._lacks = False

    def next_piece(self) -> Call[StreamPiece]:
        self._lacks = bool(self._client.left_out)
        return operations.told(self._client.keys, "events", PIECE, self._place, desc=False, kinds=self._kinds)

    def new_rows(self, piece: StreamPiece) -> list[tuple[str, dict[str, str]]]:
        self._lacks = self._lacks or bool(self._client.left_out)
        self.at_end = not piece.last
        # Two shards may give the same id.
        keys = [(id, *fields.items()) for id, fields in piece.rows]
        rows = [row for row, key in zip(piece.rows, keys, strict=True) if key not in self._given]
        if self._lacks:
            self._lacked_at = self._lacked_at or self._place
            self._given.update(dict.fromkeys(keys))
            # Older ones are not kept, so they are not read again.
            while len(self._given) > KEPT * self._client.count:
                self._given.popitem(last=False)
        elif self._lacked_at:
            self._place, self._lacked_at, self.at_end = self._lacked_at, "", False
            return []
        elif self.at_end:
            self._given.clear()
        self._place = piece.last or (piece.rows[-1][0] if piece.rows else self._place)
        return rows


def check_kinds(kinds: Sequence[str]) -> list[str]:
    """These kinds of events. Raises OptionsError: there is no such kind."""
    if isinstance(kinds, str):
        raise OptionsError(f"kinds must be a list of kinds, such as [{kinds!r}]")
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(str(kind), KINDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the kinds are {', '.join(KINDS)}"
            raise OptionsError(f"there are no events of kind {kind!r}: {hint}")
    return list(kinds)


def _page(told: StreamPiece, read: Callable[[str, dict[str, str]], T]) -> Page[T]:
    return Page([read(id, fields) for id, fields in told.rows], told.count, told.last or None)


class ActLog:
    """``app.acts``: the newest 10,000 acts of people, kept until a year after the last one.

    The dashboard and the command line record each verb, with the store's reply to it. A program that acts for people
    calls :meth:`record` itself.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @verb
    def page(self, *, limit: int = 100, after: str | None = None, order: Order = "desc") -> Steps[Page[Act]]:
        """Acts by time. Cost: one round trip. Raises OptionsError: an argument is out of range.

        Args:
            limit: 1 to 1000.
            after: ``next`` of the page before, or the id of an act.
            order: ``desc``: the newest first.
        """
        place, size = stream_position(after), check_limit(limit)
        call = operations.told(self._client.keys, "acts", size, place, desc=descending(order))
        return then(call, lambda told: _page(told, act_of))

    @verb
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
    ) -> Steps[str]:
        """Record what a person did, after the store has replied; texts are cut to 500 characters.

        Each record carries the hash of the one before it, so that one that was changed or removed shows. Returns the id
        of the record. Cost: two round trips, and two more for each act that another records meanwhile. Raises
        OptionsError: there is no such way to act.

        Args:
            verb, kind, name: what was done, and to what: ``"retry", "jobs", id``.
            who: the person's name.
            by: ``dashboard``, ``cli``, ``api`` or ``program``.
            scope: what it was done to all of.
            count: how many it was meant for.
            reply: what became of it, in words.
        """
        if by not in MEANS:
            raise OptionsError(f"by must be one of {', '.join(MEANS)}, not {by!r}")
        texts = {"who": who, "by": by, "verb": verb, "kind": kind, "name": name, "scope": scope, "reply": reply}
        kept = {field: storable(text) for field, text in texts.items() if text}
        keys, request = self._client.keys, os.urandom(8).hex()
        while True:
            newest: StreamPiece = yield operations.told(keys, "acts", 1)
            ((last, before),) = newest.rows or [("", {})]
            chain = entry_hash(last, before) if last else ""
            id: str = yield operations.tell(keys, "acts", request, {**kept, "count": count, "chain": chain}, last)
            if id:
                return id

    def export(self, since: float = 0.0) -> Iterator[ChainedAct]:
        """Give all acts that are kept, oldest first, with the hashes that chain them; see :func:`chain_breach`.

        Args:
            since: seconds since 1970.

        Cost: a round trip for each thousand.
        """
        after = _place_before(since)
        while after:
            piece = self._client.run(self._exported(after))
            yield from (ChainedAct(id, fields) for id, fields in piece.rows)
            after = piece.last

    async def aexport(self, since: float = 0.0) -> AsyncIterator[ChainedAct]:
        """See :meth:`export`."""
        after = _place_before(since)
        while after:
            piece = await self._client.arun(self._exported(after))
            for id, fields in piece.rows:
                yield ChainedAct(id, fields)
            after = piece.last

    def _exported(self, after: str) -> Call[StreamPiece]:
        return operations.told(self._client.keys, "acts", 1000, after, desc=False)

    apage = twin(page)
    arecord = twin(record)


def _place_before(seconds: float) -> str:
    return f"{max(0, round(seconds * 1000) - 1)}-{2**63}"


#: What a hook is: ordinary or a coroutine function.
HookFunction = Callable[[list[EventRecord]], object | Coroutine[Any, Any, object]]
F = TypeVar("F", bound=HookFunction)

MOST = 50  # hooks of one application


class EventHook(msgspec.Struct, frozen=True):
    """A function, and which events it is called with.

    Attributes:
        name: ``module.function``: under it the store knows how far the hook is.
        kinds: of the events; none: all.
        task, queue: patterns, such as ``tasks.*``; empty: any.
    """

    name: str
    function: HookFunction
    kinds: tuple[str, ...]
    task: str
    queue: str

    def wants(self, event: EventRecord) -> bool:
        """Whether the hook is called with an event of its kinds."""
        patterns = (("task", self.task), ("queue", self.queue))
        return all(not like or fnmatchcase(event.facts.get(name, ""), like) for name, like in patterns)


class EventHooks:
    """``app.hooks``: those that the code declares.

    Attributes:
        declared: by name.
    """

    def __init__(self) -> None:
        self.declared: dict[str, EventHook] = {}

    def on(self, *kinds: str, task: str = "", queue: str = "") -> Callable[[F], F]:
        """Call a function with what failed or changed: ``@app.on("failed", "quarantined", task="tasks.*")``.

        The function, ordinary or a coroutine function, gets a list of :class:`headrace.EventRecord`, oldest first:
        what happened since its last call, at most 100 events. A call is a job of Headrace's own, which is stored about
        a second after the first of the events, and which any worker that knows the hook runs in a process of its own.
        Each event is given at least once: the job is retried after 5 and after 30 seconds if the hook raised or took
        more than 30 seconds, and it is started again if its process or machine died. A call that fails for good is
        kept and logged as any job. The next call begins when the last one has ended. A hook that was not known before
        begins with what happens from then on. The newest 10,000 events are kept, a week: a hook that falls behind
        these misses some. Events about Headrace's own jobs call no hook.

        Args:
            kinds: of events, see :data:`headrace.model.activity.KINDS`; none: all.
            task, queue: only events about those that match, such as ``tasks.*``; events of other kinds than failures
                and ``parked`` name no task.

        Raises:
            OptionsError: there is no such kind; the function cannot be called with one argument, or has no name of its
                own; another hook has its name; there are more than 50.

        Cost: none; each worker that knows the hook asks once a second.
        """
        checked = tuple(check_kinds(kinds))

        def decorate(function: F) -> F:
            name = _name_of(function)
            if name in self.declared:
                raise OptionsError(f"there is a hook {name} already: give it all of its kinds, or another name")
            if len(self.declared) >= MOST:
                raise OptionsError(f"an application has at most {MOST} hooks: let one function take several kinds")
            self.declared[name] = EventHook(name, function, checked, task, queue)
            return function

        return decorate


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", "")
    if not callable(function) or not name or "<lambda>" in name:
        raise OptionsError(f"a hook must be a function with a name, not {function!r:.80}")
    try:
        inspect.signature(function).bind([])
    except TypeError:
        raise OptionsError(f"the hook {name} must take one argument, the list of events") from None
    return f"{function.__module__}.{name}"
