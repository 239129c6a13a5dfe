"""A ``Secret`` argument is in nothing that people or programs are shown, whatever becomes of its job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra dashboard is not installed")

from headrace import Flow, Headrace, Job, Secret
from headrace.dashboard import Dashboard, Visitor
from tests.commands import Commands

pytestmark = pytest.mark.system

CANARY = "canary-0831"
KINDS = ("process", "thread", "fork")
TASKS = """
import logging, os, signal, sys
from headrace import Flow, Headrace, Secret, current_job

app = Headrace()
app.job_log("INFO")

def _login(user: str, pin: Secret[str]) -> None:
    logging.getLogger("shop").warning("pin %s", pin, extra={"given": pin})
    current_job().log(f"line {pin}")
    current_job().progress(0.5, f"half {pin}")
    try:
        raise KeyError(pin)
    except KeyError:
        raise ValueError(f"{pin} is not the pin of {user}")

for kind in ("process", "thread", "fork"):
    app.task(name=f"tasks.login_{kind}", kind=kind, retries=0)(_login)

@app.task(max_crashes=1)
def die(user: str, *, pin: Secret[str]) -> None:
    print("last words", pin, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task
def draw(user: str) -> Secret[str]:
    return "CANARY"

@app.task
async def keep(pin: Secret[list[str]]) -> str:
    return "kept"

@app.workflow
def sign(flow: Flow, pin: Secret[str]) -> None:
    flow.map(keep, [[pin]])
"""


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    """The application of a program that has the code."""
    with Headrace(url) as app:

        def login(user: str, pin: Secret[str]) -> None: ...

        for kind in KINDS:
            app.task(name=f"tasks.login_{kind}", retries=0)(login)

        @app.task(name="tasks.die", max_crashes=1)
        def die(user: str, *, pin: Secret[str]) -> None: ...

        @app.task(name="tasks.draw")
        def draw(user: str) -> Secret[str]:
            return ""

        @app.task(name="tasks.keep")
        async def keep(pin: Secret[list[str]]) -> str:
            return ""

        @app.workflow(name="tasks.sign")
        def sign(flow: Flow, pin: Secret[str]) -> None:
            flow.map(keep, [[pin]])

        yield app


def pages(app: Headrace, ids: list[str], flow: str, role: str) -> Iterator[str]:
    """What a dashboard without or with the code says, as pages and as documents."""
    from tests.dashboard.asking import ask

    dashboard = Dashboard(app, authorize=lambda _: Visitor("ada", role))  # type: ignore[arg-type]
    names = ["/", "/jobs?state=failed", "/jobs?state=succeeded", "/jobs?state=quarantined", "/causes", "/activity"]
    names += [*(f"/jobs/{id}" for id in ids), f"/jobs/{ids[0]}/again", f"/workflows/{flow}"]

    async def all_of_them() -> list[str]:
        found = [await ask(dashboard, name) for name in names]
        found += [await ask(dashboard, f"/jobs/{id}.json") for id in ids]
        found += [await ask(dashboard, f"/workflows/{flow}.json")]
        assert {answer.status for answer in found} == {200}
        return [answer.text for answer in found]

    yield from asyncio.run(all_of_them())


def _failed_discreetly(job: Job[Any]) -> None:
    failed = job.refresh()
    assert failed.error is not None
    assert failed.error.message == "*** is not the pin of ada"
    assert "KeyError: '***'" in failed.error.traceback
    assert failed.progress_text == "half ***"
    assert job.logs() == ["WARNING shop: pin ***", "line ***"]


def test_a_secret_argument_is_shown_nowhere(tmp_path: Path, url: str, app: Headrace) -> None:
    headrace = Commands(tmp_path, url)
    headrace.write("tasks", TASKS.replace("CANARY", CANARY))
    jobs = [
        *(app.tasks[f"tasks.login_{kind}"].enqueue("ada", CANARY) for kind in KINDS),
        *(app.tasks[f"tasks.login_{kind}"].enqueue("ada", pin=CANARY) for kind in KINDS),
        app.tasks["tasks.die"].enqueue("ada", pin=CANARY),
        app.tasks["tasks.draw"].enqueue("ada"),
    ]
    packed = app.tasks["tasks.keep"].job([CANARY]).pack()
    (receipt,) = app.enqueue_packed([packed])
    run = app.workflow_definitions["tasks.sign"].create(CANARY)
    run.start()
    headrace.environment["HEADRACE_LOG_JOBS"] = "all"
    said = headrace.burst("--log", "json").err
    nodes = [node.job.id for node in run.nodes().rows]
    ids = [*(job.id for job in jobs), receipt.id, *nodes]

    for job in jobs[:6]:
        _failed_discreetly(job)
    crashed = jobs[6].refresh()
    assert crashed.state == "quarantined"
    assert crashed.error is not None
    assert "last words ***" in crashed.error.stderr
    assert jobs[7].result() == CANARY

    told = [line for line in said.splitlines() if "last words" not in line]
    told += [headrace("jobs", "show", id).out for id in ids] + [
        headrace("jobs", "show", id, "--json").out for id in ids
    ]
    told += [headrace("jobs", "list").out, headrace("events", "--json").out, headrace("jobs", "logs", ids[0]).out]
    told += [headrace("workflows", "show", run.id, *more).out for more in ((), ("--json",))]
    with Headrace(url) as elsewhere:
        # The job once more, made without the code, is as secret.
        ids.append(elsewhere.jobs.again(ids[0]).id)
        told += [headrace("jobs", "show", ids[-1]).out]
        for reader in (app, elsewhere):
            for role in ("viewer", "operator"):
                told += pages(reader, ids, run.id, role)
    assert [text for text in told if CANARY in text] == []
    assert sum("***" in text for text in told) > len(ids)
    # The code itself has the value.
    assert app.jobs.get(ids[0]).refresh().arguments == {"user": "ada", "pin": CANARY}


def test_an_argument_of_a_hidden_name_is_shown_nowhere_without_its_code(tmp_path: Path, url: str) -> None:
    with Headrace(url) as app:

        @app.task(name="tasks.connect")
        def connect(user: str, password: str, *api_keys: str, token_for: str = "") -> None: ...

        @app.workflow(name="tasks.connected")
        def connected(flow: Flow, password: str) -> None:
            flow.run(connect, "ada", password)

        jobs = [
            connect.enqueue("ada", CANARY, CANARY, token_for=CANARY),
            connect.options(queue="mail").enqueue("ada", password=CANARY),
        ]
        run = connected.create(CANARY)
        run.start()
        ids = [*(job.id for job in jobs), *(node.job.id for node in run.nodes().rows)]
    headrace = Commands(tmp_path, url)
    told = [headrace("jobs", "show", id, *more).out for id in ids for more in ((), ("--json",))]
    told += [headrace("workflows", "show", run.id, *more).out for more in ((), ("--json",))]
    with Headrace(url) as elsewhere:
        told += pages(elsewhere, ids, run.id, "operator")
    assert [text for text in told if CANARY in text] == []
    assert "ada" in told[0]
