"""Every rule about how jobs end, each a case: enqueued once for a drain and once for a worker, it must end alike.

``headrace worker tests.kit.cases:app`` runs the worker's side. What differs between the sides is in ``die`` alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from headrace import Flow, Headrace, Job, Retry, WorkflowRun, current_job
from headrace.context import CurrentJob
from headrace.errors import SoftTimeLimit

app = Headrace(max_crashes=2)
HASTE = Retry(max=2, delay=0.01, factor=1, jitter=0)
Made = Job[Any] | WorkflowRun
CASES: dict[str, Callable[[], Made | list[Made]]] = {}


def die() -> None:
    """End the process that runs this job."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@app.middleware
@contextmanager
def swallows_lookups(job: CurrentJob) -> Generator[None]:
    try:
        yield
    except LookupError:
        job.log("swallowed")


class Odd(Exception):
    """One whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "value": lambda: ValueError("two\nlines"),
    "odd": Odd,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "lookup": lambda: KeyError("missing"),
    "group": lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
    "limit in a group": lambda: BaseExceptionGroup("several", [SoftTimeLimit("of mine")]),
}


@app.task
def work(failures: int = 0, error: str = "value", value: Any = 7) -> Any:
    if current_job().failures < failures:
        failure = ERRORS[error]()
        raise failure
    return value


@app.task
async def awork(failures: int = 0, error: str = "value", value: Any = 7) -> Any:
    await asyncio.sleep(0)
    if current_job().failures < failures:
        failure = ERRORS[error]()
        raise failure
    return value


@app.task(kind="thread")
def twork(failures: int = 0) -> int:
    if current_job().failures < failures:
        raise ValueError("in a thread")
    return failures


@app.task
def number(value: Any) -> int:
    return value  # type: ignore[no-any-return]


@app.task
def strict(value: int) -> int:
    return value


@app.task(timeout=0.1, hard_timeout=0.6)
def slow(stubborn: bool = False, good: bool = False) -> str:
    end = time.monotonic() + (30 if not good else 0.2)
    while time.monotonic() < end:
        try:
            time.sleep(30)
        except SoftTimeLimit:
            if good:
                return "in time"
            if not stubborn:
                raise
    return "never"


# However slow the machine is, this code has the time to hear of its soft limit.
patient = slow.options(hard_timeout=20)


@app.task(timeout=0.1)
async def aslow(good: bool = False) -> str:
    try:
        await asyncio.sleep(30)
    except SoftTimeLimit:
        if not good:
            raise
    return "in time"


@app.task
def crash(times: int) -> int:
    if current_job().attempt <= times:
        die()
    return current_job().attempt


@app.task
def snooze(times: int) -> int:
    if current_job().attempt <= times:
        current_job().snooze(0.01)
    return current_job().attempt


@app.task
def join(values: list[int]) -> int:
    return sum(values)


@app.task
def spread(count: int) -> list[int]:
    return list(range(count))


@app.task
def undo(value: Any) -> None:
    pass


@app.task
def grow(count: int) -> int:
    for one in range(count):
        current_job().workflow.run(strict, one)
    return count


@app.task
def told(id: str) -> None:
    pass


def case(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        CASES[name] = make
        return make

    return add


def _started(run: WorkflowRun) -> WorkflowRun:
    run.start()
    return run


CASES |= {
    "a success": work.enqueue,
    "a success of a coroutine": awork.enqueue,
    "a retry that succeeds": lambda: work.options(retries=HASTE).enqueue(1),
    "a retry of a coroutine": lambda: awork.options(retries=HASTE).enqueue(2),
    "a retry in a thread": lambda: twork.options(retries=HASTE).enqueue(2),
    "retries that are used up": lambda: work.options(retries=HASTE).enqueue(9),
    "a failure without retries": lambda: work.enqueue(1),
    "an error without a text": lambda: work.enqueue(1, "odd"),
    "an exit": lambda: work.enqueue(1, "exit"),
    "a group of errors": lambda: work.options(retries=HASTE).enqueue(1, "group"),
    "a limit in a group": lambda: work.enqueue(1, "limit in a group"),
    "an error that middleware swallows": lambda: work.enqueue(1, "lookup"),
    "an error that middleware swallows in a coroutine": lambda: awork.enqueue(1, "lookup"),
    "a result of the wrong type": lambda: number.enqueue("text"),
    "a result that cannot be sent": lambda: number.options(retries=HASTE).enqueue("text"),
    "an unknown task": lambda: app.by_name("nowhere.task").enqueue(1),
    "a soft limit": patient.enqueue,
    "a soft limit and a retry": lambda: patient.options(retries=Retry(max=1, delay=0.01, jitter=0)).enqueue(),
    "a soft limit that is never retried": lambda: patient.options(retries=0).enqueue(),
    "a soft limit that the code heeds": lambda: patient.enqueue(good=True),
    "a soft limit of a coroutine": aslow.enqueue,
    "a soft limit that a coroutine heeds": lambda: aslow.enqueue(good=True),
    "a hard limit": lambda: slow.enqueue(stubborn=True),
    "a hard limit and a retry": lambda: slow.options(retries=Retry(max=1, delay=0.01, jitter=0)).enqueue(stubborn=True),
    "a crash": lambda: crash.enqueue(1),
    "crashes that are too many": lambda: crash.enqueue(9),
    "a crash budget of its own": lambda: crash.options(max_crashes=1).enqueue(9),
    "a crash of what may start once": lambda: crash.options(at_most_once=True).enqueue(1),
    "snoozes": lambda: snooze.enqueue(3),
    "a job that expired": lambda: work.options(expires=0.000001).enqueue(),
    "ordered jobs, of which one fails": lambda: [
        work.options(key="k", ordered=True, retries=retries).enqueue(failures)
        for retries, failures in ((0, 0), (HASTE, 1), (0, 1), (0, 0))
    ],
    "a delay": lambda: work.options(delay=0.05).enqueue(),
    "a request id twice": lambda: [work.options(request_id="one").enqueue() for _ in range(2)],
}


@case("a job that is cancelled before it starts")
def _cancelled() -> Made:
    job = work.options(delay=60).enqueue()
    job.cancel()
    return job


@app.workflow
def fan(flow: Flow, count: int) -> None:
    flow.run(join, flow.map(strict, flow.run(spread, count)))


@app.workflow
def stops(flow: Flow) -> None:
    flow.run(work, after=flow.run(work, 1))


@app.workflow
def goes_on(flow: Flow) -> None:
    bad = flow.run(work, 1)
    flow.run(work, after=[bad.on_failure("continue")], name="on")
    flow.run(work, after=[bad.on_failure("skip")], name="skipped")


@app.workflow
def conditions(flow: Flow) -> None:
    no = flow.run(work, params={"value": 0})
    yes = flow.run(work, params={"value": 1})
    flow.run(work, when=no, name="not run")
    flow.run(work, when=yes, name="run")


@app.workflow
def undoes(flow: Flow) -> None:
    first = flow.run(work, undo=undo)
    flow.run(work, 1, after=first)


@app.workflow
def grows(flow: Flow, count: int) -> None:
    flow.run(work, after=flow.run(grow, count))


@app.workflow
def nests(flow: Flow) -> None:
    flow.run(work, after=flow.run(fan, 2))


@app.workflow
def crashes(flow: Flow) -> None:
    flow.run(work, after=flow.run(crash, 1))


@app.workflow
def retries(flow: Flow) -> None:
    flow.run(work, after=flow.run(work.options(retries=HASTE), 2))


@app.workflow(on_failure=told)
def tells_failure(flow: Flow) -> None:
    flow.run(work, 1)


@app.workflow(on_success=told)
def tells_success(flow: Flow) -> None:
    flow.run(work)


CASES |= {
    "a map": lambda: _started(fan.create(4)),
    "a map over nothing": lambda: _started(fan.create(0)),
    "an edge that stops": lambda: _started(stops.create()),
    "edges that go on and skip": lambda: _started(goes_on.create()),
    "conditions": lambda: _started(conditions.create()),
    "an undo": lambda: _started(undoes.create()),
    "a node that adds nodes": lambda: _started(grows.create(3)),
    "a node that adds none": lambda: _started(grows.create(0)),
    "a nested workflow": lambda: _started(nests.create()),
    "a crash of a node": lambda: _started(crashes.create()),
    "retries of a node": lambda: _started(retries.create()),
    "a callback for failure": lambda: _started(tells_failure.create()),
    "a callback for success": lambda: _started(tells_success.create()),
}
