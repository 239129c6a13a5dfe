"""The private server of a test run, and the stores of an application there, with the clock and faults of the kit."""

from __future__ import annotations

import atexit
import datetime as dt
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import redis

from headrace.admin.keyspace import read
from headrace.admin.keyspace_rules import breaches
from headrace.app import Headrace
from headrace.embedded import Embedded, attach
from headrace.errors import HeadraceError, OptionsError
from headrace.model.job_record import Record
from headrace.protocol import produce
from headrace.protocol.keys import Keys, keys_of
from headrace.protocol.overviews import Overview
from headrace.protocol.produce import Look
from headrace.protocol.script import Call
from headrace.settings import Duration, Settings, microseconds
from headrace.settings import seconds as seconds_of
from headrace.store.connection import connection_class, node_of
from headrace.store.end_listener import EndListener, Tell
from headrace.store.store import AsyncStore, Store
from headrace.store.url import parse
from headrace.testing.inline_runner import Faults


class VirtualClock:
    """The time of a kit, which decides when delays, retries, leases and retentions are over.

    Attributes:
        offset: microseconds that it is ahead of the server's clock.
    """

    def __init__(self, moved: Callable[[int], None]) -> None:
        """Use ``kit.clock``; ``moved`` is called with the microseconds of each move."""
        self.offset = 0
        self._moved = moved

    @property
    def now(self) -> dt.datetime:
        """The time of the test, in UTC. Cost: none."""
        return dt.datetime.fromtimestamp(self.microseconds / 1e6, dt.UTC)

    @property
    def microseconds(self) -> int:
        """The same, in microseconds."""
        return time.time_ns() // 1000 + self.offset

    def advance(
        self, amount: Duration = 0, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Let time pass: what becomes due by then is ready to run, and what expires by then is gone.

        Nothing runs; ``drain`` does that. Limits of code that runs (``timeout=``) and Python's own clocks do not
        change. ``amount``: seconds or a timedelta; the parts are added to it. Raises OptionsError: the sum is negative:
        time does not go back. Cost: a few round trips, and two more per 1,000 keys of the test.
        """
        whole = amount if isinstance(amount, dt.timedelta) else dt.timedelta(seconds=amount)
        whole += dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self.move(microseconds(seconds_of(whole, "the time that passes")))

    def move(self, by: int) -> None:
        """As :meth:`advance`, in microseconds."""
        if by > 0:
            self.offset += by
            self._moved(by)


Wave = Sequence[Call[Any]]
# Scripts that say nothing of the test: no fault meets them.
_QUIET = frozenset({"greet", "read"})
# Scripts that let stored jobs run: in the inline mode these run within the call, as those of an enqueue do.
_RELEASES = frozenset({"flow_start", "flow_retry", "rerun", "schedule_run"})


class Wire(msgspec.Struct, frozen=True):
    """What the stores of one kit share.

    Attributes:
        faults: None for the store of the kit itself.
        stored: gets the records of jobs that were enqueued, each with its delay (microseconds); none where others may
            run now.
        astored: the same, from an event loop.
    """

    clock: VirtualClock
    faults: Faults | None = None
    stored: Callable[[list[tuple[Record, int]]], None] | None = None
    astored: Callable[[list[tuple[Record, int]]], Awaitable[None]] | None = None

    def before(self, calls: Wave) -> list[Call[Any]]:
        if self.faults is not None and self.faults.failures and not _quiet(calls):
            raise self.faults.failures.popleft()
        return [call.at(-self.clock.offset) for call in calls]

    def after(self, calls: Wave) -> None:
        if self.faults is not None and self.faults.replies and not _quiet(calls):
            raise self.faults.replies.popleft()

    def reads(self, keys: Keys, ids: Sequence[str]) -> list[Call[Any]]:
        return [produce.read(keys, ids[first : first + 500]) for first in range(0, len(ids), 500)]


def _quiet(calls: Wave) -> bool:
    return all(call.script.name in _QUIET for call in calls)


def _releases(calls: Wave) -> bool:
    return any(call.script.name in _RELEASES for call in calls)


def _new(calls: Wave, values: Sequence[Any]) -> dict[str, int]:
    made = (_made(call, value) for call, value in zip(calls, values, strict=True))
    return {id: delay for found in made for id, delay in found.items()}


def _made(call: Call[Any], answer: Any) -> dict[str, int]:
    if call.script.name == "broadcast":
        return dict.fromkeys(answer, 0)
    if call.script.name == "schedule_run":
        return {id: 0 for word, id in answer or () if word == "ran"}
    if call.script.name not in ("enqueue", "enqueue_ordered", "enqueue_unique"):
        return {}
    names = [arg.name for arg in call.script.header.args]
    packed = call.args[names.index("batches") - len(names)]
    assert isinstance(packed, bytes)
    found = {_unpacked(id): _delay(head[2]) for head, rows, *_ in _sent(packed) for id in rows[::2]}
    stored = answer.word in ("ok", "repeated")
    return {id: delay for id, delay in found.items() if stored and id not in answer.duplicates}


# Head and rows, of unique jobs also names. Arguments are no text, though they travel as one: see script.blob.
_sent = msgspec.msgpack.Decoder(list[list[list[msgspec.Raw]]]).decode
_delay = msgspec.msgpack.Decoder(int).decode
_unpacked = msgspec.msgpack.Decoder(str).decode


class KitStore(Store):
    """The store for threads; see :class:`Wire`."""

    def __init__(self, url: str, settings: Settings, wire: Wire) -> None:
        super().__init__(url, settings)
        self.wire, self.confirms = wire, False

    def run_all(self, calls: Wave, hasty: int = 0) -> list[Any]:
        values = super().run_all(self.wire.before(calls), hasty)
        if self.wire.stored is not None and ((new := _new(calls, values)) or _releases(calls)):
            self.wire.stored(_found(super().run_all(self.wire.reads(self.keys, list(new))), new))
        return values

    def _exchange(self, connection: Any, calls: Wave) -> list[Any]:
        values = super()._exchange(connection, calls)
        self.wire.after(calls)
        return values


# Stores of kits that have ended, whose event loops have not: these close their connections when they end.
_left: list[AsyncKitStore] = []


class AsyncKitStore(AsyncStore):
    """The store for event loops; see :class:`Wire`."""

    def __init__(self, url: str, settings: Settings, wire: Wire) -> None:
        super().__init__(url, settings)
        self.wire, self.confirms = wire, False

    def leave_to_loop(self) -> None:
        """Stay until the event loop closes the connections: collected before, they would be said to be unclosed."""
        _left[:] = [store for store in (*_left, self) if store.has_loop]

    @property
    def has_loop(self) -> bool:
        return not all(loop.is_closed() for loop in self._pools)

    async def run_all(self, calls: Wave, hasty: int = 0) -> list[Any]:
        values = await super().run_all(self.wire.before(calls), hasty)
        if self.wire.astored is not None and ((new := _new(calls, values)) or _releases(calls)):
            await self.wire.astored(_found(await super().run_all(self.wire.reads(self.keys, list(new))), new))
        return values

    async def _exchange(self, connection: Any, calls: Wave) -> list[Any]:
        values = await super()._exchange(connection, calls)
        self.wire.after(calls)
        return values


def _found(replies: Sequence[list[Record | None]], delays: Mapping[str, int]) -> list[tuple[Record, int]]:
    records = [record for page in replies for record in page]
    return [(record, delays[record.id]) for record in records if record is not None]


_WAITING = ("ready", "scheduled", "blocked", "parked", "running")


class DrainError(HeadraceError, AssertionError):
    """A drain did not come to its end: its limit was reached, or what was to end waits for something else."""


class Drained(msgspec.Struct, frozen=True):
    """What a drain did.

    Attributes:
        starts: how many starts of jobs it ran.
        ends: how they ended, by outcome: ``succeeded``, ``failed``, ``retry``, ``snoozed``, ``cancelled``,
            ``crashed``, ``interrupted``, ``parked``, ...
        left: jobs that are stored and have not ended, by state.
    """

    starts: int
    ends: Mapping[str, int]
    left: Mapping[str, int]


class Wishes(msgspec.Struct, frozen=True):
    """How to drain.

    Attributes:
        queue: only this one; empty: all.
        scheduled: let time pass until what is scheduled is due.
        retries: let time pass until the retries of what ran here are due.
        limit: most starts.
        raises: end with the first error of a job.
    """

    queue: str = ""
    scheduled: bool = False
    retries: bool = False
    limit: int = 1000
    raises: bool = True


def unfinished_by_state(seen: Overview) -> dict[str, int]:
    states = dict(seen.states)
    return {state: states[state] for state in _WAITING if states.get(state)}


def wishes(
    queue: str | None, scheduled: bool | None, retries: bool | None, limit: int, *, whole_workflow: bool, raises: bool
) -> Wishes:
    if limit < 1:
        raise OptionsError(f"limit must be at least 1, not {limit!r}")
    return Wishes(
        queue or "",
        whole_workflow if scheduled is None else scheduled,
        whole_workflow if retries is None else retries,
        limit,
        raises,
    )


def check_ended(workflow: str, state: str, drained: Drained) -> None:
    """Raises DrainError unless the workflow, named for people, has ended."""
    if state not in ("succeeded", "failed", "cancelled"):
        left = ", ".join(f"{count:,} {word}" for word, count in drained.left.items())
        raise DrainError(
            f"workflow {workflow} is {state} after the drain, and nothing is left that could run "
            f"({left or 'no job waits'}): was it started, is it stopped, does a queue pause?"
        )


# Seconds for which a wait goes on while no drain does anything: another thread, or task, may begin one.
PATIENCE = 1.0


class KitListener(EndListener):
    """The listener of an application that a kit has taken over."""

    def __init__(self, url: str, settings: Settings, clock: VirtualClock, progress: Callable[[], int | None]) -> None:
        """``progress``: a number that changes while jobs run; None while one does."""
        super().__init__(url, settings)
        self._clock = clock
        self._progress = progress

    def add(self, looks: Sequence[tuple[str, Look]], tell: Tell) -> None:
        super().add([(id, partial(self._now, look)) for id, look in looks], tell)
        self._doubt([id for id, _ in looks], tell, self._progress())

    def follow(self, id: str, look: Look, tell: Tell) -> None:
        super().follow(id, partial(self._now, look), tell)

    def ask(self, calls: Sequence[Call[Any]], tell: Tell) -> None:
        super().ask([call.at(-self._clock.offset) for call in calls], tell)

    def _now(self, look: Look, keys: Keys, id: str, wait: int) -> Call[Any]:
        return look(keys, id, wait).at(-self._clock.offset)

    def _doubt(self, ids: Sequence[str], tell: Tell, before: int | None) -> None:
        timer = threading.Timer(PATIENCE, self._judge, (ids, tell, before))
        timer.daemon = True
        timer.start()

    def _judge(self, ids: Sequence[str], tell: Tell, before: int | None) -> None:
        waiting = [id for id in ids if (wait := self._waits.get(id)) is not None and tell in wait.tells]
        if not waiting:
            return
        now = self._progress()
        if now is None or now != before:
            # Something has run since.
            self._doubt(waiting, tell, now)
            return
        many = f"job {waiting[0]}" + (f" and {len(waiting) - 1} more" if len(waiting) > 1 else "")
        text = f"a wait for {many} cannot end: nothing runs in a test until it drains"
        tell(DrainError(f"{text}. Call drain() before, have adrain() run beside the wait, or use mode='inline'"))


_lock = threading.Lock()
_servers: dict[int, PrivateServer] = {}


class PrivateServer(msgspec.Struct, frozen=True):
    """One server that tests of this process share.

    Attributes:
        url: holds its password.
    """

    url: str
    _held: Embedded
    _directory: Path

    def close(self) -> None:
        """Let it end. Closing twice is fine."""
        _servers.pop(os.getpid(), None)
        self._held.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def private_server() -> PrivateServer:
    """The server of this process, started at first use; it ends with the process, or when it is closed. Raises
    ServerError: no server program is installed, or it cannot be started. Cost: some tenths of a second the first time.
    """
    with _lock:
        found = _servers.get(os.getpid())
        if found is None:
            # Not pytest's own directory, whose path is too long for a socket.
            directory = Path(tempfile.mkdtemp(prefix="headrace-test-"))
            held = attach(directory / "server", idle_timeout=0)
            found = _servers[os.getpid()] = PrivateServer(held.url, held, directory)
            with connection(found.url) as client:
                client.config_set("appendonly", "no")
            atexit.register(found.close)
        return found


def connection(url: str, namespace: str = "hr") -> Any:
    """A plain client, RESP2 and bytes, of the server that has a namespace; the driver's types say too little."""
    target = parse(url, keys_of(namespace).prefix)
    options: dict[str, Any] = {**target.options, "connection_class": connection_class(target), "protocol": 2}
    if target.seeds:
        options["host"], options["port"] = node_of(target, 5.0)
    return redis.Redis(connection_pool=cast(Any, redis.ConnectionPool)(**options))


# Keys of one command.
PAGE = 1000


class Takeover:
    """One application and the server of its test.

    Attributes:
        namespace: drawn for this test.
    """

    def __init__(self, app: Headrace) -> None:
        self.namespace = f"test-{os.urandom(6).hex()}"
        self._app = app
        self._client: Any = None
        self._back: Callable[[], None] | None = None

    @property
    def begun(self) -> bool:
        return self._back is not None

    def begin(self, url: str, wire: Wire, progress: Callable[[], int | None]) -> Settings:
        """Have the application use this server; the settings with which it does. ``progress``: see KitListener."""
        settings = msgspec.structs.replace(
            self._app.settings, url=url, credentials=None, password_file=None, namespace=self.namespace,
            stats="direct", stats_url=None, shards=1,
        )  # fmt: skip
        self._client = connection(url, self.namespace)
        self._clock = wire.clock
        self._astore = AsyncKitStore(url, settings, wire)
        ends = KitListener(url, settings, wire.clock, progress)
        stores = {"store": KitStore(url, settings, wire), "astore": self._astore, "ends": ends}
        self._back = self._app.move(settings, stores)
        return settings

    def give_back(self) -> None:
        """Have it use its own server again; what it still held for that of the test, it sends there before."""
        back, self._back = self._back, None
        if back is not None:
            back()
            self._astore.leave_to_loop()

    def problems(self, dead: set[str]) -> list[str]:
        """What is wrong with the keys, a sentence each; incarnations that are ``dead`` may hold jobs."""
        found: list[str] = []
        for space in read(self._client, self.namespace):
            found += sorted(set(breaches(space, self._clock.offset)))
            for owner in space.values["claims"].keys() - dead:
                found += [f"job {id} still runs" for id in space.values["claims"][owner]]
        return found

    def expire(self, by_us: int) -> None:
        for keys in self._pages():
            pipe = self._client.pipeline(transaction=False)
            for key in keys:
                pipe.pttl(key)
            for key, left in zip(keys, pipe.execute(), strict=True):
                if left >= 0:
                    pipe.pexpire(key, max(0, left - by_us // 1000))
            pipe.execute()

    def end(self) -> None:
        for keys in self._pages():
            self._client.unlink(*keys)
        self._client.close()

    def _pages(self) -> Iterator[list[bytes]]:
        keys = list(self._client.scan_iter(match=f"{{{self.namespace}:*", count=PAGE))
        for first in range(0, len(keys), PAGE):
            yield keys[first : first + PAGE]
