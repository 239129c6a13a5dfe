"""Waits for many jobs and workflows at once: until all have ended, or one at a time as they end.

Owns what is accepted as a list of handles, and the order in which they are given. All waits share the application's
listener.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from headrace.clock import monotonic
from headrace.errors import ArgumentError, OptionsError, ResultTimeout
from headrace.protocol import graph, produce
from headrace.protocol.produce import Look, end_of
from headrace.protocol.script import Call
from headrace.running_job import check_wait
from headrace.settings import Duration, patience
from headrace.store.client import Client
from headrace.store.waiting import AsyncInbox, Inbox, aask_all, ask_all
from headrace.tasks.job_handle import Job
from headrace.workflows.run import WorkflowRun

H = TypeVar("H", bound=Job[Any] | WorkflowRun)

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

# Ids that one message names.
_NAMED = 5
# Seconds that are given to what has ended at the same time as the first.
_NOW = 0.0


class Waited(NamedTuple, Generic[H]):
    """What came of a wait: handles in the order in which they were given, each once.

    Attributes:
        done: of what has ended, or is not stored any more.
        pending: of what has not.
    """

    done: list[H]
    pending: list[H]


class Completions(Generic[H]):
    """Handles as their jobs or workflows end: for ``for`` and for ``async for``. Made by ``app.as_completed(...)``."""

    def __init__(self, client: Client, handles: Iterable[H], timeout: Duration | None, allow_wait: bool) -> None:
        self._client = client
        self._handles = _checked(client, handles)
        self._left = dict(self._handles)
        self._timeout = patience(timeout)
        self._end = None if self._timeout is None else monotonic() + self._timeout
        self._allow_wait = allow_wait or self._timeout == 0

    def __iter__(self) -> Iterator[H]:
        self.refuse("as_completed()", "async for job in app.as_completed(jobs)")
        return (handle for handles in self.batches() for handle, _ in handles)

    def __aiter__(self) -> AsyncIterator[H]:
        self.refuse("as_completed()")
        return self._aiter()

    async def _aiter(self) -> AsyncIterator[H]:
        async for handles in self.abatches():
            for handle, _ in handles:
                yield handle

    def batches(self) -> Iterator[list[tuple[H, str]]]:
        """Handles that have ended, with their states, as many as are known at the time. Raises ResultTimeout: the time
        is over, and some have not ended.
        """
        if not self._left:
            return
        yield self._seen(ask_all(self._client, self._calls()))
        if not self._more():
            return
        inbox = Inbox()
        self._client.ends.add(self._looks(), inbox.put)
        try:
            while self._left:
                told = [inbox.get(self._end)]
                while told[-1] is not None:
                    told.append(inbox.get(_NOW))
                yield self._told(told[:-1])
        finally:
            self._client.ends.remove(list(self._left), inbox.put)

    async def abatches(self) -> AsyncGenerator[list[tuple[H, str]]]:
        if not self._left:
            return
        await self._client.ready()
        yield self._seen(await aask_all(self._client, self._calls()))
        if not self._more():
            return
        inbox = AsyncInbox()
        self._client.ends.add(self._looks(), inbox.put)
        try:
            while self._left:
                told = [await inbox.get(self._end)]
                while told[-1] is not None:
                    told.append(await inbox.get(_NOW))
                yield self._told(told[:-1])
        finally:
            self._client.ends.remove(list(self._left), inbox.put)

    def refuse(self, verb: str, pair: str = "") -> None:
        """See :func:`headrace.running_job.check_wait`; a mere look, and a wait that is accepted, are not refused."""
        if not self._allow_wait:
            check_wait(verb, pair)

    def parted(self) -> Waited[H]:
        """What has ended, as far as :meth:`batches` told of it, and what has not."""
        done = [handle for id, handle in self._handles.items() if id not in self._left]
        return Waited(done, list(self._left.values()))

    def _looks(self) -> list[tuple[str, Look]]:
        return [
            (id, _state_of_job if isinstance(handle, Job) else graph.watch_flow) for id, handle in self._left.items()
        ]

    def _calls(self) -> list[Call[Any]]:
        return [look(self._client.keys, id, 0) for id, look in self._looks()]

    def _seen(self, seen: Sequence[Any]) -> list[tuple[H, str]]:
        words = list(zip(self._left, map(end_of, seen), strict=True))
        return [(self._left.pop(id), word) for id, word in words if word]

    def _more(self) -> bool:
        if self._left and self._timeout == 0:
            raise ResultTimeout(self._late())
        return bool(self._left)

    def _told(self, told: Sequence[tuple[str, str]]) -> list[tuple[H, str]]:
        if not told:
            raise ResultTimeout(self._late())
        # An id that was told twice, since it ended while the connection was lost, counts once.
        return [(self._left.pop(id), word) for id, word in told if id in self._left]

    def _late(self) -> str:
        more = f" and {len(self._left) - _NAMED} more" if len(self._left) > _NAMED else ""
        fault = f"the server does not answer ({self._client.ends.fault}); " if self._client.ends.fault else ""
        return (
            f"{len(self._left)} of {len(self._handles)} have not ended after {self._timeout:g} s: "
            f"{', '.join(list(self._left)[:_NAMED])}{more}: {fault}wait again, or cancel them"
        )


def _state_of_job(keys: Any, id: str, wait: int) -> Any:
    return produce.watch(keys, id, wait, most=0)


def _checked(client: Client, handles: Iterable[H]) -> dict[str, H]:
    """Handles by id, each once. Raises ArgumentError: one is not a handle, or belongs to another application."""
    if isinstance(handles, (str, bytes, Job, WorkflowRun)) or not isinstance(handles, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"a wait takes a list of jobs and workflow runs, not {handles!r}: write [job]")
    found: dict[str, H] = {}
    for handle in handles:
        if not isinstance(handle, (Job, WorkflowRun)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"a wait takes handles of jobs and workflow runs, not {handle!r}: task.enqueue(...) gives one, and "
                f"app.jobs.get(id)"
            )
        if handle._client is not client:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no user needs it
            raise ArgumentError(f"{handle!r} belongs to another application: wait with that one")
        found[handle.id] = handle
    return found


def wait(
    client: Client, handles: Iterable[H], timeout: Duration | None, return_when: ReturnWhen, allow_wait: bool
) -> Waited[H]:
    completions, enough = Completions(client, handles, timeout, allow_wait), _enough(return_when)
    completions.refuse("wait()", "await app.await_(jobs)")
    with contextlib.suppress(ResultTimeout):
        for ended in completions.batches():
            if enough(ended):
                break
    return completions.parted()


async def await_(
    client: Client, handles: Iterable[H], timeout: Duration | None, return_when: ReturnWhen, allow_wait: bool
) -> Waited[H]:
    completions, enough = Completions(client, handles, timeout, allow_wait), _enough(return_when)
    completions.refuse("await_()")
    async with contextlib.aclosing(completions.abatches()) as batches:
        with contextlib.suppress(ResultTimeout):
            async for ended in batches:
                if enough(ended):
                    break
    return completions.parted()


def _enough(when: ReturnWhen) -> Callable[[Sequence[tuple[Any, str]]], bool]:
    """Whether a wait is over, by what has ended since it was asked last."""
    if when not in get_args(ReturnWhen):
        raise OptionsError(f"return_when must be one of {', '.join(get_args(ReturnWhen))}, not {when!r}")
    if when == "FIRST_EXCEPTION":
        return lambda ended: any(state != "succeeded" for _, state in ended)
    return lambda ended: when == "FIRST_COMPLETED" and bool(ended)
