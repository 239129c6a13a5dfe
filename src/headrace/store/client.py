"""The two stores of an application, made at first use; and how a verb of several steps is run by either.

Owns laziness: an application that is imported, forked or called in place never connects. A verb that needs more than
one call is a generator that yields calls and receives replies, so that its logic exists once.
"""

from __future__ import annotations

import copy
import logging
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

import msgspec

from headrace.clock import monotonic
from headrace.errors import DuplicateJob, JobNotFound, LaneFull, ServerError, SettingsError, ShardAway, StoreUnavailable
from headrace.model.form import NewJob
from headrace.model.ids import drawn_for, on_shard, rows_by_shard, shard_for, shard_of
from headrace.model.type_registry import Types
from headrace.protocol.durability import Confirmer, Durability, Slot, Wishes, durability, waits
from headrace.protocol.keys import Keys, keys_at
from headrace.protocol.produce import Accepted, enqueue
from headrace.protocol.script import Call
from headrace.settings import Settings, shard_urls
from headrace.store.surroundings import aside

if TYPE_CHECKING:
    import asyncio

    from headrace.embedded import Embedded
    from headrace.store.end_listener import EndListener
    from headrace.store.reach import Reach
    from headrace.store.store import AsyncStore, Store

log = logging.getLogger("headrace.store")

V = TypeVar("V")
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
W = TypeVar("W", bound="Reach")

# What each yields is one call, or a list of calls that travel in one round trip.
Steps: TypeAlias = Generator[Call[Any] | list[Call[Any]], Any, T]
# What one task asks for, and where it waits for the replies.
_Asked: TypeAlias = "tuple[list[Call[Any]], asyncio.Future[list[Any]]]"


class JointReads:
    """Reads that tasks of an event loop ask for at the same time, in one round trip, and so over one connection."""

    # Reads in one round trip: their replies should not hold up others for long.
    BATCH = 100

    def __init__(
        self,
        send: Callable[[list[Call[Any]]], Awaitable[list[Any]]],
        seconds_before_trip: Callable[[float], float] = lambda now: 0.0,  # noqa: ARG005
    ) -> None:
        self._send, self._seconds_before_trip = send, seconds_before_trip
        self._asked: dict[asyncio.AbstractEventLoop, list[_Asked]] = {}
        self._trips: set[asyncio.Task[None]] = set()

    async def ask(self, calls: list[Call[Any]]) -> list[Any]:
        """Values of these calls. Raises: what ``send`` raises for them."""
        import asyncio  # only a program with an event loop pays for it

        loop = asyncio.get_running_loop()
        asked = self._asked.setdefault(loop, [])
        if not asked:
            wait = self._seconds_before_trip(loop.time())
            # At once is behind all that the loop has to do by now: what is asked for together is asked for by then.
            loop.call_later(wait, self._depart, loop) if wait > 0 else loop.call_soon(self._depart, loop)
        answer: asyncio.Future[list[Any]] = loop.create_future()
        asked.append((calls, answer))
        return await answer

    def _depart(self, loop: asyncio.AbstractEventLoop) -> None:
        asked = self._asked.pop(loop)
        for first in range(0, len(asked), self.BATCH):
            trip = loop.create_task(self._travel(asked[first : first + self.BATCH]))
            self._trips.add(trip)
            trip.add_done_callback(self._trips.discard)

    async def _travel(self, asked: Sequence[_Asked]) -> None:
        try:
            found = iter(await self._send([call for calls, _ in asked for call in calls]))
        except Exception as error:  # noqa: BLE001 - it is handed to those who asked
            if len(asked) > 1 and isinstance(error, ServerError) and not isinstance(error, StoreUnavailable):
                # What the server refuses one caller must not fail another.
                import asyncio

                await asyncio.gather(*(self._travel([one]) for one in asked))
                return
            for _, answer in asked:
                if not answer.done():
                    # Each who waits raises an error of his own: one that several raise grows a traceback of all.
                    answer.set_exception(copy.copy(error))
            return
        for calls, answer in asked:
            replies = [next(found) for _ in calls]
            if not answer.done():
                answer.set_result(replies)


