"""A task: a function with a name and options, which runs in place or is enqueued.

Owns the way from a typed call to a new job, and what a worker asks of a task. Sends through the application's client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from headrace.options import Kind, Options
from headrace.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a worker runs one job: the task's options, the job's own and the settings put together.

    Attributes:
        retry: when it runs again after an error.
        timeout: soft limit, seconds; None: none.
        hard_timeout: from the start to the kill, seconds; None: none.
        keep: microseconds that a success stays.
        keep_failed: microseconds that any other end stays.
    """

    retry: Retry
    timeout: float | None
    hard_timeout: float | None
    keep: int
    keep_failed: int


class Task(Generic[P, R, V]):
    """SKELETON - names are final.

    Attributes:
        name: in the store.
        function: what was decorated.
        kind: process, fork, thread or async.
        is_async: whether ``function`` is a coroutine function.
    """

    name: str
    function: Callable[P, V]
    kind: Kind
    is_async: bool

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Run the function here and now; no server is needed."""
        return self.function(*args, **kwargs)

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Raises ArgumentError (does not fit the function) or CorruptArguments (alien bytes)."""
        raise NotImplementedError

    def pack_result(self, value: R) -> bytes:
        """Empty for None. Raises ArgumentError or PayloadTooLarge."""
        raise NotImplementedError

    def plan(self, options: bytes) -> Plan:
        """Raises CorruptOptions."""
        raise NotImplementedError
