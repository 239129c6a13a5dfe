"""What statistics need of an application: its keys, its stores, and a way to run a call or a verb of several.

``headrace.store.client.Client`` is one; another server's client is another.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from headrace.protocol.keys import Keys
from headrace.protocol.script import Call

if TYPE_CHECKING:
    from headrace.store.store import AsyncStore, Store

T = TypeVar("T")

Steps: TypeAlias = Generator[Call[Any] | list[Call[Any]], Any, T]


class Way(Protocol):
    """A way to a server."""

    keys: Keys

    @property
    def store(self) -> Store:
        """For threads."""
        ...

    async def ready(self) -> AsyncStore:
        """For an event loop."""
        ...

    def run(self, call: Call[T]) -> T: ...
    async def arun(self, call: Call[T]) -> T: ...
    def drive(self, steps: Steps[T]) -> T: ...
    async def adrive(self, steps: Steps[T]) -> T: ...


def single(call: Any) -> Steps[Any]:
    """A verb of one call, beside others in :func:`together`."""
    return (yield call)


def together(verbs: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Several verbs of single calls as one: those that each waits for travel together.

    Cost: as many round trips as the longest of them.
    """
    ended: dict[int, T] = {}
    heard: dict[int, Any] = dict.fromkeys(range(len(verbs)))
    while heard:
        calls: dict[int, Any] = {}
        for n, reply in heard.items():
            try:
                calls[n] = verbs[n].send(reply)
            except StopIteration as end:
                ended[n] = end.value
        heard = dict(zip(calls, (yield list(calls.values())), strict=True)) if calls else {}
    return [ended[n] for n in range(len(verbs))]
