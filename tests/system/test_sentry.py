"""Sentry learns of jobs from real runners, through a transport that keeps all until it is flushed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.model.job_record import Record, cause_id
from headrace.protocol.operations import stored_watches
from tests.deadline import eventually
from tests.program import Program, Worker

pytest.importorskip("sentry_sdk")

pytestmark = pytest.mark.system

TASKS = """
import json, os
import sentry_sdk
from sentry_sdk.transport import Transport
from headrace import Headrace, Retry, Secret, current_job
from headrace.contrib import sentry

class Held(Transport):
    held = []
    def capture_envelope(self, envelope):
        for item in envelope.items:
            self.held.append([item.type, item.payload.json])
    def flush(self, timeout, callback=None):
        with open("sent", "a") as out:
            for line in self.held:
                print(json.dumps(line, default=str), file=out)
        self.held.clear()

# Not with all that is installed here, which it would import.
sentry_sdk.init(
    "http://key@127.0.0.1/1", transport=Held, traces_sample_rate=1.0, shutdown_timeout=0, auto_enabling_integrations=False
)
app = Headrace()
report = os.environ.get("REPORT", "final")
sentry.install(app, report=int(report) if report.isdecimal() else report)

@app.task(retries=Retry(max=2, delay=0))
def fails(secret: str) -> None:
    raise ValueError(f"attempt {current_job().attempt}")

@app.task(kind="thread", retries=0)
def fails_thread(secret: str) -> None:
    raise ValueError("thread")

@app.task(kind="fork", retries=0)
def fails_fork(secret: str) -> None:
    raise ValueError("fork")

@app.task(retries=0)
async def fails_async(secret: str) -> None:
    raise ValueError("async")

@app.task(retries=0)
def tells(pin: Secret[str]) -> None:
    sentry_sdk.add_breadcrumb(message=f"crumb {pin}")
    raise ValueError(f"pin {pin}")

@app.task(retries=0)
def leaks(secret: str) -> None:
    sentry_sdk.add_breadcrumb(message=f"crumb password={secret}")
    raise ValueError(f"token={secret}")

@app.workflow
def shop(flow) -> None:
    flow.run(works, "x", name="pay")

@app.task
def works(secret: str) -> int:
    return 1

@app.task
def parent() -> None:
    works.enqueue("hunter2")

@app.task
def snoozes() -> None:
    if current_job().snoozes == 0:
        current_job().snooze(0.01)

@app.task(retries=0)
def waits() -> None:
    import time
    open("waits", "w").close()
    while True:
        time.sleep(0.02)
"""


class Sent:
    """What reached Sentry."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text() if path.exists() else ""
        # What has no end yet is still being written.
        lines = self.text.rpartition("\n")[0].splitlines()
        self.items: list[tuple[str, Any]] = [tuple(json.loads(line)) for line in lines]

    def of(self, kind: str, task: str = "") -> list[Any]:
        found = [item for one, item in self.items if one == kind]
        return [item for item in found if not task or item.get("transaction") == f"tasks.{task}"]


@pytest.fixture
def program(tmp_path: Path, url: str) -> Program:
    made = Program(tmp_path, url)
    made.write("tasks", TASKS)
    return made


def run(program: Program, *tasks: str, **environment: str) -> Sent:
    program.environment |= environment
    with Headrace(program.environment["HEADRACE_URL"]) as app:
        for task in tasks:
            app.by_name(f"tasks.{task}").enqueue("hunter2")
    program.burst()
    return Sent(program.directory / "sent")


def _grouped(record: Record) -> list[str]:
    return ["headrace", cause_id(record.task, record.error)]


