"""Encrypted jobs on real workers: no plain text in the store, in logs, on pages and in what commands print."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra dashboard is not installed")
pytest.importorskip("cryptography", reason="the extra encryption is not installed")

from headrace import Headrace
from headrace.dashboard import Dashboard, Visitor
from headrace.errors import JobFailed
from tests.program import Program

pytestmark = pytest.mark.system

KEY = "encrypt-" * 4
CANARY = "canary-0831"
KINDS = ("process", "thread", "fork")
TASKS = """
import logging, os, signal, sys
from headrace import Headrace, current_job

app = Headrace()
app.job_log("INFO")

def _greet(name: str) -> str:
    logging.getLogger("shop").warning("greets %s", name)
    return f"hello {name}"

for kind in ("process", "thread", "fork"):
    app.task(name=f"greet_{kind}", kind=kind, encrypt=True)(_greet)

@app.task(name="fail", encrypt=True, retries=0)
async def fail(name: str) -> None:
    raise ValueError(f"{name} is wrong")

@app.task(name="die", encrypt=True, max_crashes=1)
def die(name: str) -> None:
    print("last words", name, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_plain_text_is_shown(tmp_path: Path, url: str) -> None:
    headrace = Program(tmp_path, url)
    headrace.write("tasks", TASKS)
    headrace.environment |= {"HEADRACE_ENCRYPTION_KEYS": KEY, "HEADRACE_LOG_JOBS": "all"}
    with Headrace(url, encryption_keys=KEY, encrypt=True) as app:
        jobs = [app.by_name(f"greet_{kind}").enqueue(CANARY) for kind in KINDS]
        failed, died = app.by_name("fail").enqueue(CANARY), app.by_name("die").enqueue(CANARY)
        said = headrace.burst("--log", "json")
        # What a job prints itself passes through.
        assert CANARY not in said.err.replace(f"last words {CANARY}", "")
        assert [job.result(0) for job in jobs] == [f"hello {CANARY}"] * 3
        with pytest.raises(JobFailed, match=CANARY):
            failed.result(0)
        error = died.refresh().error
        assert error is not None
        assert error.stderr == "encrypted"

        ids = [job.id for job in (*jobs, failed, died)]
        shown = [headrace("jobs", "show", id, "--json").out for id in ids]
        assert json.loads(shown[0])["args"] == ["encrypted"]
        shown += [headrace("jobs", "show", id).out for id in ids]
        shown += [headrace("jobs", "result", ids[0]).out, headrace("jobs", "list", "--json").out]
        assert shown[-2].strip() == '"encrypted"'
        shown += asyncio.run(_pages(app, ids))
        assert [text for text in shown if CANARY in text] == []


async def _pages(app: Headrace, ids: list[str]) -> list[str]:
    from tests.dashboard.asking import ask

    dashboard = Dashboard(app, authorize=lambda _: Visitor("ada", "operator"))
    names = ["/", "/jobs?state=failed", "/jobs?state=succeeded", "/causes", "/activity"]
    names += [*(f"/jobs/{id}" for id in ids), *(f"/jobs/{id}.json" for id in ids)]
    found = [await ask(dashboard, name) for name in names]
    assert {answer.status for answer in found} == {200}
    assert "encrypted" in found[5].text
    return [answer.text for answer in found]
