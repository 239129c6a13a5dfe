"""Runs claimed jobs in the caller's thread or event loop, through the runner's own path.

Owns the event loop of a drain that has none. Sends nothing: what comes of a start is returned.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from headrace.app import Headrace
from headrace.errors import HeadraceError, LifespanError
from headrace.job import Claim, JobError
from headrace.lifespan import of_kind
from headrace.protocol.consume import Note
from headrace.settings import microseconds
from headrace.task import Plan
from headrace.testing.faults import Crash, RunnerKilled
from headrace.testing.limit_gate import LimitGate
from headrace.worker.gate import MainGate
from headrace.worker.lifespans import Lifespans
from headrace.worker.loops import Drive
from headrace.worker.outcomes import Ended, of_death
from headrace.worker.perform import Bench, aperform, bench, perform

PLACE = f"test:{os.getpid()}"
# Instead of a random number: the jitter of retries is none.
DICE = 0.5
RELEASED: Ended = ("released", b"", 0)


@dataclass(slots=True)
class Performed:
    """One start that has ended.

    Attributes:
        ended: its outcome.
        error: what left its code, as it was raised; None where nothing did.
        notes: what it said of itself.
        asked: it ended as the test had asked for, which is no error.
    """

    ended: Ended
    error: BaseException | None = None
    notes: list[Note] = field(default_factory=list[Note])
    asked: bool = False


class Performer:
    """Runs one start after the other."""

    def __init__(self, app: Headrace) -> None:
        self._app = app
        self._bench = replace(bench(app, PLACE, lambda: DICE), raised=self._raised)
        self._error: BaseException | None = None
        self._links: list[tuple[BaseException, TracebackType | None]] = []
        self._runner: asyncio.Runner | None = None
        # What a runner of a kind enters before its first job, this does too.
        self._lifespans: dict[str, Lifespans] = {}

    def close(self) -> None:
        """Leave the lifespans that were entered, and end the event loop, if there is one."""
        for held in self._lifespans.values():
            for end in held.ends:
                end()
        if self._runner is not None:
            self._runner.close()

    async def aclose(self) -> None:
        """Leave the lifespans that were entered on this event loop."""
        if (held := self._lifespans.pop("async", None)) is not None:
            await held.aleave()

    async def _aenter(self) -> None:
        """Enter those of the kind async on this event loop, unless they were."""
        if "async" not in self._lifespans:
            held = Lifespans(of_kind(self._app.context.lifespans, "async"), asyncio.get_running_loop())
            await held.aenter()
            self._lifespans["async"] = held

    def _entered(self, kind: str) -> Bench:
        """What the starts of a kind share. Those of a loop are entered before it runs, or by :meth:`_aenter`."""
        held = self._lifespans.get(kind)
        if held is None:
            loop = self._runner.get_loop() if self._runner is not None and kind == "async" else None
            held = Lifespans(of_kind(self._app.context.lifespans, kind), loop)
            held.enter()
            self._lifespans[kind] = held
        return replace(self._bench, state=held.state)

    def run(self, claim: Claim, crash: Crash | None) -> Performed:
        """Run a start in this thread; a coroutine on an event loop of this drain."""
        task = self._app.tasks.get(claim.task)
        if task is None or not task.is_async:
            return self._run(claim, crash)
        self._runner = self._runner or asyncio.Runner()
        try:
            self._entered("async")
        except LifespanError as error:
            return Performed(RELEASED, error)
        return self._runner.run(self.arun(claim, crash))

    async def arun(self, claim: Claim, crash: Crash | None) -> Performed:
        """Run a start on this event loop; a plain function in a thread, where it may block."""
        task = self._app.tasks.get(claim.task)
        if task is None or not task.is_async:
            return await asyncio.to_thread(self._run, claim, crash)
        notes: list[Note] = []
        plan, late = self._plan(claim), False
        if crash is not None and crash.at == "start":
            return self._crashed(claim, notes)
        self._error = None
        try:
            await self._aenter()
        except LifespanError as error:
            return Performed(RELEASED, error)
        drive = Drive(MainGate(lambda _: ""))
        own = asyncio.ensure_future(aperform(self._entered("async"), drive, claim, notes.append))
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
        notes: list[Note] = []
        if crash is not None and crash.at == "start":
            return self._crashed(claim, notes)
        self._error = None
        gate = LimitGate(self._plan(claim))
        task = self._app.tasks.get(claim.task)
        try:
            shared = self._bench if task is None else self._entered(task.kind)
        except LifespanError as error:
            return Performed(RELEASED, error)
        ended = perform(shared, gate, claim, notes.append)
        return self._concluded(claim, ended, notes, crash, late=gate.late)

    def _concluded(
        self, claim: Claim, ended: Ended, notes: list[Note], crash: Crash | None, *, late: bool
    ) -> Performed:
        error = self._restored()
        if late:
            return Performed(self._died(claim, "hard", "its process was ended by SIGKILL"), None, notes)
        if crash is not None or isinstance(error, RunnerKilled):
            return self._crashed(claim, notes)
        return Performed(ended, error, notes)

    def _crashed(self, claim: Claim, notes: list[Note]) -> Performed:
        return Performed(self._died(claim, "", "its process was ended by SIGKILL"), None, notes, asked=True)

    def _died(self, claim: Claim, doom: Any, text: str) -> Ended:
        error = JobError(type="Crashed", message=text, attempt=claim.attempt, signal=9, worker=PLACE)
        plan = self._plan(claim)
        return (
            ("crashed", b"", microseconds(self._app.settings.failure_ttl))
            if plan is None
            else of_death(plan, claim, doom, error, DICE)
        )

    def _plan(self, claim: Claim) -> Plan | None:
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
