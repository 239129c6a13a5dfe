"""``app.propagate``: what is set where a job is stored is set in its starts, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from headrace import Flow, Headrace
from headrace.errors import OptionsError
from tests.program import Program

pytestmark = pytest.mark.system

TASKS = """
import contextlib
from contextvars import ContextVar
from headrace import Flow, Headrace, Retry, current_job

app = Headrace()
tenant = ContextVar("tenant")
zones = []

@contextlib.contextmanager
def in_zone(zone):
    zones.append(zone)
    try:
        yield
    finally:
        zones.pop()

app.propagate("tenant", tenant)
app.propagate("zone", lambda: zones[-1] if zones else None, in_zone)

def seen():
    return [tenant.get(None), list(zones)]

@app.task(kind="process")
def process(): return seen()
@app.task(kind="thread")
def thread(): return seen()
@app.task(kind="fork")
def fork(): return seen()
@app.task
async def coroutine(): return seen()

@app.task(retries=Retry(max=1, delay=0))
def again():
    if current_job().attempt == 1:
        raise ValueError
    return seen()

@app.task
def parent() -> list[str]:
    first = process.enqueue()
    tenant.set("other")
    second = process.enqueue()
    tenant.set(None)
    third = process.enqueue()
    fourth = process.options(headers={"tenant": "given"}).enqueue()
    return [first.id, second.id, third.id, fourth.id]

@app.workflow
def pair(flow: Flow):
    flow.run(coroutine, after=flow.run(process))
"""

tenant: ContextVar[str] = ContextVar("tenant")
zone: ContextVar[str | None] = ContextVar("zone", default=None)


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        app.propagate("tenant", tenant)
        app.propagate("zone", zone.get, lambda _: pytest.fail("nothing runs here"))

        @app.workflow(name="tasks.pair")
        def pair(flow: Flow) -> None:
            flow.run("tasks.coroutine", after=flow.run("tasks.process"))

        yield app


def test_a_value_is_set_in_each_start_and_not_beyond(tmp_path: Path, url: str, app: Headrace) -> None:
    headrace = Program(tmp_path, url)
    headrace.write("tasks", TASKS)
    names = ("process", "thread", "fork", "coroutine", "again")
    before = [app.by_name(f"tasks.{name}").enqueue() for name in names]
    tenant_token, zone_token = tenant.set("acme"), zone.set("Europe/Berlin")
    try:
        jobs = [app.by_name(f"tasks.{name}").enqueue() for name in names]
        many = [app.by_name("tasks.process").job() for _ in range(3)]
        app.enqueue_many(many)
        run = app.workflow_definitions["tasks.pair"].create()
        parent = app.by_name("tasks.parent").enqueue()
    finally:
        tenant.reset(tenant_token)
        zone.reset(zone_token)
    run.start()
    after = [app.by_name(f"tasks.{name}").enqueue() for name in names]
    headrace.burst()

    def results(found: list[Any]) -> list[Any]:
        return [job.result(timeout=1) for job in found]

    assert results(before) == results(after) == [[None, []]] * len(names)
    acme = ["acme", ["Europe/Berlin"]]
    assert results(jobs) == [acme] * len(names)
    assert results([one.handle for one in many]) == [acme] * 3
    assert [node.job.result for node in run.nodes() if node.role == ""] == [acme] * 2
    # A job passes on what it was given, or what its code has set since; what the call gives comes first.
    children = results([app.job(id) for id in parent.result(timeout=1)])
    assert [child[0] for child in children] == ["acme", "other", None, "given"]


@pytest.mark.parametrize(
    ("name", "rest", "why"),
    [
        ("", (tenant,), "name of a header"),
        ("tenant", ("acme",), "takes a ContextVar"),
        ("tenant", (lambda: "acme",), "takes a ContextVar"),
    ],
)
def test_what_cannot_travel_is_refused_at_the_call(name: str, rest: tuple[Any, ...], why: str) -> None:
    with pytest.raises(OptionsError, match=why):
        Headrace("redis://127.0.0.1:1").propagate(name, *rest)


def test_a_value_that_is_no_text_is_refused_where_work_is_stored(app: Headrace) -> None:
    token = tenant.set(7)  # type: ignore[arg-type]
    try:
        with pytest.raises(OptionsError, match="header 'tenant' must be a text"):
            app.by_name("tasks.process").enqueue()
    finally:
        tenant.reset(token)
