"""A drain: the core of a dispatcher, driven by hand, with the caller's thread as its one runner.

The loop is a generator that yields calls of the store and starts to run, so it exists once for threads and event loops.
Nothing happens beside it; virtual time passes when the core waits for nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from headrace.admin.alarms import look_at_alarms
from headrace.app import Headrace
from headrace.clock import monotonic
from headrace.errors import Interrupt, WaitRefused
from headrace.model.ended import EndKind, Released
from headrace.model.job import Claim, State
from headrace.model.job_record import Record
from headrace.protocol import consume, overviews, produce
from headrace.protocol.overviews import Overview
from headrace.protocol.script import Call
from headrace.running_job import on_event_loop
from headrace.settings import Settings
from headrace.store.client import adriven, driven
from headrace.tasks.job_handle import unsuccessful
from headrace.tasks.task import Task
from headrace.testing.inline_runner import (
    DICE,
    PLACE,
    Crash,
    Faults,
    InlineRunner,
    Performed,
    RunnerKilled,
    outside_loop,
)
from headrace.testing.kit_store import (
    AsyncKitStore,
    Drained,
    DrainError,
    KitStore,
    VirtualClock,
    Wire,
    Wishes,
    unfinished_by_state,
)
from headrace.worker.dispatcher import dispatcher_events as events
from headrace.worker.dispatcher.core import Core
from headrace.worker.dispatcher.declared_duties import TICKING
from headrace.worker.dispatcher.worker_state import Worker
from headrace.worker.messages import Done, Drain, JobProgress, Signal, Spawn, Spawned
from headrace.worker.own_tasks import worker_tasks
from headrace.worker.worker_options import QueueOrder, WorkerOptions

T = TypeVar("T")

# Microseconds by which time is moved beyond the moment that is waited for: at that very one a lease may still hold.
BEYOND = 1_000
# Seconds for which a drain waits for work that is due, and a worker that runs no job for the next piece of a duty.
SOON = 0.005
PIECES = 0.1
# A drain fires no schedules, and keeps what has ended: a test looks at a job that ended before time passed for others.
LEFT_OUT = frozenset({*TICKING, "sweep", "lapse"})
_BAD: dict[str, State] = {
    "failed": State.FAILED, "corrupt": State.QUARANTINED, "crashed": State.QUARANTINED, "retry": State.FAILED,
}  # fmt: skip


class RunHere(msgspec.Struct, frozen=True):
    """A claimed job that is to be run now."""

    claim: Claim
    crash: Crash | None = None


# What each yields is one call, a list of calls that travel in one round trip, or a start.
Asked: TypeAlias = Call[Any] | list[Call[Any]] | RunHere
Steps: TypeAlias = Generator[Asked, Any, T]


class _Even(Random):
    def random(self) -> float:
        return DICE


class InlineTask:
    """A task as the core sees it: the one runner of a drain runs jobs of each kind, one at a time."""

    kind = "process"

    def __init__(self, task: Task[..., Any, Any]) -> None:
        self.name, self.defaults, self.plan = task.name, task.defaults, task.plan


class HandTurned:
    """The loop around one core.

    Attributes:
        core: of this incarnation.
        inbox: events that the core has not got.
        died: it ended as a worker that dies: nothing more is sent.
        seen: the state of the store when it left.
    """

    def __init__(self, core: Core, clock: VirtualClock, start: Callable[[Claim], Steps[Performed | None]]) -> None:
        # ``start`` gives None where the whole worker died.
        self.core = core
        self.inbox: list[events.Event] = [events.Ready()]
        self.died = False
        self.seen: Overview | None = None
        self._clock = clock
        self._start = start
        self._waves: deque[list[events.Step]] = deque()
        self._given: deque[tuple[int, Claim]] = deque()
        self._runners = 0
        # Notes of starts that hold their runners until these are killed.
        self._hung: dict[int, list[JobProgress]] = {}

    @property
    def now(self) -> float:
        """The core's time: monotonic seconds, ahead as the clock of the test is."""
        return monotonic() + self._clock.offset / 1e6

    def burst(self) -> Steps[None]:
        self._act(self.core.start((), self.now))
        while not (self.core.left or self.died):
            if not (yield from self._turn()) and not self.core.left:
                self._pass_to(self.core.next)

    def duties(self) -> Steps[None]:
        core = self.core
        while (yield from self._turn()) or (
            not core.left and core.next < max(self.now + PIECES, core.incarnation.maintenance.doubt_until)
        ):
            if not self._busy:
                self._pass_to(core.next)

    @property
    def _busy(self) -> bool:
        return bool(self.inbox or self._waves or self._given or self.core.hasty)

    def _pass_to(self, at: float) -> None:
        self._clock.offset += max(0, round((at - self.now) * 1e6)) + 1

    def _turn(self) -> Steps[bool]:
        """Have the core decide once, and do it; False: only time brings it more to do."""
        happened, self.inbox = self.inbox, []
        self._act(self.core.on(happened, self.now))
        if self._waves:
            wave = self._waves.popleft()
            if wave[-1][0].script.name == "retire":
                wave.append((overviews.overview(self.core.incarnation.desk.keys), partial(setattr, self, "seen")))
            values = yield [call for call, _ in wave]
            for (call, read), value in zip(wave, values, strict=True):
                self.inbox.append(events.Replied(read, value, call.script.name))
            if not self._waves:
                self.inbox.append(events.Ready())
        elif self._given:
            yield from self._run(*self._given.popleft())
        return self._busy

    def _run(self, runner: int, claim: Claim) -> Steps[None]:
        performed = yield from self._start(claim)
        if performed is None:
            self.died = True
            return
        said = [
            JobProgress(claim.number, note.progress, note.text, note.lines, note.swallowed, note.spent, note.data)
            for note in performed.notes
        ]
        if performed.ended is not None:
            self.inbox.append(events.Heard(runner, [*said, Done(claim.number, performed.ended, 0, 0)]))
        elif performed.late:
            self._hung[runner] = said
        else:
            self._die(runner, said)

    def _die(self, runner: int, said: list[JobProgress]) -> None:
        self.inbox.append(events.RunnerDied(runner, signal=9, heard=[*said]))

    def _act(self, actions: Sequence[Any]) -> None:
        self._waves.extendleft(reversed([one.steps for one in actions if isinstance(one, events.SendFirst)]))
        for action in actions:
            match action:
                case events.Send():
                    self._waves.append(action.steps)
                case events.Give():
                    self._given += [(action.runner, claim) for claim in action.claims]
                case Spawn():
                    self._runners += 1
                    self.inbox.append(Spawned(self._runners, action.kind, os.getpid()))
                case events.TakeBack():
                    back = [one for one in self._given if one[0] == action.runner][-action.most :]
                    self._given = deque(one for one in self._given if one not in back)
                    self.inbox.append(events.TakenBack(action.runner, len(back)))
                case Signal(what="kill") if action.runner in self._hung:
                    self._die(action.runner, self._hung.pop(action.runner))
                case _:
                    # Other actions concern processes, channels and the log, which a drain does not have.
                    pass


