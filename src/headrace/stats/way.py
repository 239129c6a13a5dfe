"""What statistics need of an application: its keys, its stores, and a way to run a call or a verb of several.

``headrace.client.Client`` is one; another server's client is another.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from headrace.keys import Keys
from headrace.script import Call

if TYPE_CHECKING:
    from headrace.store import AsyncStore, Store

T = TypeVar("T")

Steps: TypeAlias = Generator[Call[Any], Any, T]


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
