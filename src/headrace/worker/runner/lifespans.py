"""The lifespans of one runner: entered before its first job, left after its last, in one place each time.

Owns what was entered, and where there is an event loop, the task that holds it: asynchronous context managers must be
entered and left in one task. Runs in the runner's main thread. An error while leaving is logged and costs no job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
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
        self._lifespans = lifespans
        self.loop = loop
        self._entered: list[tuple[Lifespan, Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._leaving: asyncio.Event
        # Where a runner leaves each in its time: how many more may be left, who waits for one, and whether it was cut.
        self._one_by_one = True
        self._allowed: asyncio.Semaphore
        self._left: asyncio.Future[None] | None = None
        self._cut = False

    def __bool__(self) -> bool:
        return bool(self._lifespans)

    def enter(self, *, cuts: bool = False) -> None:
        """Enter them all. ``cuts``: if one cannot be entered, cut those before it that hang while they are left; owns
        SIGALRM then. Raises LifespanError: one raised, and those before it were left.
        """
        if self.loop is None:
            self._enter(cuts=cuts)
        else:
            self.loop.run_until_complete(self.aenter())

    async def aenter(self) -> None:
        """See :meth:`enter`; on the loop, which runs already."""
        if not self._lifespans:
            return
        import asyncio  # only runners with an event loop pay for it

        self._leaving, self._allowed = asyncio.Event(), asyncio.Semaphore(0)
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(entered), name="headrace lifespans")
        await entered

    async def aleave(self) -> None:
        if self._task is not None:
            self._one_by_one = False
            self._leaving.set()
            await self._task

    @property
    def ends(self) -> list[Callable[[], None]]:
        return [self._leave if self.loop is None else self._leave_on_loop] * len(self._entered)

    def _leave_on_loop(self) -> None:
        """Have the task that holds them leave the next one; a :class:`HookTimeout` cuts that one only."""
        assert self.loop is not None
        self._left = self.loop.create_future()
        self._leaving.set()
        self._allowed.release()
        try:
            self.loop.run_until_complete(self._left)
        except HookTimeout:
            if not self._left.done():
                self._cut_off()

    def _cut_off(self) -> None:
        self._cut = True
        if self._task is not None:
            self._task.cancel()

    def _leave(self) -> None:
        lifespan, manager = self._entered.pop()
        with _logged(lifespan):
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
            if cuts:
                # What goes wrong with one is logged where it is left.
                run_each(self.ends, PATIENCE, lambda _end, _error, _seconds: None)
            else:
                for end in self.ends:
                    end()
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
            await self._aleave(PATIENCE / max(1, len(self._entered)))
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
                _uncancel()
        await self._aleave()

    async def _aleave(self, share: float = 0.0) -> None:
        import asyncio

        # share: seconds that each has, where it is not the runner's timer that cuts it.
        while self._entered:
            if self._one_by_one and self._leaving.is_set():
                await self._turn()
            left, (lifespan, manager) = self._left, self._entered.pop()
            timer = asyncio.get_running_loop().call_later(share, self._cut_off) if share else None
            try:
                with _logged(lifespan):
                    try:
                        if lifespan.is_async:
                            await manager.__aexit__(None, None, None)
                        else:
                            manager.__exit__(None, None, None)
                    except asyncio.CancelledError as error:
                        if not self._cut:
                            raise
                        raise HookTimeout from error
            finally:
                if timer is not None:
                    timer.cancel()
                self._on_leaving(left)

    async def _turn(self) -> None:
        """Wait until the next one may be left; what was cut before it may have been cancelled too late."""
        import asyncio

        allowed = False
        while not allowed:
            try:
                allowed = await self._allowed.acquire()
            except asyncio.CancelledError:
                _uncancel()

    def _on_leaving(self, left: asyncio.Future[None] | None) -> None:
        if self._cut:
            self._cut = False
            _uncancel()
        if left is not None and not left.done():
            left.set_result(None)

    def _failed(self, error: BaseException) -> LifespanError:
        if isinstance(error, LifespanError):
            return error
        said = traceback.format_exception_only(error)[-1].strip()
        if isinstance(error, RuntimeError) and str(error) in _NEVER:
            said = "it ended before its yield: it must yield once"
        return LifespanError(f"the lifespan {self.starting} cannot be entered: {said}")


def _uncancel() -> None:
    """Forget a cancellation of this task: time limits and task groups of a clean-up would take it for theirs."""
    import asyncio

    if (task := asyncio.current_task()) is not None:
        task.uncancel()


def merged(values: Sequence[tuple[str, Any]]) -> Any:
    """The state that lifespans yielded: the only value, or mappings as one. Raises LifespanError: two yield the same
    key, or one of several something else than a mapping.
    """
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
def _logged(lifespan: Lifespan) -> Generator[None]:
    """Around the leaving of one: its error keeps no other from its turn."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, RuntimeError) and str(error) in _TWICE:
            log.error(
                "the lifespan %s yields more than once: what follows its second yield never runs",
                lifespan.name,
                code="lifespan.yields",
            )
        elif isinstance(error, HookTimeout):
            log.error("the lifespan %s took too long to leave, and was cut", lifespan.name, code="lifespan.cut")
        else:
            log.error(
                "the lifespan %s failed while it was left", lifespan.name, exc_info=error, code="lifespan.leave_failed"
            )


@contextlib.contextmanager
def reported_when_slow(lifespans: Lifespans) -> Generator[None]:
    """Around the entering: say on stderr which one is still being entered. Owns SIGALRM meanwhile."""
    waited = 0.0

    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form of a handler
        nonlocal waited
        waited += SLOW
        text = (
            f"headrace: the lifespan {lifespans.starting} is being entered for {waited:g} s; its runner takes no job\n"
        )
        # Not a logger: this may have interrupted one.
        with contextlib.suppress(OSError):
            os.write(2, text.encode("utf-8", "backslashreplace"))

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SLOW, SLOW)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
