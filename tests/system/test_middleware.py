"""Middleware from a program to its record, as people see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Headrace
from tests.commands import Commands
from tests.program import Program

pytestmark = pytest.mark.system

SHOP = """
import contextlib
from headrace import Flow, Headrace, Retry, current_job

app = Headrace()

@app.enqueue_middleware
@contextlib.contextmanager
def stamp(act):
    for job in act.jobs:
        job.headers.setdefault("by", act.verb)
    yield

@app.middleware
def forgive(job):
    return contextlib.suppress(KeyError)

@app.middleware
@contextlib.contextmanager
def report(job):
    try:
        yield
    except ValueError as error:
        with open("reports", "a") as lines:
            print(job.task, job.attempt, job.retries_left, job.will_retry(error), file=lines)
        raise

@app.task(retries=Retry(max=1, delay=0))
def fails() -> None:
    raise ValueError

@app.task(retries=Retry(max=1, delay=0))
async def fails_async() -> None:
    raise ValueError

@app.task(retries=Retry(max=1, delay=0, never=(ValueError,)), kind="thread")
def never() -> None:
    raise ValueError

@app.task
def careless(name: str) -> str:
    return {}[name]

@app.task
def numbers(count: int) -> list[int]:
    return list(range(count))

@app.task
def double(n: int) -> int:
    return 2 * n

@app.workflow
def doubled(flow: Flow, count: int) -> None:
    flow.map(double, flow.run(numbers, count))
"""


@pytest.fixture
def program(tmp_path: Path, url: str) -> Program:
    made = Commands(tmp_path, url)
    made.write("tasks", SHOP)
    return made


def test_what_middleware_sees_and_changes_is_shown(program: Program) -> None:
    id = program.enqueue("tasks.careless", "Ada", "--app", "tasks:app")
    for task in ("fails", "fails_async", "never"):
        program.enqueue(f"tasks.{task}", "--app", "tasks:app")
    created = program("workflows", "create", "tasks.doubled", "3", "--start", "--app", "tasks:app").out.split()[0]
    program.burst()
    shown = program("jobs", "show", id).out
    for text in ("succeeded", 'by="enqueue"', "swallowed by a middleware", "KeyError", "'Ada'", "in careless"):
        assert text in shown, shown
    facts = program("jobs", "show", id, "--json").json
    assert facts["headers"] == {"by": "enqueue"}
    assert (facts["swallowed"]["type"], facts["swallowed"]["attempt"], facts["error"]) == ("KeyError", 1, None)
    # It learns which failure is final.
    assert sorted((program.directory / "reports").read_text().splitlines()) == [
        "tasks.fails 1 1 True", "tasks.fails 2 0 False", "tasks.fails_async 1 1 True", "tasks.fails_async 2 0 False",
        "tasks.never 1 1 False",
    ]  # fmt: skip
    program("jobs", "retry", id)
    assert program("jobs", "show", id, "--json").json["swallowed"] is None
    # Nodes that are added at run time pass in the runner.
    with Headrace(program.environment["HEADRACE_URL"]) as app:
        run = app.workflows.get(created)
        by = {node.facts.name: dict(node.job.headers) for node in run.nodes(limit=50) if node.role == ""}
    # An item inherits from the node that maps, which was created.
    assert by == {name: {"by": "create"} for name in ("numbers", "double", "double[0]", "double[1]", "double[2]")}
