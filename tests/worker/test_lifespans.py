"""Lifespans in a real runner: entered before the first job, left after the last, on the event loop if there is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace, current_job
from headrace.worker.child_process import FAULTY
from headrace.worker.messages import Up
from headrace.worker.runner import lifespans as module
from headrace.worker.runner.lifespans import Lifespans
from headrace.worker.runner.process_kind import lasts
from tests.deadline import eventually
from tests.worker import jobs, rig
from tests.worker.rig import Runner, claim

say = jobs.to_stdout.function
KINDS = ["process", "fork", "thread", "async"]


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


@pytest.fixture
def app() -> Headrace:
    app = Headrace("redis://localhost:1/0")
    app.task(name="x.sync")(lambda: [str(current_job().state), os.getpid()])

    async def loop() -> tuple[str, int]:
        return str(current_job().state), os.getpid()

    app.task(name="x.async")(loop)

    async def cancel_all() -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    app.task(name="x.cancel_all")(cancel_all)
    return app


def to_stderr() -> None:
    """As a worker's logging does; pytest's own, which the fork inherited, keeps what it is told."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)


def job(kind: str, token: int = 1) -> Any:
    return claim(token, "x.async" if kind == "async" else "x.sync")


@pytest.mark.parametrize("kind", KINDS)
def test_what_lifespans_yield_is_the_state_of_jobs_and_they_are_left_after_the_last(
    start: Callable[..., Runner], app: Headrace, kind: str
) -> None:
    @app.lifespan
    def outer() -> Iterator[dict[str, Any]]:
        assert threading.current_thread() is threading.main_thread()
        say("outer in")
        yield {"outer": os.getpid()}
        say("outer out")

    @app.lifespan
    def inner() -> Iterator[dict[str, str]]:
        say("inner in")
        yield {"inner": "x"}
        say("inner out")

    app.on_exit(lambda: say("exit"))
    app.after_fork_child(lambda: say("hook"))
    one = start(kind, app=app)
    state, pid = one.value(one.one(job(kind)).number)
    assert one.parting == [Up()]
    assert state == str({"outer": pid, "inner": "x"})
    if kind != "fork":
        assert one.value(one.one(job(kind, 2)).number)[0] == state
        assert one.leave() == 0
    assert one.wait() == 0
    assert one.stdout().split("\n") == ["hook", "outer in", "inner in", "inner out", "outer out", "exit", ""]


def test_an_asynchronous_lifespan_lives_on_the_loop_of_its_jobs(start: Callable[..., Runner], app: Headrace) -> None:
    @app.lifespan(kind="async")
    async def pool() -> AsyncIterator[dict[str, Any]]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        # What it started lives until it is left itself, whatever jobs do.
        beat = asyncio.create_task(asyncio.Event().wait())
        async with asyncio.timeout(None):
            yield {"loop": loop}
        say(f"{asyncio.get_running_loop() is loop} {asyncio.current_task() is task} {beat.done()}")
        await asyncio.sleep(0)
        beat.cancel()
        say("left")

    @app.lifespan
    def sync() -> Iterator[None]:
        say(f"on the loop: {asyncio.get_running_loop().is_running()}")
        yield
        say("sync left")

    @app.task(name="x.same")
    async def same() -> bool:
        return current_job().state["loop"] is asyncio.get_running_loop()

    one = start("async", 10, app=app)
    assert one.value(one.one(claim(1, "x.same")).number) is True
    assert one.leave() == 0
    assert one.stdout().splitlines() == ["on the loop: True", "sync left", "True True False", "left"]


def test_a_job_that_cancels_every_task_of_the_loop_closes_no_lifespan(
    start: Callable[..., Runner], app: Headrace
) -> None:
    @app.lifespan
    async def pool() -> AsyncIterator[str]:
        yield "pool"
        task = asyncio.current_task()
        assert task is not None
        say(f"left {task.cancelling()}")

    app.after_fork_child(to_stderr)
    one = start("async", 10, app=app)
    one.noisy = True
    one.run(claim(1, "x.cancel_all"))
    one.done(1)
    assert one.value(one.one(job("async", 2)).number)[0] == "pool"
    assert one.stdout() == ""
    assert "the task that holds the lifespans was cancelled, by a job or for a failed child" in one.stderr()
    assert one.leave() == 0
    assert one.stdout() == "left 0\n"


