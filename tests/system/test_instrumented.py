"""``opentelemetry-instrument headrace worker``: the real tool before a real worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace, Job
from tests.program import Program

pytest.importorskip("opentelemetry.distro", reason="the distribution of OpenTelemetry is not installed")

pytestmark = pytest.mark.system

TASKS = """
import threading
from headrace import Headrace
from opentelemetry import trace

app = Headrace()

@app.on_preload
def look():
    with open("warm", "a") as out:
        print(threading.active_count(), type(trace.get_tracer_provider()).__name__, file=out)

def _own(name):
    with trace.get_tracer("shop").start_as_current_span(name):
        return type(trace.get_tracer_provider()).__name__

@app.task(kind="process")
def process(): return _own("process")
@app.task(kind="fork")
def fork(): return _own("fork")
@app.task(kind="thread")
def thread(): return _own("thread")
@app.task(kind="async")
async def coroutine(): return _own("async")
"""
# What the script of this name does.
TOOL = (sys.executable, "-c", "from opentelemetry.instrumentation.auto_instrumentation import run; run()")


def run(headrace: Program, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [*TOOL, "--traces_exporter", "console", "--metrics_exporter", "none", "--logs_exporter", "none"]
    return subprocess.Popen(
        [*command, sys.executable, "-m", "headrace", "worker", "tasks:app", *arguments],
        cwd=headrace.directory, env=headrace.environment, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def spans(text: str) -> list[dict[str, Any]]:
    """What the console exporter wrote: one JSON object after the other."""
    found, decoder, at = list[dict[str, Any]](), json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        one, at = decoder.raw_decode(text, at)
        found.append(one)
    return found


def _sent(text: str) -> int:
    """How many spans of starts the runners sent, beside those of the code of each kind."""
    names = [span["name"] for span in spans(text)]
    assert {"process", "fork", "thread", "async"} <= set(names)
    return sum(name.startswith("process tasks.") for name in names)


def one_of_each(app: Headrace) -> list[Job[Any]]:
    """A job of each kind."""
    return [app.by_name(f"tasks.{name}").enqueue() for name in ("process", "fork", "thread", "coroutine")]


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Program:
    program = Program(tmp_path, url, own=True)
    program.write("tasks", TASKS)
    return program


def test_each_runner_is_instrumented_and_nothing_before_the_fork(headrace: Program, url: str) -> None:
    headrace.environment["HEADRACE_TRACES"] = "auto"
    with Headrace(url) as app:
        jobs = one_of_each(app)
        worker = run(headrace, "--burst", "--processes", "1")
        out, said = worker.communicate(timeout=60)
        assert worker.returncode == 0, said
        assert [job.result(timeout=1) for job in jobs] == ["TracerProvider"] * 4
    assert (headrace.directory / "warm").read_text() == "1 ProxyTracerProvider\n"
    # What a runner holds it sends before it leaves.
    assert _sent(out) == 4
