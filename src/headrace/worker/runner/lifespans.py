"""The lifespans of one runner: entered before its first job, left after its last, in one place each time.

Owns what was entered, and where there is an event loop, the task that holds it: asynchronous context managers must be
entered and left in one task. Runs in the runner's main thread. An error while leaving is logged and costs no job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Generator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from headrace.app import Headrace
from headrace.errors import LifespanError
from headrace.model.options import Kind
from headrace.tasks.app_context import Lifespan, of_kind
from headrace.worker.standard_streams import log
from headrace.worker.warmup import HookTimeout, run_each

if TYPE_CHECKING:
    import asyncio

# A start-up that takes longer than this (seconds) is told of, and again after as long.
SLOW = 10.0
# Those that were entered before one that cannot be have this many seconds together to be left.
PATIENCE = 4.0
_TWICE = ("generator didn't stop", "generator didn't stop after athrow()")
_NEVER = ("generator didn't yield",)


def starts_up(app: Headrace, kind: Kind) -> bool:
    """Whether a runner runs code of the application before its first job, so that it must say when it takes one."""
    return bool(app.after_fork_child_hooks or of_kind(app.context.lifespans, kind))


class Lifespans:
    """Those that one runner enters, in the order in which they were registered.

    Attributes:
        state: what they yielded; None before they were entered.
        loop: on which all of them are entered and left; None where the runner has none.
    """

    def __init__(self, lifespans: Sequence[Lifespan], loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.state: Any = None
        self._lifespans, self.loop = lifespans, loop
        self._entered: list[tuple[Lifespan, Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Event
        self._seconds: float | None = None

    def __bool__(self) -> bool:
        return bool(self._lifespans)

    def enter(self, *, cuts: bool = False) -> None:
        """Enter them all. Raises LifespanError: one raised, and those before it were left; with ``cuts``, which owns
        SIGALRM then, those that hang meanwhile were cut.
        """
        if self.loop is None:
            self._enter(cuts=cuts)
        else:
            self.loop.run_until_complete(self.aenter())

    async def aenter(self) -> None:
        if not self._lifespans:
            return
        import asyncio  # only runners with an event loop pay for it

        self._leaving = asyncio.Event()
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(entered), name="headrace lifespans")
        await entered

    def leave(self, seconds: float | None = None) -> None:
        """Leave them all, the last one first. ``seconds``: one that hangs is cut at its even share, by SIGALRM."""
        if self.loop is not None:
            self.loop.run_until_complete(self.aleave(seconds))
        else:
            self._leave_within(seconds, len(self._entered))

    async def aleave(self, seconds: float | None = None) -> None:
        """See :meth:`leave`. A coroutine that blocks its loop is not cut."""
        if self._task is not None:
            self._seconds = seconds
            self._leaving.set()
            await self._task

    def _leave_within(self, seconds: float | None, count: int = 1) -> None:
        ends = [self._leave] * count
        if seconds is None:
            for end in ends:
                end()
        else:
            # What goes wrong with one is logged where it is left.
            run_each(ends, seconds, lambda _end, _error, _seconds: None)

    def _leave(self) -> None:
        lifespan, manager = self._entered.pop()
        with _errors_logged(lifespan):
            manager.__exit__(None, None, None)

    @property
    def starting(self) -> str:
        return self._lifespans[min(len(self._entered), len(self._lifespans) - 1)].name

    def _enter(self, *, cuts: bool) -> None:
        values: list[tuple[str, Any]] = []
        try:
            for lifespan in self._lifespans:
                manager: Any = lifespan.open()
                values.append((lifespan.name, manager.__enter__()))
                self._entered.append((lifespan, manager))
            self.state = merged(values)
        except BaseException as error:
            failed = self._failed(error)
            self.leave(PATIENCE if cuts else None)
            raise failed from error

    async def _hold(self, entered: asyncio.Future[None]) -> None:
        import asyncio

        values: list[tuple[str, Any]] = []
        try:
            for lifespan in self._lifespans:
                manager: Any = lifespan.open()
                value = await manager.__aenter__() if lifespan.is_async else manager.__enter__()
                values.append((lifespan.name, value))
                self._entered.append((lifespan, manager))
            self.state = merged(values)
        except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop without a word
            failed = self._failed(error)
            failed.__cause__ = error
            await self._aleave(None if self.loop is None else PATIENCE)
            entered.set_exception(failed)
            return
        entered.set_result(None)
        while not self._leaving.is_set():
            try:
                await self._leaving.wait()
            except asyncio.CancelledError:
                # The pools of other jobs must not close for that.
                log.warning(
                    "the task that holds the lifespans was cancelled, by a job or for a failed child of a task group: "
                    "they stay open until the runner leaves",
                    code="lifespan.cancelled",
                )
                # Else time limits and task groups of its clean-up would take the cancellation for theirs.
                assert self._task is not None
                self._task.uncancel()
        await self._aleave(self._seconds)

    async def _aleave(self, seconds: float | None) -> None:
        import asyncio

        now = asyncio.get_running_loop().time
        end = None if seconds is None else now() + seconds
        while self._entered:
            share = None if end is None else max(0.01, (end - now()) / len(self._entered))
            if not self._entered[-1][0].is_async:
                self._leave_within(share)
                continue
            lifespan, manager = self._entered.pop()
            limit = asyncio.timeout(share)
            with _errors_logged(lifespan):
                try:
                    async with limit:
                        await manager.__aexit__(None, None, None)
                except TimeoutError as error:
                    if limit.expired():
                        raise HookTimeout from error
                    raise

    def _failed(self, error: BaseException) -> LifespanError:
        if isinstance(error, LifespanError):
            return error
        said = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, RuntimeError) and str(error) in _NEVER:
            said = "it ended before its yield: it must yield once"
        return LifespanError(f"the lifespan {self.starting} cannot be entered: {said}")


def merged(values: Sequence[tuple[str, Any]]) -> Any:
    """The only value that lifespans yielded, or mappings as one. Raises LifespanError: they cannot be merged."""
    given = [(name, value) for name, value in values if value is not None]
    if len(given) < 2:
        return given[0][1] if given else None
    state: dict[Any, Any] = {}
    owners: dict[Any, str] = {}
    for name, value in given:
        if not isinstance(value, Mapping):
            raise LifespanError(
                f"the lifespan {name} yields a {type(value).__name__}, and others yield something too "
                f"({', '.join(other for other, _ in given if other != name)}): let each yield a dictionary"
            )
        added: dict[Any, Any] = dict(cast(Any, value))
        for key, part in added.items():
            if key in state:
                raise LifespanError(f"the lifespans {owners[key]} and {name} both yield {key!r}: rename one of them")
            state[key], owners[key] = part, name
    return state


@contextlib.contextmanager
def _errors_logged(lifespan: Lifespan) -> Generator[None]:
    try:
        yield
    except BaseException as error:
        if isinstance(error, RuntimeError) and str(error) in _TWICE:
            text = "the lifespan %s yields more than once: what follows its second yield never runs"
            log.error(text, lifespan.name, code="lifespan.yields")
        elif isinstance(error, HookTimeout):
            log.error("the lifespan %s took too long to leave, and was cut", lifespan.name, code="lifespan.cut")
        else:
            text = "the lifespan %s failed while it was left"
            log.error(text, lifespan.name, exc_info=error, code="lifespan.leave_failed")


@contextlib.contextmanager
def reported_when_slow(lifespans: Lifespans) -> Generator[None]:
    """Around the entering: say on stderr which one is still being entered. Owns SIGALRM meanwhile."""
    waited = 0.0

    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form of a handler
        nonlocal waited
        waited += SLOW
        text = f"headrace: the lifespan {lifespans.starting} is being entered for {waited:g} s; its runner takes no job"
        # Not a logger: this may have interrupted one.
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SLOW, SLOW)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
