"""A shutdown as a job of each kind sees it: first an event, then an exception, in time to clean up."""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from headrace import Headrace, current_job
from headrace.errors import Interrupt, JobInterrupted
from headrace.model.options import KINDS, Kind
from headrace.worker.channel import frame, give_tickets
from headrace.worker.messages import Run, Stop
from tests.worker import rig
from tests.worker.rig import Runner, claim, error_of

app = Headrace(result_ttl=60, failure_ttl=600)
LONG = 60.0
TOKENS = itertools.count(1)


def waits(how: str) -> str:
    """Waits for the event, and ends as it is told."""
    job = current_job()
    job.log("started")
    if how == "polls":
        while not job.stopping.is_set():
            time.sleep(0.001)
    else:
        assert job.stopping.wait(LONG)
    if how == "raises":
        raise JobInterrupted
    if how == "fails":
        raise ValueError("a fault of the job")
    return job.stopped_by


async def awaits(how: str) -> str:
    job = current_job()
    job.log("started")
    if how == "polls":
        # Blocks the loop: only a signal reaches it.
        return waits("polls")
    await asyncio.wait_for(job.stopping, LONG)
    if how == "raises":
        raise JobInterrupted
    if how == "fails":
        raise ValueError("a fault of the job")
    return job.stopped_by


def works(how: str) -> str:
    job = current_job()
    try:
        job.log("started")
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # noqa: BLE001
                job.log("swallowed")
    except JobInterrupted:
        return cleans_up(how)
    except Interrupt:
        return f"{job.stopped_by} {job.stopping.is_set()}"


def cleans_up(how: str) -> str:
    job = current_job()
    job.log(f"cleans up, {job.stopped_by}, {job.stopping.is_set()}")
    if how == "fails":
        raise ValueError("while it cleans up") from None
    if how == "exits":
        sys.exit(3)
    if how == "snoozes":
        job.snooze(5)
    if how == "returns":
        return "half of it"
    raise  # noqa: PLE0704 - called within the handler


async def aworks(how: str) -> str:
    job = current_job()
    try:
        job.log("started")
        await asyncio.sleep(LONG)
    except JobInterrupted:
        # Time to clean up is time to wait, too.
        await asyncio.sleep(0.01)
        return cleans_up(how)
    except Interrupt:
        return f"{job.stopped_by} {job.stopping.is_set()}"
    return "all"


kind: Kind
for kind in KINDS:
    app.task(name=f"{kind}.waits", kind=kind, retries=3)(awaits if kind == "async" else waits)
    app.task(name=f"{kind}.works", kind=kind, retries=3)(aworks if kind == "async" else works)


@pytest.fixture(scope="module")
def runner_of() -> Iterator[Callable[[str], Runner]]:
    """The one runner of a kind: what it is told of one job must not reach the next."""
    with rig.runners() as make:
        yield functools.cache(
            lambda kind: make(kind, 4, app=app, is_fork_server=kind == "fork" and sys.platform == "linux")
        )


@pytest.fixture
def runner(kind: str, runner_of: Callable[[str], Runner]) -> Runner:
    return runner_of(kind)


@pytest.fixture
def token() -> int:
    return next(TOKENS)


def begun(runner: Runner, token: int, task: str, how: str) -> None:
    """Run a job of its kind, and wait until it has begun."""
    runner.run(claim(token, f"{runner.kind}.{task}", how))
    runner.started(token)


def stop(runner: Runner, token: int, reason: str) -> None:
    """Stop a start; the signal again and again, as the dispatcher does."""
    runner.stop(token, reason)
    end = time.monotonic() + 20
    while not runner.ended(token):
        assert time.monotonic() < end, runner.stderr()
        if not runner.hear(timeout=0.1) and runner.kind != "thread":
            runner.wake()


def lines(runner: Runner, token: int) -> list[str]:
    return [line for say in runner.said if say.number == token for line in say.lines]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["waits", "polls"])
def test_a_job_learns_of_a_shutdown_and_may_finish(runner: Runner, token: int, how: str) -> None:
    begun(runner, token, "waits", how)
    stop(runner, token, "shutdown")
    assert runner.value(token) == "shutdown"


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_learns_of_a_shutdown_may_go_back_by_itself(runner: Runner, token: int) -> None:
    begun(runner, token, "waits", "raises")
    stop(runner, token, "shutdown")
    done = runner.done(token)
    assert (done.ended.kind, error_of(done).type) == ("interrupted", "headrace.errors.JobInterrupted")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_within_the_shutdown_timeout_is_an_error(runner: Runner, token: int) -> None:
    begun(runner, token, "waits", "fails")
    stop(runner, token, "shutdown")
    assert runner.done(token).ended.kind == "retry"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("raises", "interrupted"),
        ("fails", "interrupted"),
        ("exits", "interrupted"),
        ("snoozes", "snoozed"),
        ("returns", "succeeded"),
    ],
)
def test_an_interrupted_job_cleans_up_and_goes_back(runner: Runner, token: int, how: str, ends: str) -> None:
    begun(runner, token, "works", how)
    runner.stop(token, "shutdown")
    stop(runner, token, "interrupt")
    done = runner.done(token)
    assert done.ended.kind == ends
    assert lines(runner, token) == ["started", "cleans up, interrupt, True"]
    if how == "raises":
        assert error_of(done).message == "the worker stopped or reloaded, and its shutdown timeout was nearly over"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_that_comes_with_its_job_is_not_lost(runner: Runner, kind: str) -> None:
    first, second = next(TOKENS), next(TOKENS)
    messages = [
        Run(
            [
                claim(first, f"{kind}.waits", "waits"),
                *([] if kind == "fork" else [claim(second, f"{kind}.works", "raises")]),
            ]
        ),
        Stop(first, "shutdown"),
        *([] if kind == "fork" else [Stop(second, "interrupt")]),
    ]
    give_tickets(runner.ticket_write, len(messages[0].claims), 0)  # type: ignore[union-attr]
    runner.channel.sock.sendall(b"".join(map(frame, messages)))
    assert runner.value(first) == "shutdown"
    if kind != "fork":
        assert runner.done(second).ended.kind == "interrupted"
        assert "started" not in lines(runner, second)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "fork"])
def test_a_shutdown_replaces_no_stop_that_waits_for_its_job_to_begin(runner: Runner, kind: str) -> None:
    """A cancelled job of a worker that was stopped ran to its end."""
    first, second = next(TOKENS), next(TOKENS)
    messages = [
        Run([claim(first, f"{kind}.waits", "waits"), claim(second, f"{kind}.works", "raises")]),
        *(Stop(second, "cancel"), Stop(second, "shutdown"), Stop(first, "shutdown")),
    ]
    give_tickets(runner.ticket_write, 2, 0)
    runner.channel.sock.sendall(b"".join(map(frame, messages)))
    assert runner.value(first) == "shutdown"
    assert runner.done(second).ended.kind == "cancelled"
    assert "started" not in lines(runner, second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", ["soft", "cancel"])
def test_the_event_is_set_by_a_limit_and_a_cancellation_too(runner: Runner, token: int, reason: str) -> None:
    begun(runner, token, "works", "raises")
    stop(runner, token, reason)
    assert runner.value(token) == f"{reason} True"
