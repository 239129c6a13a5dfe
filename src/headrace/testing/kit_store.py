"""The stores of an application that a kit has taken over: the real ones, at the kit's time, with the kit's faults.

Inherits, since everything that users and the library call on a store must stay what it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.model.job_record import Record
from headrace.protocol import produce
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.store.store import AsyncStore, Store
from headrace.testing.faults import Faults
from headrace.testing.virtual_clock import VirtualClock

Wave = Sequence[Call[Any]]
# Scripts that say nothing of the test: no fault meets them.
_QUIET = frozenset({"greet", "read"})
# Scripts that let stored jobs run: in the inline mode these run within the call, as those of an enqueue do.
_RELEASES = frozenset({"flow_start", "flow_retry", "rerun", "schedule_run"})


class Wire(msgspec.Struct, frozen=True):
    """What the stores of one kit share.

    Attributes:
        faults: None for the store of the kit itself.
        stored: told the records of jobs that were enqueued, each with its delay (microseconds); of none where jobs that
            were stored before may run now.
        astored: the same, from an event loop.
    """

    clock: VirtualClock
    faults: Faults | None = None
    stored: Callable[[list[tuple[Record, int]]], None] | None = None
    astored: Callable[[list[tuple[Record, int]]], Awaitable[None]] | None = None

    def before(self, calls: Wave) -> list[Call[Any]]:
        """The calls as they are sent; raises where one was to fail."""
        if self.faults is not None and self.faults.failures and not _quiet(calls):
            raise self.faults.failures.popleft()
        return [call.at(-self.clock.offset) for call in calls]

    def after(self, calls: Wave) -> None:
        """Raises where the replies were to be lost."""
        if self.faults is not None and self.faults.replies and not _quiet(calls):
            raise self.faults.replies.popleft()

    def reads(self, keys: Keys, ids: Sequence[str]) -> list[Call[Any]]:
        """What is asked of jobs that were enqueued."""
        return [produce.read(keys, ids[first : first + 500]) for first in range(0, len(ids), 500)]


def _quiet(calls: Wave) -> bool:
    return all(call.script.name in _QUIET for call in calls)


def _releases(calls: Wave) -> bool:
    return any(call.script.name in _RELEASES for call in calls)


def _new(calls: Wave, values: Sequence[Any]) -> dict[str, int]:
    """The jobs that these calls have made, with their delays."""
    found: dict[str, int] = {}
    for call, value in zip(calls, values, strict=True):
        found |= _made(call, value)
    return found


def _made(call: Call[Any], answer: Any) -> dict[str, int]:
    """Ids of the jobs that an answered call has stored, each with its delay (microseconds); none of any other call."""
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

    def run_all(self, calls: Wave) -> list[Any]:
        values = super().run_all(self.wire.before(calls))
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
        """Whether an event loop that has used it may still be used."""
        return any(not loop.is_closed() for loop in self._pools)

    async def run_all(self, calls: Wave) -> list[Any]:
        values = await super().run_all(self.wire.before(calls))
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
