"""How a start ended: one decision for what its code raised and for the death of its runner."""

from __future__ import annotations

import msgspec
import pytest

from headrace.context import StopReason
from headrace.errors import CancelRequested, JobInterrupted, SoftTimeLimit
from headrace.model.job import Claim, JobError, parse_error
from headrace.model.retry import Retry
from headrace.tasks.task import RunPlan
from headrace.worker.messages import of_death, of_error

DEATH = JobError(type="Crashed", message="its process was ended by SIGKILL", signal=9)


def plan(retry: Retry) -> RunPlan:
    return RunPlan(retry, 1.0, 2.0, 60, 600)


def claim(failures: int = 0) -> Claim:
    return Claim("id", 7, "default", 0, "tasks.mean", b"", failures=failures)


@pytest.mark.parametrize(
    ("error", "failures", "kind"),
    [
        (ValueError(), 0, "retry"),
        (ValueError(), 2, "failed"),
        (UnicodeError(), 0, "failed"),
        (KeyError(), 0, "failed"),
        (SoftTimeLimit(), 0, "retry"),
        (SystemExit(), 0, "failed"),
        (CancelRequested(), 0, "cancelled"),
    ],
)
def test_an_exception_decides_with_the_policy_and_the_failures_so_far(
    error: BaseException, failures: int, kind: str
) -> None:
    policy = Retry(max=2, delay=10, jitter=0, on=(ValueError,), never=(UnicodeError,))
    ended = of_error(plan(policy), claim(failures), error, b"text", 0.5)
    assert (ended.kind, ended.data, ended.amount) == (kind, b"text", 10_000_000 if kind == "retry" else 600)


@pytest.mark.parametrize(
    ("never", "failures", "kind"), [((), 0, "retry"), ((), 2, "failed"), ((SoftTimeLimit,), 0, "failed")]
)
def test_a_hard_limit_is_retried_as_a_soft_one_is(
    never: tuple[type[BaseException], ...], failures: int, kind: str
) -> None:
    policy = Retry(max=2, never=never)
    ended = of_death(plan(policy), claim(failures), "hard", DEATH, 0.5)
    assert ended.kind == kind == of_error(plan(policy), claim(failures), SoftTimeLimit(), b"", 0.5).kind
    error = parse_error(ended.data)
    assert error is not None
    assert (error.type, error.signal) == ("HardTimeLimit", 9)


@pytest.mark.parametrize(
    ("error", "stopped_by", "kind"),
    [
        (JobInterrupted(), "interrupt", "interrupted"),
        (ValueError(), "interrupt", "interrupted"),
        (SystemExit(), "interrupt", "interrupted"),
        (JobInterrupted(), "shutdown", "interrupted"),
        (ValueError(), "shutdown", "retry"),
        (JobInterrupted(), "cancel", "cancelled"),
        (JobInterrupted(), "soft", "retry"),
        (JobInterrupted(), "", "retry"),
    ],
)
def test_what_a_shutdown_interrupts_is_uncharged_whatever_its_cleaning_up_raises(
    error: BaseException, stopped_by: StopReason, kind: str
) -> None:
    assert of_error(plan(Retry(max=2)), claim(), error, b"", 0.5, stopped_by).kind == kind
    assert of_error(plan(Retry(max=0)), claim(), error, b"", 0.5, stopped_by).kind == kind.replace("retry", "failed")


@pytest.mark.parametrize(("stop_reason", "kind"), [("", "crashed"), ("cancel", "cancelled"), ("other", "interrupted")])
def test_a_death_is_charged_to_the_start_that_it_is_owed_to(stop_reason: str, kind: str) -> None:
    assert of_death(plan(Retry(max=2)), claim(), stop_reason, DEATH, 0.5).kind == kind  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("once", "what"),
    [(False, "it runs again, and no retry or crash is counted"), (True, "it may start only once, so it failed")],
)
def test_a_start_that_was_stopped_for_another_reason_says_which_and_what_follows(once: bool, what: str) -> None:
    one = msgspec.structs.replace(claim(), once=once)
    error = parse_error(of_death(plan(Retry()), one, "other", DEATH, 0.5, "the worker was told to stop at once").data)
    assert error is not None
    assert (error.type, error.signal) == ("Interrupted", 9)
    assert error.message == f"the worker was told to stop at once: {what}"
