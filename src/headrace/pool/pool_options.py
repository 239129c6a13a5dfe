"""What a pool can be told, checked at once. Owns no default that a caller could not see here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict

import msgspec

from headrace.dispatch.strategy import Strategy, named
from headrace.errors import OptionsError
from headrace.pool.overrun import Alert, Overrun

Kind = Literal["thread", "process"]
Handler = Callable[[Alert], object]


class Keywords(TypedDict, total=False):
    """The keywords of :class:`headrace.Pool`; explained at :class:`PoolOptions`, whose fields they are."""

    kind: Kind
    strategy: str | Strategy[Any]
    queue: Literal["fifo", "lifo"]
    backlog: int | None
    overrun: Overrun | float | None
    overrun_handlers: Iterable[Handler] | None
    callbacks: Iterable[object]
    restarts: int
    period: float
    shutdown_timeout: float
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    name: str


class PoolOptions(msgspec.Struct, frozen=True):
    """How a pool works; the keywords of :class:`headrace.Pool`.

    Attributes:
        kind: ``thread`` or ``process``.
        strategy: who gets a call that does not say: a name or a function.
        queue: order in which the central queue is served, ``fifo`` or ``lifo``.
        backlog: calls that may wait; 0 refuses what cannot run at once, None has no bound.
        overrun: alerts for calls that run long; None for none.
        overrun_handlers: called with each alert; the default logs a warning.
        callbacks: objects told of the pool's life, see :class:`headrace.pool.Callbacks`.
        restarts: deaths of members within ``period`` seconds that are made good at once; later ones wait. 0: the first
            death breaks the pool.
        period: see ``restarts``.
        shutdown_timeout: seconds that :meth:`headrace.Pool.stop` lets running calls go on.
        initializer: run in each member before its first call; one that raises is a death.
        initargs: its arguments.
        name: for logs and errors.
    """

    kind: Kind = "thread"
    strategy: str | Strategy[Any] = "available"
    queue: Literal["fifo", "lifo"] = "fifo"
    backlog: int | None = 1_000_000
    overrun: Overrun | float | None = None
    overrun_handlers: Iterable[Handler] | None = None
    callbacks: Iterable[object] = ()
    restarts: int = 5
    period: float = 60.0
    shutdown_timeout: float = 5.0
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        named(self.strategy)
        for field, value, words in (
            ("kind", self.kind, ("thread", "process")),
            ("queue", self.queue, ("fifo", "lifo")),
        ):
            if value not in words:
                raise OptionsError(f"{field}={value!r}: {words[0]!r} or {words[1]!r}")
        for field, number in (
            ("backlog", self.backlog or 0),
            ("restarts", self.restarts),
            ("shutdown_timeout", self.shutdown_timeout),
        ):
            if number < 0:
                raise OptionsError(f"{field}={number!r}: 0 or more")
        if not self.period > 0:
            raise OptionsError(f"period={self.period!r}: seconds in which deaths are counted, more than 0")
        if self.initializer is not None and not callable(self.initializer):
            raise OptionsError(f"initializer={self.initializer!r} cannot be called: pass a function")

    @property
    def alerts(self) -> Overrun | None:
        """``overrun`` as a record."""
        return Overrun(self.overrun) if isinstance(self.overrun, int | float) else self.overrun


def members(n: int) -> int:
    """A checked number of members."""
    if isinstance(n, bool) or n < 1:
        raise OptionsError(f"a pool of {n!r} members cannot run anything: 1 or more")
    return n
