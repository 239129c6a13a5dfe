"""Answers that come after the call returned, so that a member is free while something else works for it."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DeferredResult(Generic[T]):
    """Returned by a call instead of its result: the member is free at once, the caller waits for :meth:`reply`.

    Whoever keeps it may answer from any thread of the process in which the call ran. Only the first answer counts.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: Future[T] = Future()

    def reply(self, value: T) -> None:
        """The result that the caller gets."""
        with suppress(InvalidStateError):
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """The error that the caller gets."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a DeferredResult cannot be sent: return it from the call itself, and answer it in the same process"
        )
