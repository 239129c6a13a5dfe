"""Workers that require signatures: each kind of runner checks them, and a fleet changes its keys under load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.errors import JobQuarantined
from tests.program import Program

pytestmark = pytest.mark.system

OLD, NEW = "old-" * 8, "new-" * 8
TASKS = """
from headrace import Headrace

app = Headrace()

def double(n: int) -> int:
    return 2 * n

for kind in ("process", "thread", "fork"):
    app.task(name=f"double_{kind}", kind=kind)(double)

@app.task(name="double_async")
async def adouble(n: int) -> int:
    return 2 * n

@app.task(name="numbers")
def numbers() -> list[int]:
    return [1, 2, 3]
"""
KINDS = ("process", "thread", "fork", "async")


@pytest.fixture
def burst(tmp_path: Path, url: str) -> Callable[[str], object]:
    """Runs a worker with these keys until its queues are empty."""
    headrace = Program(tmp_path, url)
    headrace.write("tasks", TASKS)
    headrace.environment["HEADRACE_REQUIRE_SIGNATURE"] = "1"

    def run(keys: str) -> object:
        headrace.environment["HEADRACE_SIGNING_KEYS"] = keys
        return headrace.burst()

    return run


def test_each_kind_runs_what_is_signed_and_nothing_else(burst: Callable[[str], object], url: str) -> None:
    with Headrace(url, signing_keys=NEW) as app, Headrace(url) as attacker:
        bad = [attacker.by_name(f"double_{kind}").enqueue(1) for kind in KINDS]
        good = [app.by_name(f"double_{kind}").enqueue(1) for kind in KINDS]
        burst(NEW)
        assert [job.result(0) for job in good] == [2] * 4
        for job in bad:
            with pytest.raises(JobQuarantined, match="BadSignature"):
                job.result(0)
