"""What is of a wrong type gets an error of Headrace that says what to give, before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace import Cron, Headrace, Task
from headrace.errors import ArgumentError, OptionsError
from headrace.protocol.operations import JobFilter

# Port 1: a test that connects fails.
app = Headrace("redis://localhost:1/0")


@app.task(name="tasks.work")
def work() -> None: ...


async def jobs(task: Task[..., Any, Any]) -> AsyncIterator[Any]:
    yield task.job()


async def test_many_jobs_are_an_iterable() -> None:
    wrong: Any
    for wrong in (None, 7, work.job()):
        told = f"enqueue_many takes a list or another iterable, not {type(wrong).__name__}"
        with pytest.raises(ArgumentError, match=told):
            app.enqueue_many(wrong)
        with pytest.raises(ArgumentError, match=told):
            await app.aenqueue_many(wrong)
        with pytest.raises(ArgumentError, match="enqueue_packed takes a list or another iterable, not "):
            app.enqueue_packed(wrong)
        with pytest.raises(ArgumentError, match="enqueue_packed takes a list or another iterable, not "):
            await app.aenqueue_packed(wrong)
    wrong = jobs(work)
    with pytest.raises(ArgumentError, match=r"not async_generator; await app\.aenqueue_many\(\.\.\.\) takes"):
        app.enqueue_many(wrong)


def test_a_cron_expression_and_its_zone_are_texts() -> None:
    for wrong in ([], None, 5, b"* * * * *"):
        with pytest.raises(OptionsError, match=r"a cron expression has five fields, .*is not one"):
            Cron(wrong)  # type: ignore[arg-type]
        with pytest.raises(OptionsError, match="a time zone is a name of the IANA"):
            Cron("* * * * *", wrong)  # type: ignore[arg-type]


def test_a_verb_on_many_jobs_takes_a_filter() -> None:
    wrong: Any
    for wrong in (7, "failed", None, ["failed"]):
        with pytest.raises(OptionsError, match=r"which jobs is said by a filter, such as JobFilter\('failed'\), not "):
            app.bulk.count("retry", wrong)
        with pytest.raises(OptionsError, match="which jobs is said by a filter"):
            app.bulk.start("retry", wrong, who="ada")
    with pytest.raises(OptionsError, match="there is no verb 'frob'"):
        app.bulk.count("frob", JobFilter("failed"))
