"""Runs claimed jobs in the caller's thread or event loop, through the runner's own path.

Owns the event loop of a drain that has none, and the lifespans that its jobs need. Sends nothing: what comes of a start
is returned.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.app import Headrace
from headrace.errors import HeadraceError, LifespanError
from headrace.model.ended import Crashed, Ended, Released
from headrace.model.job import Claim, JobError
from headrace.protocol.consume import Note
from headrace.settings import microseconds
from headrace.tasks.app_context import of_kind
from headrace.tasks.task import RunPlan
from headrace.testing.faults import Crash, RunnerKilled
from headrace.testing.limit_gate import LimitGate
from headrace.worker.messages import of_death
from headrace.worker.runner.async_kind import Drive
from headrace.worker.runner.execute import aperform, perform
from headrace.worker.runner.interrupts import MainGate
from headrace.worker.runner.lifespans import Lifespans
from headrace.worker.runner.runner_context import RunnerContext, runner_context

PLACE = f"test:{os.getpid()}"
# Instead of a random number: the jitter of retries is none.
DICE = 0.5


class Performed(msgspec.Struct):
    """One start that has ended.

    Attributes:
        ended: its outcome.
        error: what left its code, as it was raised; None where nothing did.
        notes: what it said of itself.
        asked: it ended as the test had asked for, which is no error.
    """

    ended: Ended
    error: BaseException | None = None
    notes: list[Note] = msgspec.field(default_factory=list[Note])
    asked: bool = False


class Performer:
    """Runs one start after the other, as one runner of each kind would."""

    def __init__(self, app: Headrace) -> None:
        self._app = app
        self._runner_context = replace(runner_context(app, PLACE, lambda: DICE), raised=self._raised)
        self._error: BaseException | None = None
        self._links: list[tuple[BaseException, TracebackType | None]] = []
        self._runner: asyncio.Runner | None = None
        # Where functions run while an event loop has this thread: one, since what they open may belong to it.
        self._thread: ThreadPoolExecutor | None = None
        self._lifespans: dict[str, Lifespans] = {}

    def run(self, claim: Claim, crash: Crash | None) -> Performed:
        """Run a start in this thread; a coroutine on an event loop of this drain."""
        if self._is_async(claim):
            self._runner = self._runner or asyncio.Runner()
            return self._runner.run(self.arun(claim, crash))
        return self._run(claim, crash)

    def close(self) -> None:
        """Leave the lifespans and end the event loop, if there is one."""
        held = self._lifespans.pop("async", None)
        self._leave()
        if self._runner is not None:
            if held is not None:
                self._runner.run(held.aleave())
            self._runner.close()

    async def arun(self, claim: Claim, crash: Crash | None) -> Performed:
        """Run a start on this event loop; a plain function in a thread, where it may block."""
        if self._is_async(claim):
            return await self._arun(claim, crash)
        self._thread = self._thread or ThreadPoolExecutor(1, "drain")
        context, loop = copy_context(), asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: context.run(self._run, claim, crash))

    async def aclose(self) -> None:
        """See :meth:`close`."""
        if (lifespans := self._lifespans.pop("async", None)) is not None:
            await lifespans.aleave()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
            self._thread.shutdown(wait=False)

    def _is_async(self, claim: Claim) -> bool:
        task = self._app.tasks.get(claim.task)
        return task is not None and task.is_async

    def _new(self, claim: Claim) -> Lifespans | None:
        """The lifespans of a runner of the kind that this job needs, if they are still to be entered."""
        task = self._app.tasks.get(claim.task)
        if task is None or task.kind in self._lifespans:
            return None
        self._lifespans[task.kind] = made = Lifespans(of_kind(self._app.context.lifespans, task.kind))
        return made

    def _leave(self) -> None:
        for lifespans in self._lifespans.values():
            for end in lifespans.ends:
                end()

    def _not_entered(self, claim: Claim, error: LifespanError) -> Performed:
        """The job goes back to its queue, as one that no runner could take."""
        del self._lifespans[self._app.tasks[claim.task].kind]
        return Performed(Released(), error)

    def _context_of(self, claim: Claim) -> RunnerContext:
        task = self._app.tasks.get(claim.task)
        state = None if task is None else self._lifespans[task.kind].state
        return self._runner_context if state is None else replace(self._runner_context, state=state)

    async def _arun(self, claim: Claim, crash: Crash | None) -> Performed:
        try:
            if lifespans := self._new(claim):
                await lifespans.aenter()
        except LifespanError as error:
            return self._not_entered(claim, error)
        notes: list[Note] = []
        plan, late = self._plan(claim), False
        if crash is not None and crash.at == "start":
            return self._crashed(claim, notes)
        self._error = None
        drive = Drive(MainGate(lambda _: ""))
        own = asyncio.ensure_future(aperform(self._context_of(claim), drive, claim, notes.append))
        drive.task = own

        def kill() -> None:
            nonlocal late
            late = True
            own.cancel()

        loop = asyncio.get_running_loop()
        limits: list[tuple[float | None, Callable[..., Any], tuple[Any, ...]]] = []
        if plan is not None:
            limits = [(plan.timeout, drive.stop, ("soft",)), (plan.hard_timeout, kill, ())]
        timers = [loop.call_later(after, act, *args) for after, act, args in limits if after]
        try:
            ended = await own
        finally:
            for timer in timers:
                timer.cancel()
        return self._concluded(claim, ended, notes, crash, late=late)

    def _run(self, claim: Claim, crash: Crash | None) -> Performed:
        try:
            if lifespans := self._new(claim):
                lifespans.enter()
        except LifespanError as error:
            return self._not_entered(claim, error)
        notes: list[Note] = []
        if crash is not None and crash.at == "start":
            return self._crashed(claim, notes)
        self._error = None
        gate = LimitGate(self._plan(claim))
        ended = perform(self._context_of(claim), gate, claim, notes.append)
        return self._concluded(claim, ended, notes, crash, late=gate.late)

    def _concluded(
        self, claim: Claim, ended: Ended, notes: list[Note], crash: Crash | None, *, late: bool
    ) -> Performed:
        error = self._restored()
        if late:
            return Performed(self._died(claim, "hard"), None, notes)
        if crash is not None or isinstance(error, RunnerKilled):
            return self._crashed(claim, notes)
        return Performed(ended, error, notes)

    def _crashed(self, claim: Claim, notes: list[Note]) -> Performed:
        return Performed(self._died(claim, ""), None, notes, asked=True)

    def _died(self, claim: Claim, stop_reason: Any) -> Ended:
        text = "its process was ended by SIGKILL"
        error = JobError(type="Crashed", message=text, attempt=claim.attempt, signal=9, worker=PLACE)
        plan = self._plan(claim)
        return (
            Crashed(b"", microseconds(self._app.settings.failure_ttl))
            if plan is None
            else of_death(plan, claim, stop_reason, error, DICE)
        )

    def _plan(self, claim: Claim) -> RunPlan | None:
        """How the job is to be run; None where nothing tells: its start says why."""
        task = self._app.tasks.get(claim.task)
        try:
            return None if task is None else task.plan(claim.options)
        except HeadraceError:
            return None

    def _raised(self, error: BaseException) -> None:
        """Keep what left the code: the record's text is all that a runner keeps."""
        self._error, self._links = error, []
        left, seen = [error], set[int]()
        while left:
            one = left.pop()
            if id(one) not in seen:
                seen.add(id(one))
                self._links.append((one, one.__traceback__))
                left += [other for other in (one.__cause__, one.__context__) if other is not None]

    def _restored(self) -> BaseException | None:
        """What left the code, with its tracebacks."""
        for error, trace in self._links:
            error.__traceback__ = trace
        found, self._error, self._links = self._error, None, []
        return found
