from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace import CurrentJob, Headrace, current_job
from headrace.context import LINE_CAP, StopReason
from headrace.errors import (
    ArgumentError,
    CancelRequested,
    HeadraceError,
    JobInterrupted,
    NoCurrentJob,
    OptionsError,
    PayloadTooLarge,
    ResultMismatch,
    Snooze,
    SoftTimeLimit,
)
from headrace.model.job import Claim
from headrace.model.retry import Retry
from headrace.protocol.consume import Note
from headrace.running_job import running
from headrace.worker.runner.execute import SWALLOWED, acalled, called

CLAIM = Claim("0" * 21, 77, "low", 0, "tasks.f", b"", 77, b"", "k", 2, 1, 0, 1, once=False)


@pytest.fixture
def notes() -> list[Note]:
    return []


@pytest.fixture
def job(notes: list[Note]) -> CurrentJob:
    return CurrentJob(CLAIM, notes.append)


def test_a_job_knows_what_it_is(job: CurrentJob) -> None:
    assert (job.id, job.token, job.queue, job.task, job.key) == ("0" * 21, 77, "low", "tasks.f", "k")
    assert (job.attempt, job.failures) == (5, 2)


def test_the_current_job_is_that_of_the_block_and_of_its_thread(job: CurrentJob) -> None:
    found: list[BaseException] = []

    def elsewhere() -> None:
        try:
            current_job()
        except NoCurrentJob as error:
            found.append(error)

    with running(job) as inside:
        assert current_job() is inside is job
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(found) == 1
    with pytest.raises(NoCurrentJob):
        current_job()


async def test_coroutines_do_not_see_each_others_jobs() -> None:
    async def run(job: CurrentJob) -> bool:
        with running(job):
            await asyncio.sleep(0)
            return current_job() is job and await asyncio.to_thread(current_job) is job

    assert await asyncio.gather(*(run(CurrentJob(CLAIM, lambda note: None)) for _ in range(20))) == [True] * 20


def test_progress_and_log_are_told(job: CurrentJob, notes: list[Note]) -> None:
    job.progress(0.4, "two of five")
    job.log("one\ntwo")
    job.log("")
    job.log("x" * (LINE_CAP + 1))
    assert notes[0] == Note(job.id, 77, progress=0.4, text="two of five")
    assert [note.lines for note in notes[1:3]] == [("one", "two"), ("",)]
    assert len(notes[3].lines[0]) == LINE_CAP


def test_progress_brings_data_without_secrets(notes: list[Note]) -> None:
    job = CurrentJob(CLAIM, notes.append, hide=lambda text: text.replace("hunter2", "***"))
    job.progress(0.5, data={"at": datetime(2026, 1, 2, tzinfo=UTC), "key": ["hunter2"]})
    assert notes[0].data == '{"at":"2026-01-02T00:00:00Z","key":["***"]}'
    with pytest.raises(ArgumentError, match="what JSON can hold"):
        job.progress(0.5, data=object())
    with pytest.raises(PayloadTooLarge, match="4,000 bytes"):
        job.progress(0.5, data="x" * LINE_CAP)


@pytest.mark.parametrize("share", [-0.1, 1.1, "half", True, float("nan")])
def test_progress_is_a_share(job: CurrentJob, notes: list[Note], share: float) -> None:
    with pytest.raises(OptionsError, match="progress is a share from 0 to 1"):
        job.progress(share)
    assert notes == []


def test_a_snooze_passes_except_exception(job: CurrentJob) -> None:
    def careless() -> None:
        with contextlib.suppress(Exception):
            job.snooze(2.5)

    with pytest.raises(Snooze) as caught:
        careless()
    assert caught.value.delay == 2.5
    with pytest.raises(OptionsError, match="the delay of a snooze must be at least 0"):
        job.snooze(-1)


def test_middleware_wraps_the_run_in_order_and_sees_its_error(job: CurrentJob) -> None:
    app, seen = Headrace("redis://x"), list[str]()

    def record(name: str) -> None:
        @app.middleware
        @contextlib.contextmanager
        def around(current: CurrentJob) -> Iterator[None]:
            assert current_job() is current
            seen.append(f"{name} in")
            try:
                yield
            except ZeroDivisionError:
                seen.append(f"{name} saw it")
                raise

    record("outer")
    record("inner")
    with pytest.raises(ZeroDivisionError):
        called(app.middlewares, job, lambda: 1 / 0, (), {})
    assert seen == ["outer in", "inner in", "inner saw it", "outer saw it"]
    assert called([], job, lambda n: (n, current_job()), (7,), {}) == (7, job)
    assert job.swallowed is None


