"""The worker's log tells why a job failed, and no text of a job can forge a line of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from tests.program import Program

TASKS = """
import asyncio, json
from headrace import Headrace, Retry

app = Headrace()

@app.task(retries=Retry(max=1, delay=0.01, jitter=0))
def mean(values: list[float]) -> float:
    return sum(values) / len(values)

@app.task(kind="thread")
def parse(text: str) -> object:
    return json.loads(text)

@app.task
async def forge() -> None:
    raise ValueError("one\\n2026-11-22 22:00:00.000 ERROR   forged \\x1b[31m")

@app.task(kind="fork")
def add(a: int) -> int:
    return a

@app.task(kind="fork")
def fill(size: int, fails: bool) -> int:
    filled = len(b"x" * size)
    if fails:
        raise ValueError("full")
    return filled
"""


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Program:
    program = Program(tmp_path, url)
    (tmp_path / "tasks.py").write_text(TASKS)
    return program


def run(headrace: Program, *arguments: str, **environment: str) -> tuple[dict[str, str], str]:
    """Ids by task, and what a worker said that ran them."""
    with Headrace(headrace.environment["HEADRACE_URL"]) as app:
        given: dict[str, list[Any]] = {"mean": [[]], "parse": ["no json"], "forge": [], "add": [1]}
        ids = {name: app.by_name(f"tasks.{name}").enqueue(*values).id for name, values in given.items()}
    command = ("worker", "tasks:app", "--burst", "--processes", "1", *arguments)
    return ids, headrace(*command, **environment).err


def test_a_failure_is_told_with_its_error_and_the_line_of_the_application(headrace: Program) -> None:
    ids, said = run(headrace)
    division = "ZeroDivisionError: division by zero at tasks.py:9 in mean"
    assert f"job {ids['mean']} (tasks.mean), attempt 1 failed: {division}; retry in 10 ms, waited " in said
    assert f"job {ids['mean']} (tasks.mean), attempt 2 failed: {division}; waited " in said
    # Raised in the standard library: the line of the application that called it.
    refused = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert f"(tasks.parse), attempt 1 failed: {refused} at tasks.py:13 in parse" in said
    assert "Traceback" not in said
    assert "facts" not in said
    assert ids["add"] not in said


def test_no_text_of_a_job_forges_a_line_and_details_have_the_traceback(headrace: Program) -> None:
    _, said = run(headrace, "--verbose")
    assert "(tasks.forge), attempt 1 failed: ValueError: one at tasks.py:17 in forge" in said
    assert not [line for line in said.splitlines() if line.startswith("2026-11-22 22:00:00.000")]
    assert "\x1b" not in said
    assert said.count("Traceback (most recent call last):") >= 4
    assert "return sum(values) / len(values)" in said


def test_the_setting_leaves_the_lines_of_starts_out(headrace: Program) -> None:
    ids, said = run(headrace, HEADRACE_LOG_JOBS="none")
    assert not [task for task, id in ids.items() if id in said]


def test_json_lines_have_it_as_fields_and_tell_the_memory_of_the_process_of_each_start(headrace: Program) -> None:
    size = 80 << 20
    with Headrace(headrace.environment["HEADRACE_URL"]) as app:
        fills = [app.by_name("tasks.fill").enqueue(*one).id for one in ((0, False), (size, False), (size, True))]
    ids, said = run(headrace, "-v", "--log", "json", HEADRACE_LOG_JOBS="all")
    rows: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    told = {row["job"]: row for row in rows if "outcome" in row}
    forged, added = told[ids["forge"]], told[ids["add"]]
    assert forged["level"] == "warning"
    facts = {name: forged[name] for name in ("job", "task", "queue", "attempt", "outcome")}
    assert facts == {"job": ids["forge"], "task": "tasks.forge", "queue": "default", "attempt": 1, "outcome": "failed"}
    assert forged["traceback"].startswith("Traceback (most recent call last):")
    assert added["level"] == "info"
    assert f"job {ids['add']} (tasks.add), attempt 1 succeeded; waited " in added["event"]
    assert ", ran " in added["event"]
    small, large, failed = (told[id] for id in fills)
    assert [row["outcome"] for row in (small, large, failed)] == ["succeeded", "succeeded", "failed"]
    assert 1 << 20 < small["memory"] < size
    assert large["memory"] > size
    assert failed["memory"] > size
    assert ", peak " in failed["event"]