class Draining:
    """One drain; to the ``queues`` that are known it adds those that it sees.

    Attributes:
        turned: the incarnation that works; None before the first.
        error: what ended it early: the first error of a job, or its limit.
    """

    def __init__(
        self, app: Headrace, clock: VirtualClock, faults: Faults, wishes: Wishes, settings: Settings, queues: set[str]
    ) -> None:
        self.turned: HandTurned | None = None
        self.error: BaseException | None = None
        self._app, self._clock, self._faults = app, clock, faults
        self._wishes, self._settings, self._queues = wishes, settings, queues
        self._keys = app.client.keys
        self._ends: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        # Jobs that ran here and wait for a retry.
        self._retried: set[str] = set()
        # The job whose end ends the drain; and starts whose crash the test has asked for.
        self._failed: tuple[Claim, State] | None = None
        self._asked: set[int] = set()
        # A job was claimed beyond the limit of starts.
        self._full = False

    @property
    def died(self) -> bool:
        return self.turned is not None and self.turned.died

    @property
    def owner(self) -> str:
        """The name of the incarnation in the store; empty before it has registered."""
        return "" if self.turned is None else self.turned.core.incarnation.desk.owner

    def steps(self) -> Steps[Drained]:
        """Run jobs until none is left that may run by now, or one fails."""
        tried = -1
        while True:
            seen = yield from self._burst()
            if self.died or self._over:
                break
            # A job may have come to a queue that was not known, or behind the last claim.
            starts = self._tasks.total()
            queues = [queue for queue in seen.queues if self._wishes.queue in ("", queue.name)]
            # Hooks may be called for what has happened.
            more = bool(self._app.hooks.declared) or any(q.size > q.held and not q.paused for q in queues)
            if (starts == tried or not more) and not (yield from self._pass_time(seen.now)):
                break
            tried = starts
        if self._failed is not None and self.error is None:
            claim, state = self._failed
            records: list[Record | None] = yield produce.read(self._keys, [claim.id])
            error = None if records[0] is None else records[0].error
            self.error = unsuccessful(claim.id, claim.task, state, error)
        if self.error is None and self._full:
            (name, count), *_ = self._tasks.most_common(1)
            left = ", ".join(f"{number:,} {state}" for state, number in unfinished_by_state(seen).items())
            self.error = DrainError(
                f"the drain's limit of {self._wishes.limit:,} starts is reached, and jobs are left: {left}. {name} "
                f"started {count:,} times: does it snooze or enqueue for ever? Give drain(limit=...) another number"
            )
        return Drained(self._tasks.total(), dict(self._ends), unfinished_by_state(seen))

    def tidy(self) -> Steps[None]:
        """Do what is due by now and runs no job: also what has ended goes when its retention is over."""
        turned = self._turning(("default",), burst=False)
        yield from turned.duties()
        turned.inbox.append(Drain(now=True))
        yield from turned.duties()

    def _burst(self) -> Steps[Overview]:
        queues = {self._wishes.queue} if self._wishes.queue else self._queues
        turned = self._turning(tuple(sorted(queues)), burst=True)
        yield from turned.burst()
        seen: Overview = turned.seen or (yield overviews.overview(self._keys))
        self._queues.update(queue.name for queue in seen.queues)
        return seen

    def _turning(self, queues: tuple[str, ...], *, burst: bool) -> HandTurned:
        app = self._app
        options = WorkerOptions(processes=1, queues=QueueOrder(queues), burst=burst)
        tasks = {name: cast("Task[..., Any, Any]", InlineTask(task)) for name, task in worker_tasks(app).items()}
        look = partial(look_at_alarms, app.client, app.stats, app.alarms.declared.values())
        worker = Worker(
            settings=self._settings, tasks=tasks, options=options, place=PLACE, pid=os.getpid(), random=_Even(),
            probe=lambda handle: (handle.pid, 0), job_counts=self, limits=app.limits.declared(),
            hooks=list(app.hooks.declared.values()), look_at_alarms=look if app.alarms.declared else None,
            prompt_hooks=True, leaves=LEFT_OUT if burst else frozenset(TICKING), soon=SOON,
        )  # fmt: skip
        self.turned = HandTurned(Core(worker, self._keys), self._clock, self._start)
        return self.turned

    def _start(self, claim: Claim) -> Steps[Performed | None]:
        if self._tasks.total() == self._wishes.limit:
            self._full = True
            self._stop()
            return Performed(Released())
        self._tasks[claim.task] += 1
        self._retried.discard(claim.id)
        crash = self._faults.take_crash(claim)
        performed: Performed = yield RunHere(claim, crash)
        if crash is not None and crash.worker:
            return None
        if performed.ended is None and not performed.late:
            self._asked.add(claim.token)
        error, ended = performed.error, performed.ended
        bad = ended is not None and (isinstance(ended, Released) or self._ends_drain(ended.kind))
        if error is not None and (bad or _always(error)):
            self.error = error
            self._stop()
        return performed

    def _ends_drain(self, kind: str) -> bool:
        return self._wishes.raises and kind in _BAD and not (kind == "retry" and self._wishes.retries)

    @property
    def _over(self) -> bool:
        return self._full or self.error is not None or self._failed is not None

    def _stop(self) -> None:
        assert self.turned is not None
        self.turned.inbox.append(Drain(now=True))

    def ended(self, claim: Claim, kind: EndKind, *_: float) -> None:
        self._ends[kind] += 1
        if kind == "retry":
            self._retried.add(claim.id)
        if self._ends_drain(kind) and claim.token not in self._asked and not self._over:
            self._failed = claim, _BAD[kind]
            self._stop()

    def grew(self, memory: int) -> None:
        """The memory of a runner is that of the test."""

    def _pass_time(self, now: int) -> Steps[bool]:
        """Move the clock to the next job that is to be waited for; False: there is none."""
        assert self.turned is not None
        moments: list[int] = []
        if self._wishes.retries and self._retried:
            records: list[Record | None] = yield produce.read(self._keys, sorted(self._retried))
            moments += [one.due_us for one in records if one is not None and one.state is State.SCHEDULED]
        at = self.turned.core.incarnation.maintenance.promotion.at
        if self._wishes.scheduled and at < float("inf"):
            moments.append(now + round((at - self.turned.now) * 1e6))
        if moments:
            self._clock.move(max(0, min(moments) - now) + BEYOND)
        return bool(moments)