class Client:
    """One application's way to its server.

    Attributes:
        settings: of the application.
        keys: of its shard; of several, of the first, home; ``shards``: of each, home first.
        count: of shards. ``away``: those that did not answer, and until when they are left out (monotonic seconds).
        types: how values are sent that MessagePack has no form for.
        enqueue_middlewares: of the application, the first is outermost; :mod:`headrace.tasks.submission` enters them.
        deferral: a :class:`headrace.tasks.deferral.Deferral`, which keeps work until a commit; None: nothing does.
    """

    def __init__(self, settings: Settings) -> None:
        self._place(settings)
        self.types = Types()
        # setdefault is atomic, so threads that race for the first use agree on one winner without a lock: a lock
        # that another thread holds at a fork would stay locked in the child for ever.
        self._made: dict[str, Any] = {}
        self.away: dict[int, float] = {}
        self._announced = False
        self.enqueue_middlewares: list[Callable[[Any], Any]] = []
        self.deferral: Any = None
        self._reads = JointReads(self._aread)
        # None where memory suffices.
        self._durability = durability(settings) or None
        # Shards whose server has shown that it can tell what is on its disk.
        self._tells_disk = set[int]()

    @property
    def store(self) -> Store:
        """The store for threads. Nothing connects until it is used; safe across forks."""
        made: Store | None = self._made.get("store")
        if made is None:
            from headrace.store.store import Store

            made = self._make("store", Store if self.count == 1 else self._sharded("ShardedStore"))
        return made

    @property
    def astore(self) -> AsyncStore:
        made: AsyncStore | None = self._made.get("astore")
        if made is None:
            from headrace.store.store import AsyncStore

            made = self._make("astore", AsyncStore if self.count == 1 else self._sharded("AsyncShardedStore"))
        return made

    @property
    def ends(self) -> EndListener:
        made: EndListener | None = self._made.get("ends")
        if made is None:
            from headrace.store.end_listener import EndListener

            made = self._make("ends", EndListener if self.count == 1 else self._sharded("ShardedEnds"))
        return made

    def url(self) -> str:
        """Where the server is; a private one is started or joined. Raises ServerError, SettingsError: it cannot be."""
        if self._urls[0] is not None:
            return self._urls[0]
        held: Embedded | None = self._made.get("embedded")
        if held is None:
            self.announce_private()
            from headrace.embedded import attach

            mine = attach(
                Path(self.settings.dir) if self.settings.dir else None, idle_timeout=self.settings.embedded_idle_timeout
            )
            held = cast("Embedded", self._made.setdefault("embedded", mine))
            if held is not mine:
                mine.close()
        return held.url

    def shard_for(self, name: str) -> int:
        """Where a new job or workflow of this name lives; without a name anywhere, of many shards not at home."""
        if self.count == 1 or name:
            return shard_for(name, self._first)
        shards: Sequence[int] = range(self.count > 3, self.count)
        if self.away:
            shards = [shard for shard in shards if shard not in self.left_out] or shards
        return shards[int(random.random() * len(shards))]

    @property
    def left_out(self) -> list[int]:
        """Shards that did not answer a moment ago, so that lists show the others."""
        return [shard for shard, until in self.away.items() if until > monotonic()]

    def _place(self, settings: Settings) -> None:
        self.settings = settings
        self._urls, number = shard_urls(settings.url, settings)
        self.shards = [keys_at(settings, url, shard, number) for shard, url in enumerate(self._urls)]
        self.keys: Keys = self.shards[0]
        self.count = len(self._urls)
        # Names stay where they were when shards are added.
        self._first = int(number.partition("+")[0])

    def keys_for(self, id: str) -> Keys:
        return self.keys if self.count == 1 else self.shards[shard_of(id)]

    def urls(self) -> list[str]:
        """Where each shard is. Raises: as :meth:`url`."""
        home = self.url()
        return [url or home for url in self._urls]

    def _sharded(self, name: str) -> Callable[[str, Settings], Any]:
        from headrace.store import shards

        kind = getattr(shards, name)
        return lambda _, settings: kind(self.urls(), settings, self.keys.number, self.away)

    def announce_private(self) -> None:
        """Say once that a private server is used: other containers never meet it. Raises SettingsError: it may not."""
        if not hasattr(os, "fork"):
            raise SettingsError("set HEADRACE_URL: a private server needs Linux or macOS")
        other = "; REDIS_URL is set, but Headrace reads HEADRACE_URL" if os.environ.get("REDIS_URL") else ""
        if self.settings.embedded == "no":
            raise SettingsError(f"set HEADRACE_URL: it names no server, and embedded=no forbids a private one{other}")
        if self.settings.dir is None and not self._announced:
            self._announced = True
            level = logging.WARNING if other else logging.INFO
            log.log(level, "without a URL this program uses the private server of its project%s", other)

    def _make(self, name: str, kind: Callable[[str, Settings], W]) -> W:
        mine = kind(self.url(), self.settings)
        held: Embedded | None = self._made.get("embedded")
        mine.revive = None if held is None else held.revive
        return cast(W, self._made.setdefault(name, mine))

    async def ready(self) -> AsyncStore:
        """``astore``, without holding up the event loop while a private server starts."""
        if self.settings.url is None and "astore" not in self._made:
            await aside(self.url)
        return self.astore

    def move(self, settings: Settings, stores: dict[str, Any]) -> dict[str, Any]:
        """Go where these settings lead, with these stores. Returns those that were used before."""
        before, self._made = self._made, stores
        self._place(settings)
        self._durability, self._tells_disk = durability(settings) or None, set[int]()
        return before

    def run(self, call: Call[T]) -> T:
        return self.store.run(call)

    async def arun(self, call: Call[T]) -> T:
        return await (await self.ready()).run(call)

    async def aread(self, call: Call[T]) -> T:
        """As :meth:`arun`, for reads that may be many at once: these share round trips."""
        return cast(T, (await self._reads.ask([call]))[0])

    async def _aread(self, calls: list[Call[Any]]) -> list[Any]:
        return await (await self.ready()).run_all(calls)

    def submit(
        self, jobs: Sequence[NewJob], requests: Sequence[str] = (), confirmer: Confirmer | None = None
    ) -> Accepted:
        """Store new jobs, once however often the connection fails.

        Args:
            requests: of each job, empty for one without; none: no job has one.
            confirmer: says how safe they are to be when this returns; None: the settings do.

        Raises:
            DuplicateJob: a unique job clashes, and its rule says so.
            JobNotFound: a job that one of them follows is not stored.
            LaneFull: a limit has too many jobs that wait.
            NotConfirmed: they are stored, and not in time as safe as is asked for.

        Cost: one round trip.
        """
        store, keys = self.store, self.keys
        confirms = self._confirms(confirmer)
        if self.count > 1:
            if len(jobs) != 1 or confirms:
                return _checked(self.drive(self._spread(jobs, requests, confirmer)), spread=True)
            keys = self.shards[drawn_for(jobs[0].id)]
        sender, number = store.slots.take()
        call = enqueue(keys, jobs, sender, number, requests, self.settings.request_id_ttl)
        if confirms:
            steps = self._confirmed(store, (sender, number), call, jobs, confirmer or Confirmer())
            return _checked(self.drive(steps))
        try:
            accepted = store.run(call)
        except ShardAway:
            # It stored nothing, and is left out from now on.
            accepted = self.drive(self._spread(jobs, requests, confirmer))
        store.slots.answered(sender, number)
        return _checked(accepted)

    async def asubmit(
        self, jobs: Sequence[NewJob], requests: Sequence[str] = (), confirmer: Confirmer | None = None
    ) -> Accepted:
        store, keys = await self.ready(), self.keys
        confirms = self._confirms(confirmer)
        if self.count > 1:
            if len(jobs) != 1 or confirms:
                return _checked(await self.adrive(self._spread(jobs, requests, confirmer)), spread=True)
            keys = self.shards[drawn_for(jobs[0].id)]
        sender, number = store.slots.take()
        call = enqueue(keys, jobs, sender, number, requests, self.settings.request_id_ttl)
        if confirms:
            steps = self._confirmed(store, (sender, number), call, jobs, confirmer or Confirmer())
            return _checked(await self.adrive(steps))
        try:
            accepted = await store.run(call)
        except ShardAway:
            accepted = await self.adrive(self._spread(jobs, requests, confirmer))
        store.slots.answered(sender, number)
        return _checked(accepted)

    def _spread(self, jobs: Sequence[NewJob], requests: Sequence[str], confirmer: Confirmer | None) -> Steps[Accepted]:
        """Store each job on the shard that its id names: those of one shard all or none. A job that may live anywhere
        goes to another one where its own refuses, under another id, unless a middleware or a transaction has its id.
        Each shard confirms its own before the next is asked.
        """
        store: Store | AsyncStore = self._made.get("astore") or self.store
        confirms = self._confirms(confirmer)
        wishes = confirmer.asked if confirmer else None
        told: list[Accepted] = []
        moved: dict[str, str] = {}
        new = list(jobs)

        def placed(shard: int, mine: list[int]) -> list[tuple[int, list[int]]]:
            """Where the jobs of a shard that is left out go."""
            other = self.shard_for("")
            free = [n for n in mine if shard and self._is_free(jobs[n]) and not (requests and requests[n])]
            for n in free:
                moved[jobs[n].id] = id = on_shard(jobs[n].id, other)
                new[n] = msgspec.structs.replace(jobs[n], id=id)
            bound = [n for n in mine if n not in free]
            return [row for row in ((other, free), (shard, bound)) if row[1]]

        waiting, left_out = list[tuple[int, list[int]]](), self.left_out
        # Home first: if a limit is full there, nothing is stored anywhere.
        for shard, mine in sorted(rows_by_shard(drawn_for(job.id) for job in jobs).items()):
            waiting += placed(shard, mine) if shard in left_out else [(shard, mine)]
        while waiting and not (told and (told[-1].full or told[-1].missing)):
            shard, mine = waiting.pop(0)
            some, asked = [new[n] for n in mine], [requests[n] for n in mine] if requests else ()
            slot = store.slots.take()
            call = enqueue(self.shards[shard], some, *slot, asked, self.settings.request_id_ttl)
            try:
                if confirms:
                    told.append((yield from self._confirmed(store, slot, call, some, Confirmer(wishes), shard)))
                else:
                    told.append((yield call))
                    store.slots.answered(*slot)
            except ShardAway:
                store.slots.answered(*slot)
                waiting += placed(shard, mine)
        if len(told) == 1 and not moved:
            return told[0]
        from headrace.store.shard_routes import accepted_of

        return accepted_of(told, moved)

    def _confirms(self, confirmer: Confirmer | None) -> bool:
        """Whether an enqueue is to be confirmed: by the settings or by its caller."""
        return self._durability is not None or not (confirmer is None or confirmer.idle)

    def _is_free(self, job: NewJob) -> bool:
        form = job.form
        known = self.deferral is not None or bool(self.enqueue_middlewares)
        return not (known or form.key or form.unique or form.ordered or form.after)

    def _confirmed(
        self, store: Store | AsyncStore, slot: Slot, call: Call[Accepted], jobs: Sequence[NewJob],
        confirmer: Confirmer, shard: int = 0,
    ) -> Steps[Accepted]:  # fmt: skip
        wanted = yield from self._begun(store, confirmer, shard, None if confirmer.streams else slot)
        # Jobs in order wait: a chunk that a failover lost must not be stored behind the next one.
        later = confirmer.streams and bool(wanted) and not any(job.form.ordered for job in jobs)
        accepted = yield from confirmer.store(call, wanted, [job.id for job in jobs], later=later)
        # Those of calls that are not confirmed serve no other: a repeat must have the greatest number.
        free, confirmer.slots = [*confirmer.slots, slot], []
        if confirmer.open:
            confirmer.slots.append(free.pop())
        for one in free:
            store.slots.answered(*one)
        return accepted

    def _begun(
        self, store: Store | AsyncStore, confirmer: Confirmer, shard: int, slot: Slot | None = None
    ) -> Steps[Durability]:
        wanted = durability(self.settings, confirmer.asked)
        if not store.confirms:
            return Durability()
        if wanted and confirmer.own is None:
            part: Store | AsyncStore = store.parts[shard]
            confirmer.begin(part.keys, slot or store.slots.take(), part.confirm_time, part.place)
        if wanted.fsync and shard not in self._tells_disk:
            # Before a job is stored: an older server knows no such command. The mark leads it to its shard.
            yield [confirmer.mark(), *waits(Durability(fsync=True), 1)]
            self._tells_disk.add(shard)
        return wanted

    def confirm(self, confirmer: Confirmer) -> None:
        """Have the last chunk of a stream confirmed. Raises NotConfirmed as :meth:`submit`."""
        self.drive(self._finished(self.store, confirmer))

    async def aconfirm(self, confirmer: Confirmer) -> None:
        await self.adrive(self._finished(self.astore, confirmer))

    def _finished(self, store: Store | AsyncStore, confirmer: Confirmer) -> Steps[None]:
        yield from confirmer.finish()
        for slot in (*confirmer.slots, *filter(None, [confirmer.own])):
            store.slots.answered(*slot)

    def kept(self, steps: Steps[T], id: str, asked: Wishes = None, keys: Keys | None = None) -> Steps[T]:
        """A verb of several calls that stores work under this id, until that is as safe as is asked for. ``keys``: of
        its shard, if that is not home. Raises: NotConfirmed, as :meth:`submit`.
        """
        if asked is None and self._durability is None:
            return steps
        return self._kept(steps, id, Confirmer(asked), (keys or self.keys).shard)

    def _kept(self, steps: Steps[T], id: str, confirmer: Confirmer, shard: int) -> Steps[T]:
        store: Store | AsyncStore = self._made.get("astore") or self.store
        wanted = yield from self._begun(store, confirmer, shard)
        value = yield from confirmer.through(steps, wanted, id) if wanted else steps
        yield from self._finished(store, confirmer)
        return value

    def drive(self, steps: Steps[T]) -> T:
        store = self.store
        return driven(steps, lambda call: store.run_all(call) if isinstance(call, list) else store.run(call))

    async def adrive(self, steps: Steps[T]) -> T:
        store = await self.ready()
        return await adriven(steps, lambda call: store.run_all(call) if isinstance(call, list) else store.run(call))

    def disconnect(self) -> None:
        if (ends := self._made.get("ends")) is not None:
            ends.close()
        if (store := self._made.get("store")) is not None:
            store.close()

    def close(self) -> None:
        self.disconnect()
        self._made.pop("store", None)
        self._made.pop("ends", None)
        if (held := self._made.pop("embedded", None)) is not None:
            held.close()

    async def aclose(self) -> None:
        # In a thread: it waits for the listener's.
        await aside(self.disconnect)
        if (astore := self._made.pop("astore", None)) is not None:
            await astore.close()
        self.close()


