"""How one start ends, and what its error says; each in a real process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec
import pytest

from headrace import Headrace
from headrace.model.form import Overrides
from headrace.model.job import MESSAGE_CAP, TRACEBACK_CAP
from headrace.settings import microseconds
from tests.worker import jobs, rig
from tests.worker.rig import PLACE, Runner, claim, error_of


@pytest.fixture
def start() -> Iterator[Callable[..., Runner]]:
    with rig.runners() as make:
        yield make


@pytest.fixture
def process(start: Callable[..., Runner]) -> Runner:
    return start()


RESULT_TTL, FAILURE_TTL = microseconds(60), microseconds(600)


def test_a_result_is_kept_as_the_task_says(process: Runner) -> None:
    done = process.one(claim(1, "add", 2, 3))
    assert (done.ended.kind, msgspec.msgpack.decode(done.ended.data), done.ended.amount) == ("succeeded", 5, RESULT_TTL)
    assert done.cost > 0
    assert done.memory == 0


def test_a_job_may_ask_for_its_own_retention(process: Runner) -> None:
    options = msgspec.msgpack.encode(Overrides(result_ttl=5, failure_ttl=7))
    assert process.one(claim(1, "noop", options=options)).ended.amount == microseconds(5)
    assert process.one(claim(2, "fail", "value", options=options)).ended.amount == microseconds(7)


def test_an_unknown_task_is_parked(process: Runner) -> None:
    assert process.one(claim(1, "no.such.task")).ended.kind == "parked"


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x90", b"\x01", b"not messagepack", b"\x92\x90\x90"])
def test_alien_arguments_are_corrupt(process: Runner, data: bytes) -> None:
    done = process.one(claim(1, "add", data=data))
    assert (done.ended.kind, error_of(done).type, done.ended.amount) == ("corrupt", "Corrupt", FAILURE_TTL)
    assert "jobs.add" in error_of(done).message


def test_alien_options_are_corrupt(process: Runner) -> None:
    done = process.one(claim(1, "noop", options=b"\xc1\xc1"))
    assert (done.ended.kind, error_of(done).type) == ("corrupt", "Corrupt")


@pytest.mark.parametrize(
    ("task", "args", "text"),
    [
        ("add", ["one"], "argument 'a' of tests.worker.jobs.add: expected int, got str"),
        ("add", [], "is missing its argument 'a'"),
        ("add", [1, 2, 3], "takes at most 2 arguments"),
        ("picky", [{"size": 3}], "no such size"),
    ],
)
def test_arguments_that_do_not_fit_fail_and_are_not_retried(
    process: Runner, task: str, args: list[object], text: str
) -> None:
    options = msgspec.msgpack.encode(Overrides(retries=5))
    done = process.one(claim(1, task, *args, options=options))
    assert done.ended.kind == "failed"
    assert text in error_of(done).message
    assert error_of(done).traceback == ""


@pytest.mark.parametrize(
    ("kind", "text"), [("object", "cannot be sent"), ("large", "takes 20,"), ("surrogate", "sent")]
)
def test_a_result_that_cannot_be_sent_fails_and_is_not_retried(process: Runner, kind: str, text: str) -> None:
    done = process.one(claim(1, "result", kind))
    assert done.ended.kind == "failed"
    assert "result of tests.worker.jobs.result" in error_of(done).message
    assert text in error_of(done).message
    assert process.one(claim(2, "result", "list")).ended.kind == "succeeded"


# --- exceptions ---


def test_an_error_tells_what_where_and_which_start(process: Runner) -> None:
    done = process.one(claim(1, "fail", "value", crashes=2, snoozes=1))
    error = error_of(done)
    assert (done.ended.kind, done.ended.amount) == ("failed", FAILURE_TTL)
    assert (error.type, error.message, error.attempt, error.worker) == ("ValueError", "a value", 4, PLACE)
    lines = error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "jobs.py" in lines[1]
    assert lines[-1] == "ValueError: a value"
    assert "headrace/worker" not in error.traceback


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("unprintable", "tests.worker.jobs.UnprintableError", "__str__ raised KeyError"),
        ("awkward", "tests.worker.jobs.AwkwardError", "__str__ raised KeyError"),
        ("nameless", "Exception", "cannot be shown"),
        ("closed", "Exception", "cannot be shown: its attributes raise RuntimeError"),
        ("surrogates", "ValueError", "\\ud800 lone"),
        ("exit", "SystemExit", "3"),
        ("keyboard", "KeyboardInterrupt", ""),
        ("generator", "GeneratorExit", "out"),
        ("stop", "StopIteration", "4"),
    ],
)
def test_every_exception_ends_its_job_and_only_that(process: Runner, how: str, kind: str, message: str) -> None:
    done = process.one(claim(1, "fail", how))
    assert (done.ended.kind, error_of(done).type) == ("failed", kind)
    assert message in error_of(done).message
    assert process.value(process.one(claim(2, "add", 1)).number) == 2


def test_a_long_text_is_cut(process: Runner) -> None:
    error = error_of(process.one(claim(1, "fail", "long")))
    assert len(error.message) == MESSAGE_CAP
    assert len(error.traceback) == TRACEBACK_CAP


@pytest.mark.parametrize("task", ["fall", "chain"])
def test_a_huge_traceback_keeps_its_last_lines(process: Runner, task: str) -> None:
    done = process.one(claim(1, task, *([-1] if task == "fall" else [])))
    error = error_of(done)
    assert done.ended.kind == "failed"
    assert 0 < len(error.traceback) <= TRACEBACK_CAP
    assert error.traceback.rstrip().splitlines()[-1].startswith(("RecursionError: maximum", "KeyError: 1999"))
    assert process.value(process.one(claim(2, "add", 1)).number) == 2


def test_a_signal_in_a_group_is_still_that_signal(process: Runner) -> None:
    done = process.one(claim(1, "fail", "group"))
    assert (done.ended.kind, error_of(done).type) == ("cancelled", "headrace.errors.CancelRequested")


def test_no_frame_outlives_its_job(process: Runner) -> None:
    process.run(*(claim(n, "heavy_failure") for n in range(1, 11)), *(claim(n, "same_error") for n in range(11, 21)))
    # Without a garbage collection: the links between exception and frames were cut.
    assert process.one(claim(21, "heavies")).ended.kind == "succeeded"
    assert process.value(21) == 0
    assert error_of(process.done(20)).traceback.count("same_error") == error_of(process.done(11)).traceback.count(
        "same_error"
    )


# --- retries ---


@pytest.mark.parametrize(
    ("what", "failures", "kind"),
    [
        ("value", 0, "retry"),
        ("value", 1, "retry"),
        ("value", 2, "failed"),
        ("unicode", 0, "failed"),
        ("key", 0, "failed"),
        ("limit", 0, "retry"),
        ("limit", 2, "failed"),
    ],
)
def test_an_error_is_retried_as_the_policy_says(process: Runner, what: str, failures: int, kind: str) -> None:
    done = process.one(claim(1, "retried", what, failures=failures))
    assert done.ended.kind == kind
    if kind == "retry":
        base = 10 * 2**failures
        assert microseconds(base * 0.5) <= done.ended.amount <= microseconds(base * 1.5)
        assert error_of(done).attempt == failures + 1
    else:
        assert done.ended.amount == FAILURE_TTL


def test_waits_are_thrown_apart(process: Runner) -> None:
    process.run(*(claim(n, "retried", "value") for n in range(1, 9)))
    assert len({process.done(n).ended.amount for n in range(1, 9)}) > 1


def test_a_limit_is_not_retried_where_never_names_it(process: Runner) -> None:
    assert process.one(claim(1, "never_after_limit")).ended.kind == "failed"


def test_a_snooze_is_no_failure(process: Runner) -> None:
    done = process.one(claim(1, "snooze", 2.5))
    assert (done.ended.kind, done.ended.data, done.ended.amount) == ("snoozed", b"", 2_500_000)


def test_a_job_that_names_its_next_start_uses_a_retry_and_waits_exactly(process: Runner) -> None:
    first, last = process.one(claim(1, "after", 2.5, failures=1)), process.one(claim(2, "after", 2.5, failures=2))
    assert (first.ended.kind, first.ended.amount) == ("retry", 2_500_000)
    assert (last.ended.kind, error_of(last).message) == ("failed", "run again after 2.5 s")
    assert "ValueError: not yet" in error_of(last).traceback
    bad = process.one(claim(3, "after", -1.0))
    assert (bad.ended.kind, error_of(bad).message) == (
        "failed",
        "the delay of RetryAfter must be at least 0 and at most 100 years, not -1.0",
    )


def test_an_impossible_snooze_is_a_failure(process: Runner) -> None:
    done = process.one(claim(1, "snooze_badly"))
    assert done.ended.kind == "failed"
    assert "snooze" in error_of(done).message


# --- around the run ---


def test_user_code_sees_its_job(process: Runner) -> None:
    done = process.one(claim(7, "current", failures=1, crashes=1))
    assert msgspec.msgpack.decode(done.ended.data) == ["id7", 3, 1, 7]


@pytest.mark.parametrize(("kind", "task"), [("process", "look_back"), ("thread", "look_back"), ("async", "alook_back")])
def test_middleware_stands_around_the_run(start: Callable[..., Runner], kind: str, task: str) -> None:
    one = start(kind, app=jobs.enclosed)
    name = f"{jobs.__name__}.{task}"
    one.one(claim(1, name))
    assert one.value(1) == [f"outer in {task}", "inner in 1"]
    one.one(claim(2, name, failures=1))
    assert one.value(2) == [
        f"outer in {task}",
        "inner in 1",
        "inner out",
        "outer out",
        f"outer in {task}",
        "inner in 2",
    ]


def test_middleware_sees_the_exception(start: Callable[..., Runner]) -> None:
    one = start(app=jobs.enclosed)
    error = error_of(one.one(claim(1, f"{jobs.__name__}.fail_enclosed")))
    assert "in fail_enclosed" in error.traceback
    one.one(claim(2, f"{jobs.__name__}.look_back"))
    assert one.value(2)[2:5] == ["inner out", "outer saw", "outer out"]


@pytest.mark.parametrize("kind", ["process", "fork", "thread", "async"])
def test_a_result_that_breaks_its_annotation_fails_its_job(start: Callable[..., Runner], kind: str) -> None:
    one = start(kind)
    done = one.one(claim(1, "amisfit" if kind == "async" else "misfit"))
    assert done.ended.kind == "failed"
    error = error_of(done)
    assert (error.type, error.message.partition(" does not fit ")[2]) == (
        "headrace.errors.ResultMismatch",
        "its return annotation: expected int, got str",
    )


@pytest.mark.parametrize(("kind", "task"), [("process", "misfit_raises"), ("async", "amisfit_raises")])
def test_a_function_whose_exception_was_swallowed_returns_none(
    start: Callable[..., Runner], kind: str, task: str
) -> None:
    app = Headrace()
    app.tasks.update(jobs.app.tasks)
    app.middleware(lambda job: contextlib.suppress(KeyError))
    one = start(kind, app=app)
    assert one.one(claim(1, task)).ended.kind == "succeeded"
    assert one.value(1) is None


def test_peak_memory_is_measured_where_asked(start: Callable[..., Runner]) -> None:
    assert 5_000_000 < start(measure_memory=True).one(claim(1, "noop")).memory < 5_000_000_000


@pytest.mark.parametrize(
    ("kind", "task"), [("process", "serve_tenant"), ("thread", "serve_tenant"), ("async", "aserve_tenant")]
)
def test_what_a_job_sets_in_its_context_the_next_does_not_see(
    start: Callable[..., Runner], kind: str, task: str
) -> None:
    app = Headrace()
    app.tasks.update(jobs.app.tasks)
    app.after_fork_child(lambda: jobs.tenant.set("everybody"))
    one = start(kind, 2, app=app)
    for token in range(1, 6):
        one.one(claim(token, task, str(token)))
    assert {one.value(token) for token in range(1, 6)} == {"everybody"}