def test_what_a_middleware_swallows_is_kept_in_the_job(job: CurrentJob) -> None:
    @contextlib.contextmanager
    def breaks(current: CurrentJob) -> Iterator[None]:
        yield
        raise KeyError("late")

    def wrong(n: int) -> int:
        raise ValueError(n)

    swallow: Any = [lambda current: contextlib.suppress(Exception)]
    assert called(swallow, job, wrong, (7,), {}) is SWALLOWED
    assert repr(job.swallowed) == "ValueError(7)"
    # What the function returned counts, where it was an inner middleware that raised.
    assert called([*swallow, breaks], job, lambda: 7, (), {}) == 7
    assert repr(job.swallowed) == "KeyError('late')"
    # The first exception tells why; those that follow from it do not.
    assert called([*swallow, breaks], job, wrong, (8,), {}) is SWALLOWED
    assert repr(job.swallowed) == "ValueError(8)"
    assert called(swallow, job, lambda: 7, (), {}) == 7
    assert job.swallowed is None


def test_a_reader_of_a_result_that_was_swallowed_hears_of_the_middleware() -> None:
    def mean() -> float:
        return 0.5

    task = Headrace("redis://x").task(name="mean")(mean)
    with pytest.raises(ResultMismatch, match=r"a middleware may have swallowed what it raised \(job\.refresh"):
        task.signature.unpack_result(b"\xc0")


async def test_an_asynchronous_middleware_stands_around_coroutines_only(job: CurrentJob) -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def around(current: CurrentJob) -> AsyncIterator[None]:
        seen.append(f"in {current.args} {dict(current.kwargs)}")
        await asyncio.sleep(0)
        try:
            yield
        finally:
            seen.append("out")

    async def double(n: int) -> int:
        assert current_job() is job
        return 2 * n

    assert await acalled([around], job, double, (4,), {}) == 8
    assert seen == ["in () {}", "out"]
    with pytest.raises(OptionsError, match=r"asynchronous context manager, and .* is an ordinary function: make it"):
        called([around], job, lambda: 1, (), {})
    swallow: Any = lambda current: contextlib.suppress(ZeroDivisionError)  # noqa: E731
    assert await acalled([swallow, around], job, _fail, (), {}) is SWALLOWED
    assert isinstance(job.swallowed, ZeroDivisionError)


async def _fail() -> None:
    _ = 1 / 0


def test_what_is_no_middleware_is_refused() -> None:
    def forgot(current: CurrentJob) -> Iterator[None]:
        yield

    for wrong in (forgot, 3):
        with pytest.raises(OptionsError, match=r"decorate a generator function with contextlib\.contextmanager"):
            Headrace("redis://x").middleware(wrong)  # type: ignore[arg-type]


def test_hooks_are_registered_in_order() -> None:
    app = Headrace("redis://x")

    @app.on_preload
    def warm() -> None: ...

    @app.after_fork_child
    def connect() -> None: ...

    assert (app.preload_hooks, app.after_fork_child_hooks) == ([warm], [connect])


def test_all_errors_can_be_caught_as_one() -> None:
    assert issubclass(NoCurrentJob, HeadraceError)


@pytest.mark.parametrize(
    ("failures", "error", "stopped_by", "again"),
    [
        (0, ValueError(), "", True),
        (1, ValueError(), "", True),
        (2, ValueError(), "", False),
        (0, KeyError(), "", False),
        (0, SoftTimeLimit(), "soft", True),
        (2, SoftTimeLimit(), "soft", False),
        (2, Snooze(5), "", True),
        (2, ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [ValueError()])]), "", False),
        (2, BaseExceptionGroup("mine", [Snooze(5)]), "", True),
        (2, ValueError(), "interrupt", True),
        (2, JobInterrupted(), "shutdown", True),
        (0, CancelRequested(), "cancel", False),
        (0, JobInterrupted(), "cancel", False),
    ],
)
def test_it_says_whether_the_job_runs_again(
    failures: int, error: BaseException, stopped_by: StopReason, again: bool
) -> None:
    claim = Claim("0" * 21, 1, "default", 0, "add", b"", failures=failures)
    mine = CurrentJob(claim, print, retry=Retry(max=2, never=(KeyError,)))
    mine.stopped_by = stopped_by
    assert mine.will_retry(error) == again
    assert mine.retries_left == 2 - failures


def test_a_task_that_is_called_in_place_has_no_retries() -> None:
    mine = CurrentJob(CLAIM, print)
    assert (mine.retries_left, mine.will_retry(ValueError())) == (0, False)