def test_what_jobs_of_each_kind_did_is_reported_before_their_runners_leave(program: Program, url: str) -> None:
    program("workflows", "create", "tasks.shop", "--start", "--app", "tasks:app")
    with Headrace(url) as app:
        for task in ("parent", "snoozes"):
            app.by_name(f"tasks.{task}").enqueue()
    sent = run(program, "fails", "fails_thread", "fails_fork", "fails_async", "tells", "leaks")
    events = {event["transaction"].removeprefix("tasks."): event for event in sent.of("event")}
    assert len(sent.of("event")) == len(events)
    # What a secret argument holds, and what logs hide, is in no error's words; other arguments are nowhere.
    assert {task: event["exception"]["values"][0]["value"] for task, event in events.items()} == {
        "fails": "attempt 3", "fails_thread": "thread", "fails_fork": "fork", "fails_async": "async",
        "tells": "pin ***", "leaks": "token=***",
    }  # fmt: skip
    crumbs = {
        task: [crumb["message"] for crumb in events[task]["breadcrumbs"]["values"]] for task in ("tells", "leaks")
    }
    assert crumbs == {"tells": ["crumb ***"], "leaks": ["crumb password=***"]}
    assert "hunter2" not in sent.text
    # An error is reported when no retry is left, and grouped by its cause.
    assert events["fails"]["contexts"]["headrace"]["attempt"] == 3
    assert events["fails"]["tags"]["headrace.final"] is True
    with Headrace(url) as app:
        records = {record.task.removeprefix("tasks."): record for record in app.jobs.page("failed", limit=10)}
    assert {task: event["fingerprint"] for task, event in events.items()} == {
        task: _grouped(record) for task, record in records.items()
    }
    assert [one["contexts"]["trace"]["status"] for one in sent.of("transaction", "fails")] == ["internal_error"] * 3
    # Control flow is no error.
    assert [one["contexts"]["trace"]["status"] for one in sent.of("transaction", "snoozes")] == ["ok", "ok"]
    _continues_its_senders_trace(sent)


def _continues_its_senders_trace(sent: Sent) -> None:
    """A prompt first start; a retry has a trace of its own. The transaction of a node names it."""
    (parent,) = sent.of("transaction", "parent")
    traces = [one["contexts"]["trace"] for one in sent.of("transaction", "works")]
    (works,) = (one for one in traces if one["trace_id"] == parent["contexts"]["trace"]["trace_id"])
    (publish,) = [span for span in parent["spans"] if span["op"] == "queue.publish"]
    assert works["parent_span_id"] == publish["span_id"]
    assert works["data"]["messaging.message.id"] == publish["data"]["messaging.message.id"]
    assert works["data"]["messaging.system"] == "headrace"
    assert works["data"]["messaging.message.receive.latency"] >= 0
    fails = [one["contexts"]["trace"] for one in sent.of("transaction", "fails")]
    assert len({one["trace_id"] for one in fails}) == 3
    assert [one["data"]["messaging.message.retry.count"] for one in fails] == [0, 1, 2]
    nodes = [one["contexts"]["headrace"].get("node") or None for one in sent.of("transaction", "works")]
    assert sorted(nodes, key=str) == [None, "pay"]
    assert [one["data"].get("headrace.node") for one in traces] == nodes


@pytest.mark.parametrize(("report", "attempts"), [("each", [1, 2, 3]), ("2", [2, 3])])
def test_errors_before_the_last_are_reported_when_they_were_asked_for(
    program: Program, report: str, attempts: list[int]
) -> None:
    events = run(program, "fails", REPORT=report).of("event")
    assert [event["contexts"]["headrace"]["attempt"] for event in events] == attempts
    assert len({tuple(event["fingerprint"]) for event in events}) == 1


def test_a_start_that_is_stopped_is_no_error(program: Program) -> None:
    waits = program.directory / "waits"
    worker = Worker(program.start("worker", "tasks:app", "--processes", "1", "--shutdown-timeout", "10s"))
    try:
        with Headrace(program.environment["HEADRACE_URL"]) as app:
            job = app.by_name("tasks.waits").enqueue()
            eventually(waits.exists, 60)
            job.cancel()
            eventually(lambda: job.state.final, 60)
            waits.unlink()
            app.by_name("tasks.waits").enqueue()
            eventually(waits.exists, 60)
            assert worker.stop() == 0
    finally:
        worker.close()
    sent = Sent(program.directory / "sent")
    starts = [start["contexts"]["trace"]["status"] for start in sent.of("transaction", "waits")]
    assert (starts, sent.of("event")) == (["cancelled", "aborted"], [])


MANY = """
import sentry_sdk
from tasks import app, works

for count in (21, 22):
    with sentry_sdk.start_transaction(name="web", op="http.server") as web:
        app.enqueue_many(works.job("x") for _ in range(count))
app.close()
"""


