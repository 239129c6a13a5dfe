"""The worker's log says in one line how a start ended, and why."""

from __future__ import annotations

import pytest

from headrace.errors import SettingsError
from headrace.model.job import Claim, JobError
from headrace.settings import load
from headrace.worker.dispatcher import endings

CLAIM = Claim("id", 1_000_000, "default", 750_000, "tasks.mean", b"")
ERROR = JobError(type="ZeroDivisionError", message="division by zero", attempt=1, where="tasks.py:8 in mean")


@pytest.mark.parametrize(
    ("kind", "error", "amount", "cost", "line"),
    [
        (
            "retry",
            ERROR,
            3_000_000,
            12_345,
            "failed: ZeroDivisionError: division by zero at tasks.py:8 in mean; retry in 3 s, waited 250 ms, ran 12.3 ms",
        ),
        ("failed", ERROR, 60, 0, "failed: ZeroDivisionError: division by zero at tasks.py:8 in mean; waited 250 ms"),
        (
            "crashed",
            JobError(type="Crashed", message="its process was ended by SIGKILL", attempt=1),
            60,
            0,
            "crashed: its process was ended by SIGKILL; waited 250 ms",
        ),
        ("failed", JobError(type="E", message="one\ntwo", attempt=1), 0, 0, "failed: E: one; waited 250 ms"),
        ("failed", JobError(type="E"), 0, 0, "failed: E; waited 250 ms"),
        ("succeeded", None, 60, 4_000_000_000, "succeeded; waited 250 ms, ran 1 h 6 min"),
        ("snoozed", None, 1_500_000, 7, "snoozed; again in 1.5 s, waited 250 ms, ran 7 µs"),
        ("interrupted", None, 0, 0, "was interrupted and goes back; waited 250 ms"),
    ],
)
def test_a_line_says_what_became_of_a_start(
    kind: str, error: JobError | None, amount: int, cost: int, line: str
) -> None:
    assert endings.line_of(CLAIM, kind, error, amount, cost) == f"job id (tasks.mean), attempt 1 {line}"


def test_what_is_unknown_is_left_out() -> None:
    claim = Claim("id", 1_000_000, "default", 0, "tasks.mean", b"", failures=2)
    assert endings.line_of(claim, "succeeded", None, 0, 0) == "job id (tasks.mean), attempt 3 succeeded"


def test_the_memory_is_that_of_the_report_else_that_of_the_evidence() -> None:
    killed = JobError(type="Crashed", message="killed", attempt=1, peak_memory=3 << 20)
    assert endings.line_of(CLAIM, "succeeded", None, 0, 7, 5 << 20).endswith("waited 250 ms, ran 7 µs, peak 5.0 MiB")
    assert endings.line_of(CLAIM, "crashed", killed, 0, 0).endswith("crashed: killed; waited 250 ms, peak 3.0 MiB")
    assert endings.facts_of(CLAIM, "succeeded", None, 7, 5 << 20)["memory"] == 5 << 20
    assert endings.facts_of(CLAIM, "crashed", killed, 0)["memory"] == 3 << 20
    assert "memory" not in endings.facts_of(CLAIM, "succeeded", None, 7)


def test_a_long_message_is_cut() -> None:
    assert len(endings.line_of(CLAIM, "failed", JobError(type="E", message="x" * 4000), 0, 0)) < 600


@pytest.mark.parametrize(
    ("wish", "logged"),
    [("none", []), ("failures", ["failed", "retry", "crashed"]), ("all", ["failed", "retry", "crashed", "succeeded"])],
)
def test_the_setting_says_which(wish: str, logged: list[str]) -> None:
    kinds = endings.logged_kinds(load({}, log_jobs=wish))
    assert [
        kind for kind in ("failed", "retry", "crashed", "succeeded", "released", "parked") if kind in kinds
    ] == logged


def test_another_word_is_refused() -> None:
    with pytest.raises(SettingsError, match="log_jobs"):
        load({}, log_jobs="some")
