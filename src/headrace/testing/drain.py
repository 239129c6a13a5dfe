"""A drain: the kit claims, runs and settles one job after the other, by the scripts that workers use.

1. :class:`DrainWorker`: the loop, as a generator: it yields calls of the store and starts to run, and receives their
   results, so that it exists once for threads and for event loops. Decides when virtual time passes, and when a drain
   is over.
2. :class:`DrainDriver`: carries out the steps: in a thread, or on an event loop. Owns the kit's own stores, which no
   fault meets, and the rule that one drain runs at a time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeAlias, TypeVar

import msgspec

from headrace.app import Headrace
from headrace.errors import Interrupt, WaitRefused
from headrace.model.ended import Corrupt, Ended, Failed, Growing, Released, Retried
from headrace.model.job import Claim, Input, JobError, Outcome, State, error_json, parse_error
from headrace.protocol import consume, graph, operations, overviews, settle_calls
from headrace.protocol.consume import Renewed
from headrace.protocol.limit_verbs import declare_limits
from headrace.protocol.overviews import Overview
from headrace.protocol.script import Call
from headrace.settings import Settings, microseconds
from headrace.stopping import on_event_loop
from headrace.store.client import adriven, driven
from headrace.tasks.job_handle import unsuccessful
from headrace.tasks.task import budgets
from headrace.testing.kit_store import AsyncKitStore, Drained, DrainError, KitStore, VirtualClock, Wire, Wishes, waiting
from headrace.testing.perform_here import PLACE, Crash, Faults, Performed, Performer, RunnerKilled
from headrace.worker.dispatcher.dispatcher_events import End
from headrace.worker.dispatcher.endings import starts
from headrace.worker.dispatcher.workflow_growth import Growth, Inputs, too_large
from headrace.worker.messages import before_start

T = TypeVar("T")

BATCH = 500
# Microseconds by which time is moved beyond the moment that is waited for: at that very one a lease may still hold.
BEYOND = 1_000
_BAD = {"failed": State.FAILED, "corrupt": State.QUARANTINED, "crashed": State.QUARANTINED}


class RunHere(msgspec.Struct, frozen=True):
    """A claimed job that is to be run now."""

    claim: Claim
    crash: Crash | None = None


# What each yields is one call, a list of calls that travel in one round trip, or a start.
Asked: TypeAlias = Call[Any] | list[Call[Any]] | RunHere
Steps: TypeAlias = Generator[Asked, Any, T]


class DrainWorker:
    """One incarnation of a worker that runs one job at a time.

    Attributes:
        owner: its name in the store; empty before it has begun.
        error: what ended it early, the error of a job.
        died: it ended as a worker that dies: nothing was settled, and nothing is to be said.
    """

    def __init__(self, app: Headrace, clock: VirtualClock, faults: Faults, wishes: Wishes) -> None:
        self.owner = ""
        self.error: BaseException | None = None
        self.died = False
        self._app = app
        self._clock = clock
        self._faults = faults
        self._wishes = wishes
        self._keys = app.client.keys
        self._keep = microseconds(app.settings.failure_ttl)
        self._request = 0
        self._inputs = Inputs(self._keys)
        self._growth = Growth(self._keys, self._end_of_growth)
        self._grown_as: Ended | None = None
        self._ends: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        # Of what ran here and is tried again: microseconds that it waits, as settled; and when that is over.
        self._waits: dict[str, int] = {}
        self._retries: dict[str, int] = {}

    def steps(self) -> Steps[Drained]:
        """Run jobs until none is left that may run by now, or one fails.

        Raises:
            DrainError: the limit is reached.
        """
        yield from self._begin()
        while self.error is None and not self.died:
            claim = yield from self._next()
            if claim is None:
                break
            if self._tasks.total() >= self._wishes.limit:
                yield from self._settle(claim, Released())
                raise DrainError(self._too_many((yield overviews.overview(self._keys))))
            yield from self._run(claim)
        seen: Overview = yield overviews.overview(self._keys)
        return Drained(self._tasks.total(), dict(self._ends), waiting(seen))

    def tidy(self) -> Steps[None]:
        """Do what is due by now and runs no job; what ended goes when its retention is over.

        A drain leaves that: a test could not look at a job that ended before others which it let time pass for.
        """
        settings = self._app.settings
        yield from self._begin()
        yield from self._upkeep()
        sweep = consume.sweep(self._keys, BATCH, settings.max_finished, settings.max_finished_bytes)
        for call in (graph.lapse(self._keys, BATCH), sweep):
            while (yield call)[0]:
                pass

    def leave(self) -> Call[bool]:
        """The last word of this incarnation."""
        return consume.retire(self._keys, self.owner, self._keep)

    # -- the incarnation --------------------------------------------------------------------------------------------

    def _begin(self) -> Steps[None]:
        app = self._app
        self.owner = self._growth.owner = f"{PLACE}:{os.urandom(4).hex()}"
        metadata: list[str | int] = ["place", PLACE, *budgets(app.tasks, app.settings.max_crashes)]
        tasks = {name: task.kind for name, task in app.tasks.items()}
        lease = microseconds(app.settings.lease)
        spared: int = yield consume.register(self._keys, self.owner, lease, metadata, tasks=tasks)
        yield declare_limits(self._keys, self.owner, tasks, app.limits.declared())
        # Of workers that were silent it is not known yet whether they live; here there is none that does.
        left = spared + BEYOND if spared else 0
        while left > 0:
            step = min(left, lease // 3)
            self._clock.offset += step
            left -= step
            yield consume.renew(self._keys, self.owner, lease)

    def _upkeep(self) -> Steps[tuple[int, int, list[str]]]:
        """What a worker does beside its jobs: the time, when the next scheduled one is due (0: none), the queues."""
        app, keys = self._app, self._keys
        lease = microseconds(app.settings.lease)
        rest: list[Call[Any]] = [
            operations.resume_due(keys, BATCH),
            graph.tend(keys),
            consume.promote(keys, BATCH),
            overviews.overview(keys),
        ]
        while True:
            seen, resumed, tended, promoted, look = yield [consume.renew(keys, self.owner, lease), *rest]
            if not seen.alive:
                # Time has passed: whatever this one held is settled, or was taken over.
                yield self.leave()
                yield from self._begin()
                continue
            queues = [queue.name for queue in look.queues]
            again = yield from self._recover(seen, queues)
            if not (again or resumed[0] or tended[0] or promoted[0] == BATCH):
                break
        # What ran last was settled before this, so its retry is due by then.
        self._retries |= {id: seen.now + wait for id, wait in self._waits.items()}
        self._waits.clear()
        return seen.now, promoted[2], queues

    def _recover(self, seen: Renewed, queues: list[str]) -> Steps[bool]:
        """Take back what a dead worker held, and what is parked and known here; whether there was anything."""
        moved = 0
        for task in seen.parking:
            if task in self._app.tasks:
                moved += yield consume.unpark(self._keys, task, BATCH, queues)
        if not (seen.lapsing and seen.lapsing != self.owner and seen.lapse <= seen.now):
            return moved > 0
        word, _ = yield consume.reclaim(self._keys, seen.lapsing, False, BATCH, self._keep)
        return moved > 0 or word != "alive"

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _next(self) -> Steps[Claim | None]:
        """The next job that may run, when time has passed as far as it is wished to; None: there is none."""
        while True:
            now, due, queues = yield from self._upkeep()
            names = [queue for queue in queues if self._wishes.queue in ("", queue)]
            self._request += 1
            found: consume.Claimed = yield consume.claim(self._keys, self.owner, self._request, 1, names)
            if found.jobs:
                return found.jobs[0]
            for alien in found.aliens:
                text = error_json(JobError(type="Corrupt", message="its id, priority or record cannot be read"))
                yield from self._settle(Claim(alien.id, alien.token, "", 0, "", b""), Corrupt(text, self._keep))
            if not (found.aliens or found.lost or self._pass_time(now, due)):
                return None

    def _pass_time(self, now: int, due: int) -> bool:
        """Move the clock to the next job that is to be waited for; False: there is none."""
        moments = [at for at in self._retries.values() if at > now] if self._wishes.retries else []
        if self._wishes.scheduled:
            moments.append(due)
        if not due or not moments:
            return False
        self._clock.move(max(0, min(moments) - now) + BEYOND)
        return True

    def _run(self, claim: Claim) -> Steps[None]:
        self._tasks[claim.task] += 1
        self._retries.pop(claim.id, None)
        crash = self._faults.crash_of(claim)
        performed: Performed = yield from self._performed(claim, crash)
        if performed.notes:
            self._request += 1
            yield consume.note(self._keys, self.owner, performed.notes, request=self._request)
        if crash is not None and crash.worker:
            self.died = True
            return
        ended = performed.ended
        if isinstance(ended, Growing):
            ended = yield from self._grow(claim, ended)
        self._ends[ended.kind] += 1
        yield from self._settle(claim, ended)
        if isinstance(ended, Retried):
            self._waits[claim.id] = ended.delay
        # Released: nothing was run, since what its runner opens first could not be opened.
        self.error = performed.error if isinstance(ended, Released) else self._error_of(claim, ended, performed)

    def _performed(self, claim: Claim, crash: Crash | None) -> Steps[Performed]:
        """Run a job, unless it may not start."""
        now: int = (yield overviews.overview(self._keys)).now if claim.expires else 0
        if (early := before_start(claim, now, self._keep)) is not None:
            return Performed(early)
        if claim.parents:
            inputs = yield from self._inputs_of(claim)
            if text := too_large(inputs):
                error = JobError(type="PayloadTooLarge", message=text, attempt=claim.attempt)
                return Performed(Failed(error_json(error), self._keep))
            claim = msgspec.structs.replace(claim, inputs=inputs)
        performed: Performed = yield RunHere(claim, crash)
        return performed

    def _inputs_of(self, claim: Claim) -> Steps[tuple[Input, ...]]:
        self._inputs.add(claim)
        while True:
            for inputs, _ in self._inputs.ready():
                return inputs
            for call, read in self._inputs.steps():
                read((yield call))

    def _grow(self, claim: Claim, ended: Growing) -> Steps[Ended]:
        """Store the nodes that a start has added; its end as it is to be settled."""
        self._growth.begin(End(claim, ended))
        while self._growth:
            for call, read in self._growth.steps():
                read((yield call))
        assert self._grown_as is not None
        return self._grown_as

    def _end_of_growth(self, end: End) -> None:
        self._grown_as = end.ended

    def _settle(self, claim: Claim, ended: Ended) -> Steps[None]:
        outcome = Outcome(claim.id, claim.token, ended.kind, ended.data, ended.amount)
        self._request += 1
        notes = starts([(outcome, claim)])
        rows = [(outcome, claim.score)]
        yield settle_calls.settle(self._keys, self.owner, self._request, rows, self._keep, starts=notes)

    # -- what is said of it -----------------------------------------------------------------------------------------

    def _error_of(self, claim: Claim, ended: Ended, performed: Performed) -> BaseException | None:
        """What ends the drain, of a start that did not go well."""
        error, kind = performed.error, ended.kind
        if error is not None and _always(error):
            return error
        bad = kind in _BAD or (kind == "retry" and not self._wishes.retries)
        if performed.asked or not bad or not self._wishes.raises:
            return None
        if error is not None:
            return error
        return unsuccessful(claim.id, claim.task, _BAD.get(kind, State.FAILED), parse_error(ended.data))

    def _too_many(self, seen: Overview) -> str:
        (name, count), *_ = self._tasks.most_common(1)
        left = ", ".join(f"{number:,} {state}" for state, number in waiting(seen).items())
        return (
            f"the drain's limit of {self._wishes.limit:,} starts is reached, and jobs are left: {left}. {name} "
            f"started {count:,} times: does it snooze or enqueue for ever? Give drain(limit=...) another number"
        )


def _always(error: BaseException) -> bool:
    """Whether the drain ends by this in any case: Ctrl-C, a time-out of the test, ``pytest.fail()`` in a stub."""
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return False
        return task is not None and task.cancelling() > 0
    return not isinstance(error, Exception | Interrupt | SystemExit | GeneratorExit | RunnerKilled | BaseExceptionGroup)


Make = Callable[[DrainWorker], Steps[T]]


class DrainDriver:
    """Runs the drains of one kit.

    Attributes:
        busy: whether one is under way.
        count: of the drains so far.
        dead: incarnations that a test let die.
    """

    def __init__(self, app: Headrace, clock: VirtualClock, faults: Faults, url: str, settings: Settings) -> None:
        self.busy = False
        self.count = 0
        self.dead: set[str] = set()
        self._app = app
        self._clock = clock
        self._faults = faults
        self._store = KitStore(url, settings, Wire(clock))
        self._astore = AsyncKitStore(url, settings, Wire(clock))

    def declare(self) -> None:
        """Tell the store which limits the code has, as its workers have done before a program enqueues."""
        if (limits := self._app.limits.declared()).limits:
            self._store.run(declare_limits(self._store.keys, "", self._app.tasks, limits))

    def run(self, make: Make[T], wishes: Wishes) -> T:
        """Carry out a drain in this thread.

        Raises:
            WaitRefused: an event loop runs in it.
            DrainError: another one is under way.
            BaseException: the first error of a job, where that is wished.
        """
        if on_event_loop():
            raise WaitRefused("drain() would block the event loop: await adrain()")
        with self._begun(wishes) as (drain, performer):

            def do(asked: Asked) -> Any:
                if isinstance(asked, RunHere):
                    return performer.run(asked.claim, asked.crash)
                return self._store.run_all(asked) if isinstance(asked, list) else self._store.run(asked)

            try:
                value = driven(make(drain), do)
            finally:
                performer.close()
                if drain.owner and not drain.died:
                    self._store.run(drain.leave())
        return self._ended(drain, value)

    async def arun(self, make: Make[T], wishes: Wishes) -> T:
        with self._begun(wishes) as (drain, performer):

            def do(asked: Asked) -> Awaitable[Any]:
                if isinstance(asked, RunHere):
                    return performer.arun(asked.claim, asked.crash)
                return self._astore.run_all(asked) if isinstance(asked, list) else self._astore.run(asked)

            try:
                value = await adriven(make(drain), do)
            finally:
                await performer.aclose()
                if drain.owner and not drain.died:
                    await self._astore.run(drain.leave())
        return self._ended(drain, value)

    def run_apart(self, make: Make[T], wishes: Wishes) -> T:
        """As :meth:`run`, also where an event loop runs: then in a thread of its own, and this one waits."""
        if not on_event_loop():
            return self.run(make, wishes)
        found: list[T] = []
        context = copy_context()
        thread = threading.Thread(target=lambda: found.append(context.run(self.run, make, wishes)), name="drain")
        thread.start()
        thread.join()
        if not found:
            raise DrainError("the drain of an inline enqueue ended with an error: its traceback is above")
        return found[0]

    def close(self) -> None:
        """Close the connections of the kit."""
        self._store.close()
        self._astore.leave_to_loop()

    @contextmanager
    def _begun(self, wishes: Wishes) -> Generator[tuple[DrainWorker, Performer], None, None]:
        if self.busy:
            raise DrainError("a drain is under way: a job cannot drain, and one drain runs at a time")
        self.busy, performer = True, Performer(self._app)
        self.count += 1
        try:
            yield DrainWorker(self._app, self._clock, self._faults, wishes), performer
        finally:
            self.busy = False

    def _ended(self, drain: DrainWorker, value: T) -> T:
        if drain.died:
            self.dead.add(drain.owner)
        if drain.error is not None:
            raise drain.error
        return value