def test_a_trace_does_not_grow_with_a_fan_out(program: Program) -> None:
    program.write("many", MANY)
    command = [sys.executable, "many.py"]
    subprocess.run(command, cwd=program.directory, env=program.environment, check=True, timeout=60)
    traces = Counter(one["contexts"]["trace"]["trace_id"] for one in run(program).of("transaction", "works"))
    # One and 20 others are the sender's; more have a trace each.
    assert sorted(traces.values()) == [1] * 22 + [21]


TICKS = """
from tasks import *

@app.task(retries=Retry(max=1, delay=0))
def tick() -> None:
    if current_job().attempt == 1:
        raise ValueError

@app.task(retries=Retry(max=1, delay=0))
def never() -> None:
    raise ValueError

app.every(1, tick, name="Every.Second")
app.cron("0 9 * * *", never, timezone="Europe/Berlin", name="daily")
"""


def test_a_tick_is_one_check_in_whatever_its_starts_also_when_a_person_fires_it(program: Program) -> None:
    program.write("ticks", TICKS)
    worker = program.start("worker", "ticks:app", "--processes", "1", "--shutdown-timeout", "5s")
    try:
        with Headrace(program.environment["HEADRACE_URL"]) as app:
            eventually(lambda: app.jobs.count("succeeded") >= 1, 60)
            program("cron", "run", "daily")
            eventually(lambda: app.jobs.count("failed") >= 1, 60)
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
    checks: dict[str, dict[str, list[Any]]] = {"every-second": {}, "daily": {}}
    for one in Sent(program.directory / "sent").of("check_in"):
        checks[one["monitor_slug"]].setdefault(one["check_in_id"], []).append(one)
    seconds = [[one["status"] for one in tick] for tick in checks["every-second"].values()]
    assert ["in_progress", "in_progress", "ok"] in seconds
    (fired,) = checks["daily"].values()
    assert [one["status"] for one in fired] == ["in_progress", "in_progress", "error"]
    config = {"schedule": {"type": "crontab", "value": "0 9 * * *"}, "timezone": "Europe/Berlin"}
    assert [one.get("monitor_config") for one in fired] == [config, config, None]


KILLED = """
from tasks import *
from headrace.worker.dispatcher import declared_duties

declared_duties.EVERY = 0.05

@app.task(max_crashes=1)
def dies(password: str) -> None:
    print(f"password={password}", flush=True)
    os.kill(os.getpid(), 9)

@app.task(timeout=2, hard_timeout=2.5, retries=0)
def hangs() -> None:
    while True:
        try:
            import time
            time.sleep(60)
        except BaseException:
            pass
"""


def test_a_job_whose_process_was_killed_is_reported_by_a_hook(program: Program) -> None:
    program.write("killed", KILLED)
    worker = Worker(program.start("worker", "killed:app", "--processes", "1"))
    try:
        with Headrace(program.environment["HEADRACE_URL"]) as app:
            eventually(lambda: app.client.run(stored_watches(app.client.keys)), 60)
            dead = app.by_name("killed.dies").enqueue("hunter2").id
            late = app.by_name("killed.hangs").enqueue().id
            app.by_name("tasks.fails_thread").enqueue("hunter2")

            def reported() -> dict[str, Any]:
                return {
                    event["contexts"]["headrace"]["job"]: event
                    for event in Sent(program.directory / "sent").of("event")
                }

            eventually(lambda: {dead, late} <= reported().keys(), 60)
            found = reported()
            cause = cause_id("killed.dies", app.job(dead).refresh().error)
    finally:
        worker.close()
    assert found[dead]["contexts"]["headrace"]["signal"] == 9
    assert found[dead]["fingerprint"] == ["headrace", cause]
    assert found[dead]["transaction"] == "killed.dies"
    assert found[late]["exception"]["values"][0]["type"] == "HardTimeLimit"
    sent = Sent(program.directory / "sent")
    assert "hunter2" not in sent.text
    # What the runner has reported itself is not reported again.
    assert len([event for event in sent.of("event") if event["transaction"] == "tasks.fails_thread"]) == 1