def test_a_task_group_of_a_lifespan_whose_child_fails_tells_it_and_closes_nothing_before_its_time(
    start: Callable[..., Runner], app: Headrace
) -> None:
    @app.lifespan
    async def pool() -> AsyncIterator[str]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(beat())
                yield "pool"
        finally:
            say("left")

    async def beat() -> None:
        raise OSError("the heart stopped")

    app.after_fork_child(to_stderr)
    one = start("async", 10, app=app)
    one.noisy = True
    assert one.value(one.one(job("async")).number)[0] == "pool"
    assert one.stdout() == ""
    assert one.leave() == 0
    assert one.stdout() == "left\n"
    assert "for a failed child of a task group" in one.stderr()
    assert "the heart stopped" in one.stderr()


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_cannot_be_entered_ends_the_runner_before_a_job_and_says_why(
    start: Callable[..., Runner], app: Headrace, kind: str
) -> None:
    app.after_fork_child(to_stderr)
    app.lifespan(first)
    if kind == "async":
        app.lifespan(afails)
    else:
        app.lifespan(fails)
    one = start(kind, app=app)
    one.noisy = True
    with contextlib.suppress(Exception):
        one.run(job(kind))
    assert one.wait() == FAULTY
    assert not one.ended(1)
    assert one.parting == []
    name = "afails" if kind == "async" else "fails"
    said = one.stderr()
    assert (
        f"the lifespan {__name__}.{name} cannot be entered: ConnectionError: no database: this runner is repl" in said
    )
    assert f"in {name}\n" in said, "the line that raised"
    assert one.stdout() == "first in\nfirst out\n"


def first() -> Iterator[None]:
    say("first in")
    yield
    say("first out")


def fails() -> Iterator[None]:
    raise ConnectionError("no database")
    yield


async def afails() -> AsyncIterator[None]:
    await asyncio.sleep(0)
    raise ConnectionError("no database")
    yield


def leaves() -> Iterator[None]:
    sys.exit(3)
    yield


def never() -> Iterator[None]:
    yield from ()


async def anever() -> AsyncIterator[None]:
    for _ in ():
        yield


def twice() -> Iterator[None]:
    yield
    yield


async def atwice() -> AsyncIterator[None]:
    yield
    yield


def late() -> Iterator[None]:
    yield
    raise OSError("already closed")


@pytest.mark.parametrize(
    ("lifespan", "said"),
    [
        (never, "never cannot be entered: it ended before its yield: it must yield once"),
        (anever, "anever cannot be entered: it ended before its yield: it must yield once"),
        (leaves, "leaves cannot be entered: SystemExit: 3"),
    ],
)
def test_what_a_wrong_start_is_called(start: Callable[..., Runner], app: Headrace, lifespan: Any, said: str) -> None:
    app.after_fork_child(to_stderr)
    app.lifespan(lifespan)
    for kind in ("process", "async") if lifespan is not anever else ("async",):
        one = start(kind, app=app)
        one.noisy = True
        assert one.wait() == FAULTY
        assert f"the lifespan {__name__}.{said}" in one.stderr()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (twice, "twice yields more than once: what follows its second yield never runs"),
        (atwice, "atwice yields more than once: what follows its second yield never runs"),
        (late, "late failed while it was left"),
    ],
)
def test_an_error_while_leaving_is_logged_and_keeps_no_other_from_its_turn(
    start: Callable[..., Runner], app: Headrace, kind: str, wrong: Any, said: str
) -> None:
    app.after_fork_child(to_stderr)
    app.lifespan(first)
    app.lifespan(wrong)
    app.lifespan(kind=kind)(first)  # type: ignore[arg-type]
    one = start(kind, app=app)
    asynchronous = wrong is atwice
    one.noisy = kind == "async" or not asynchronous
    one.one(job(kind))
    if kind != "fork":
        one.leave()
    assert one.wait() == 0
    assert (f"the lifespan {__name__}.{said}" in one.stderr()) is one.noisy
    assert one.stdout() == "first in\n" * 2 + "first out\n" * 2


def hangs() -> Iterator[None]:
    yield
    threading.Event().wait()


async def ahangs() -> AsyncIterator[None]:
    yield
    await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["process", "async"])