def _checked(accepted: Accepted, *, spread: bool = False) -> Accepted:
    if accepted.full is not None:
        raise LaneFull(*accepted.full)
    if accepted.missing:
        raise JobNotFound(
            f"job {accepted.missing} is not stored, so no job can follow it: it never existed, or its retention is "
            f"over. Nothing of this call was stored{' on its shard' if spread else ''}"
        )
    if not accepted.clashes:
        return accepted
    id, holder = next(iter(accepted.clashes.items()))
    where = " on its shard" if spread else ""
    raise DuplicateJob(
        f"job {holder} has the name of this unique job: nothing of this call was stored{where}", holder, id
    )


def driven(steps: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """What steps come to, each done when the one before was; they are told what came of it, or the error."""
    try:
        step = next(steps)
        while True:
            try:
                reply = do(step)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        return cast(T, end.value)


async def adriven(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    try:
        step = next(steps)
        while True:
            try:
                reply = await do(step)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as end:
        return cast(T, end.value)


def single(call: Any) -> Steps[Any]:
    return (yield call)


def then(asked: Call[S] | Steps[S], read: Callable[[S], T]) -> Steps[T]:
    return read((yield asked) if isinstance(asked, Call) else (yield from asked))


def verb(method: Callable[Concatenate[V, P], Call[T] | Steps[T]]) -> Callable[Concatenate[V, P], T]:
    """The verb for threads of a method that returns a call or steps; ``self._client`` carries them out."""
    hints = method.__annotations__
    hints["return"] = hints["return"].partition("[")[2][:-1]

    @wraps(method)
    def run(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        asked, client = method(self, *args, **kwargs), self._client
        return cast(T, client.run(asked) if isinstance(asked, Call) else client.drive(asked))

    return cast("Callable[Concatenate[V, P], T]", run)


def twin(one: Callable[Concatenate[V, P], T]) -> Callable[Concatenate[V, P], Coroutine[Any, Any, T]]:
    """The same verb for event loops. Its name is that of the other one behind an ``a``."""
    method: Any = vars(one)["__wrapped__"]

    @wraps(method)
    async def run(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        asked, client = method(self, *args, **kwargs), self._client
        return cast(T, await (client.arun(asked) if isinstance(asked, Call) else client.adrive(asked)))

    run.__name__, run.__doc__ = f"a{run.__name__}", f"See :meth:`{run.__name__}`."
    run.__qualname__ = method.__qualname__.replace(method.__name__, run.__name__)
    return cast("Callable[Concatenate[V, P], Coroutine[Any, Any, T]]", run)


def together(verbs: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Several verbs as one: what each waits for travels together. Cost: as many round trips as the longest of them."""
    ended: dict[int, T] = {}
    heard: dict[int, Any] = dict.fromkeys(range(len(verbs)))
    while heard:
        asked: dict[int, Call[Any] | list[Call[Any]]] = {}
        for n, reply in heard.items():
            try:
                asked[n] = verbs[n].send(reply)
            except StopIteration as end:
                ended[n] = end.value
        calls = [call for one in asked.values() for call in (one if isinstance(one, list) else [one])]
        replies = iter((yield calls) if calls else [])
        heard = {
            n: [next(replies) for _ in one] if isinstance(one, list) else next(replies) for n, one in asked.items()
        }
    return [ended[n] for n in range(len(verbs))]