def _always(error: BaseException) -> bool:
    """Whether the drain ends by this in any case: Ctrl-C, a time-out of the test, ``pytest.fail()`` in a stub."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return False
        return task is not None and task.cancelling() > 0
    return not isinstance(error, Exception | Interrupt | SystemExit | GeneratorExit | RunnerKilled | BaseExceptionGroup)


Make = Callable[[Draining], Steps[T]]


class DrainDriver:
    """Runs the drains of one kit.

    Attributes:
        busy: whether one is under way.
        count: of the drains so far.
        dead: incarnations that a test let die.
        queues: names of queues that may hold jobs.
    """

    def __init__(self, app: Headrace, clock: VirtualClock, faults: Faults, url: str, settings: Settings) -> None:
        self.busy = False
        self.count = 0
        self.dead: set[str] = set()
        self.queues = {"default"}
        self._settings = msgspec.structs.replace(settings, prefetch_seconds=0, startup_profiling=False)
        self._app, self._clock, self._faults = app, clock, faults
        self._store = KitStore(url, settings, Wire(clock))
        self._astore = AsyncKitStore(url, settings, Wire(clock))

    def declare(self) -> None:
        """Tell the store which limits and hooks the code has, as its workers have done before a program enqueues."""
        if self._app.limits.declared().limits or self._app.hooks.declared:
            self.run_apart(Draining.tidy, Wishes())

    def run(self, make: Make[T], wishes: Wishes) -> T:
        """Carry out a drain in this thread. Raises WaitRefused: an event loop runs in it. Raises DrainError, and where
        that is wished the first error of a job.
        """
        if on_event_loop():
            raise WaitRefused("drain() would block the event loop: await adrain()")
        with self._begun(wishes) as (drain, runner):

            def do(asked: Asked) -> Any:
                if isinstance(asked, RunHere):
                    return runner.run(asked.claim, asked.crash)
                return self._store.run_all(asked) if isinstance(asked, list) else self._store.run(asked)

            try:
                value = driven(make(drain), do)
            finally:
                runner.close()
                if retire := self._left_behind(drain):
                    self._store.run(retire)
        return self._ended(drain, value)

    async def arun(self, make: Make[T], wishes: Wishes) -> T:
        with self._begun(wishes) as (drain, runner):

            def do(asked: Asked) -> Awaitable[Any]:
                if isinstance(asked, RunHere):
                    return runner.arun(asked.claim, asked.crash)
                return self._astore.run_all(asked) if isinstance(asked, list) else self._astore.run(asked)

            try:
                value = await adriven(make(drain), do)
            finally:
                await runner.aclose()
                if retire := self._left_behind(drain):
                    await self._astore.run(retire)
        return self._ended(drain, value)

    def run_apart(self, make: Make[T], wishes: Wishes) -> T:
        """As :meth:`run`, also where an event loop runs, which waits."""
        with outside_loop() if on_event_loop() else nullcontext():
            return self.run(make, wishes)

    def close(self) -> None:
        self._store.close()
        self._astore.leave_to_loop()

    @contextmanager
    def _begun(self, wishes: Wishes) -> Generator[tuple[Draining, InlineRunner], None, None]:
        if self.busy:
            raise DrainError("a drain is under way: a job cannot drain, and one drain runs at a time")
        self.busy, runner = True, InlineRunner(self._app)
        self.count += 1
        try:
            yield Draining(self._app, self._clock, self._faults, wishes, self._settings, self.queues), runner
        finally:
            self.busy = False

    def _left_behind(self, drain: Draining) -> Call[bool] | None:
        if drain.turned is None or not drain.owner or drain.died or drain.turned.core.left:
            return None
        return consume.retire(self._store.keys, drain.owner, 0)

    def _ended(self, drain: Draining, value: T) -> T:
        if drain.died:
            self.dead.add(drain.owner)
        if drain.error is not None:
            raise drain.error
        return value
