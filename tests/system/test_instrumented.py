"""``opentelemetry-instrument headrace worker``: the real tool before a real worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from tests.deadline import eventually
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


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Program:
    program = Program(tmp_path, url, own=True)
    program.write("tasks", TASKS)
    return program


@pytest.mark.parametrize("traces", ["off", "auto"])
def test_each_runner_is_instrumented_and_nothing_before_the_fork(headrace: Program, url: str, traces: str) -> None:
    headrace.environment["HEADRACE_TRACES"] = traces
    with Headrace(url) as app:
        jobs = {kind: app.by_name(f"tasks.{kind}").enqueue() for kind in ("process", "fork", "thread", "coroutine")}
        worker = run(headrace, "--burst", "--processes", "1")
        out, said = worker.communicate(timeout=60)
        assert worker.returncode == 0, said
        assert {kind: job.result(timeout=1) for kind, job in jobs.items()} == dict.fromkeys(jobs, "TracerProvider")
    assert (headrace.directory / "warm").read_text() == "1 ProxyTracerProvider\n"
    names = [span["name"] for span in spans(out)]
    # What a runner holds it sends before it leaves.
    assert {"process", "fork", "thread", "async"} <= set(names)
    assert sum(name.startswith("process tasks.") for name in names) == (4 if traces == "auto" else 0)


def test_code_that_is_reloaded_is_instrumented_too(headrace: Program, url: str) -> None:
    with Headrace(url) as app:
        worker = run(headrace, "--processes", "1")
        try:
            task = app.by_name("tasks.process")
            assert task.enqueue().result(timeout=60) == "TracerProvider"
            headrace.write("tasks", TASKS.replace("return type(", "return 'new ' + type("))
            worker.send_signal(signal.SIGHUP)
            eventually(lambda: task.enqueue().result(timeout=60) == "new TracerProvider", 60)
        finally:
            worker.terminate()
            worker.communicate(timeout=60)