def test_one_that_hangs_while_it_is_left_is_cut_and_the_others_have_their_turn(
    start: Callable[..., Runner], app: Headrace, kind: str
) -> None:
    app.after_fork_child(to_stderr)
    app.lifespan(first)
    app.lifespan(ahangs if kind == "async" else hangs)  # type: ignore[type-var]
    app.on_exit(lambda: say("exit"))
    one = start(kind, app=app, exit_deadline=10.0)
    one.noisy = True
    one.one(job(kind))
    assert one.leave() == 0
    assert one.stdout() == "first in\nfirst out\nexit\n"
    assert "was cut" in one.stderr()


@pytest.mark.parametrize("kind", ["process", "async"])
def test_one_that_hangs_while_it_is_left_for_another_that_cannot_be_entered_is_cut(
    start: Callable[..., Runner], app: Headrace, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the runner would neither work nor be replaced, and nobody would be told why."""
    monkeypatch.setattr(module, "PATIENCE", 3.0)

    def refuses() -> Iterator[None]:
        raise ConnectionError("no database")
        yield

    app.after_fork_child(to_stderr)
    app.lifespan(first)
    app.lifespan(ahangs if kind == "async" else hangs)  # type: ignore[type-var]
    app.lifespan(refuses)
    one = start(kind, app=app)
    one.noisy = True
    assert one.wait() == FAULTY
    assert one.stdout() == "first in\nfirst out\n"
    said = one.stderr()
    assert "hangs took too long to leave, and was cut" in said
    assert "refuses cannot be entered: ConnectionError: no database" in said


def test_each_on_an_event_loop_has_its_share_of_the_time_to_leave(start: Callable[..., Runner], app: Headrace) -> None:
    """One that hangs, and closes slowly when it is cut, takes nothing from the one before it, which needs a while."""

    async def slow() -> AsyncIterator[None]:
        say("slow in")
        yield
        await asyncio.sleep(0.5)
        say("slow out")

    async def hangs() -> AsyncIterator[None]:
        yield
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    app.after_fork_child(to_stderr)
    app.lifespan(slow)
    app.lifespan(hangs)
    for _ in range(9):
        app.on_exit(lambda: None)
    one = start("async", app=app, exit_deadline=12.0)
    one.noisy = True
    one.one(job("async"))
    assert one.leave() == 0
    assert one.stdout() == "slow in\nslow out\n"
    said = one.stderr()
    assert "hangs took too long to leave, and was cut" in said
    assert "exit hook" not in said


def test_a_slow_start_is_told_of(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Meanwhile the runner takes no job, and nothing else says why."""
    monkeypatch.setattr(module, "SLOW", 0.02)
    app, said = Headrace("redis://localhost:1/0"), list[str]()

    @app.lifespan
    def slow() -> Iterator[int]:
        def told() -> bool:
            said.append(capfd.readouterr().err)
            return "takes no job" in said[-1]

        eventually(told)
        yield 3

    held = Lifespans(app.context.lifespans)
    with module.reported_when_slow(held):
        held.enter()
    assert held.state == 3
    # Which of its lines was read is open: one written between the read and the truncation of capfd is lost.
    assert re.search(
        r"headrace: the lifespan \S+slow is being entered for [\d.]+ s; its runner takes no job\n", said[-1]
    )


def test_a_runner_without_lifespans_says_nothing_more_than_before(start: Callable[..., Runner], app: Headrace) -> None:
    app.lifespan(kind="thread")(first)
    one = start("process", app=app)
    assert one.value(one.one(job("process")).number)[0] == "None"
    assert one.leave() == 0
    assert (one.parting, one.stdout()) == ([], "")


def test_work_that_waits_when_the_runner_starts_is_done_afterwards(start: Callable[..., Runner], app: Headrace) -> None:
    app.lifespan(first)
    one = start("async", 10, app=app)
    one.run(*(job("async", n) for n in range(1, 6)))
    one.until(lambda: one.ended(*range(1, 6)), "all ends")
    assert one.leave() == 0


def test_children_for_each_job_come_from_the_supervisor_where_they_have_lifespans(app: Headrace) -> None:
    """The next job must not wait until those of the last one are left."""
    app.lifespan(kind=("process", "thread"))(first)
    before = lasts(app)
    app.lifespan(kind="fork")(first)
    assert (before, lasts(app)) == (sys.platform == "linux", False)
