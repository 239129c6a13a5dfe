"""Hooks with real workers: which worker calls them, how often, and what one costs that hangs, raises or kills."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.model.job_record import Record
from headrace.protocol.operations import stored_watches
from tests.commands import Commands
from tests.deadline import eventually
from tests.processes import kill_all, lives
from tests.program import Worker

pytestmark = pytest.mark.system

TASKS = """
import json, os, signal, time
from headrace import Headrace, Retry
from headrace.worker import own_tasks
from headrace.worker.dispatcher import declared_duties

declared_duties.EVERY = declared_duties.ALARMS_EVERY = 0.05
own_tasks.HOOK_RETRY = Retry(max=2, delay=0.05, jitter=0, on=(BaseException,))

app = Headrace()

@app.task(retries=0)
def fail(name: str = "x") -> None:
    raise ValueError(name)

@app.task
def work() -> int:
    return 1

@app.task(max_crashes=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

def told(who, events):
    with open(who, "a") as out:
        for event in events:
            print(json.dumps([os.getpid(), os.getppid(), event.kind, dict(event.facts)]), file=out)
"""


@dataclass(frozen=True)
class Told:
    """What a hook wrote of an event: its process, the parent of that, and the event."""

    pid: int
    parent: int
    kind: str
    facts: dict[str, str]


class Stage:
    """Workers of one program."""

    def __init__(self, program: Commands, url: str) -> None:
        self.program, self.app = program, Headrace(url)
        self.workers: list[Worker] = []

    def start(self, code: str, *options: str) -> Worker:
        self.program.write("tasks", TASKS + code)
        self.workers.append(Worker(self.program.start("worker", "tasks:app", "--processes", "1", *options)))
        return self.workers[-1]

    def of(self, hook: str) -> dict[str, str]:
        """What is stored of a hook."""
        found = self.app.client.run(stored_watches(self.app.client.keys))
        return next((one.fields for one in found if one.name == f"hook:tasks.{hook}"), {})

    def held(self, *hooks: str) -> None:
        """Wait until a worker has asked for these: what happens from now on is told."""
        eventually(lambda: all(self.of(hook) for hook in hooks), 60, what="a worker that knows the hooks")

    def fail(self, name: str = "x") -> str:
        return self.app.by_name("tasks.fail").enqueue(name).id

    def own(self, hook: str) -> list[Record]:
        """The calls of a hook that are stored, the newest first."""
        return [one for one in self.app.jobs.own(limit=1000) if one.task == f"headrace.hook.tasks.{hook}"]

    def told(self, who: str) -> list[Told]:
        path = self.program.directory / who
        if not path.exists():
            return []
        # What has no end yet is still being written.
        return [Told(*json.loads(line)) for line in path.read_text().rpartition("\n")[0].splitlines()]

    def jobs(self, who: str) -> list[str]:
        return [one.facts["job"] for one in self.told(who)]


@pytest.fixture
def stage(tmp_path: Path, url: str) -> Iterator[Stage]:
    stage = Stage(Commands(tmp_path, url), url)
    yield stage
    for worker in stage.workers:
        worker.close()
    stage.app.close()


PLAIN = """
@app.on("failed", task="tasks.*")
def plain(events):
    told("plain", events)

@app.on("queue_paused")
async def coroutine(events):
    told("coroutine", events)

@app.on("failed", task="other.*")
def others(events):
    told("others", events)

@app.on("failed", "quarantined", queue="mail")
def elsewhere(events):
    told("others", events)

@app.on("failed", "quarantined", queue="default")
def here(events):
    told("here", events)
"""


def test_a_hook_gets_the_events_that_it_asked_for_and_begins_with_new_ones(stage: Stage) -> None:
    stage.app.queues["before"].pause()
    stage.start(PLAIN)
    stage.held("plain", "coroutine", "others", "elsewhere", "here")
    ids = {stage.fail() for _ in range(5)}
    dead = stage.app.by_name("tasks.die").enqueue().id
    stage.app.by_name("tasks.work").enqueue()
    stage.app.queues["after"].pause()
    eventually(lambda: set(stage.jobs("plain")) == ids and stage.told("coroutine"), 60)
    assert sorted(stage.jobs("plain")) == sorted(ids)
    assert {one.kind for one in stage.told("plain")} == {"failed"}
    assert [(one.kind, one.facts["queue"]) for one in stage.told("coroutine")] == [("queue_paused", "after")]
    eventually(lambda: {*stage.jobs("here")} == {*ids, dead}, 60)
    assert {one.facts["job"] for one in stage.told("here") if one.kind == "quarantined"} == {dead}
    assert stage.told("others") == []


def test_each_event_reaches_one_of_several_workers_and_is_kept_while_none_runs(stage: Stage) -> None:
    workers = [stage.start(PLAIN) for _ in range(2)]
    for worker in workers:
        # One that still imports would die of the signal below.
        worker.says(" serves ")
    stage.held("plain", "coroutine")
    ids = [stage.fail() for _ in range(20)]
    eventually(lambda: len(stage.jobs("plain")) >= 20, 60)
    for worker in workers:
        assert worker.stop() == 0
    assert sorted(stage.jobs("plain")) == sorted(ids)
    stage.app.queues["meanwhile"].pause()
    stage.start(PLAIN)
    eventually(lambda: stage.told("coroutine"), 60)
    assert [one.facts["queue"] for one in stage.told("coroutine")] == ["meanwhile"]


BAD = """
own_tasks.HOOK_TIMEOUT = 2.5

@app.on("failed")
def raises(events):
    told("raises", events)
    if len(open("raises").readlines()) < 3:
        raise RuntimeError("slack is down")

@app.on("failed")
def always(events):
    told("always", events)
    raise SystemExit("never works")

@app.on("failed")
def hangs(events):
    told("hangs", events)
    while True:
        time.sleep(60)

@app.on("failed")
def swallows(events):
    told("swallows", events)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@app.on("failed")
def kills(events):
    told("kills", events)
    os.kill(os.getpid(), signal.SIGKILL)

@app.on("failed")
def good(events):
    told("good", events)
"""


def test_a_hook_that_raises_hangs_or_kills_is_called_three_times_and_harms_nothing(stage: Stage) -> None:
    stage.program.environment["HEADRACE_KILL_TIMEOUT"] = "1"
    worker = stage.start(BAD)
    stage.held("raises", "always", "hangs", "swallows", "kills", "good")
    first = stage.fail("first")
    ends = {"always": "failed", "hangs": "failed", "swallows": "failed", "kills": "quarantined"}
    for who, state in ends.items():
        eventually(lambda who=who, state=state: [one.state for one in stage.own(who)] == [state], 60, what=who)
    eventually(lambda: len(stage.jobs("raises")) == 3 and not stage.own("raises"), 60)
    for who, times in (("raises", 3), ("always", 3), ("hangs", 3), ("swallows", 3), ("kills", 3), ("good", 1)):
        assert stage.jobs(who) == [first] * times, who
    # Each is seen and explained as any job.
    (hanged,), (killed,) = stage.own("hangs"), stage.own("kills")
    assert (hanged.error and hanged.error.type, killed.error and killed.error.signal) == (
        "headrace.errors.SoftTimeLimit",
        9,
    )
    assert "failed" in str(stage.app.job(hanged.id).why())
    worker.says("RuntimeError: slack is down")
    assert stage.app.jobs.count("failed") == 1
    assert stage.app.jobs.count("quarantined") == 0
    assert [one.id for one in stage.app.jobs.page("failed")] == [first]
    # Jobs feel nothing, and the next events are told.
    second = stage.fail("second")
    eventually(lambda: stage.jobs("good") == [first, second] and second in stage.jobs("always"), 60)
    assert stage.app.by_name("tasks.work").enqueue().result(timeout=60) == 1
    assert worker.process.poll() is None


LOOP = """
declared_duties.EVERY = 1.0

@app.on("failed")
def enqueues(events):
    with open("calls", "a") as out:
        print(time.time(), file=out)
    fail.options(request_id=os.urandom(8).hex()).enqueue("again")
"""


def test_a_hook_that_enqueues_a_failing_job_makes_one_call_a_second(stage: Stage) -> None:
    for _ in range(2):
        stage.start(LOOP).says(" serves ")
    stage.held("enqueues")
    stage.fail()
    calls = stage.program.directory / "calls"
    eventually(lambda: calls.exists() and calls.read_text().count("\n") >= 4, 60)
    times = [float(line) for line in calls.read_text().split()]
    # A call may begin late, and the next one in time.
    assert times[-1] - times[0] > len(times) - 2


SLEEPS = """
@app.task
def sleeps():
    while os.path.exists("hold"):
        time.sleep(0.01)

@app.on("queue_paused")
def plain(events):
    told("plain", events)
"""


def test_a_hook_is_called_while_all_runners_are_busy(stage: Stage) -> None:
    hold = stage.program.directory / "hold"
    hold.touch()
    stage.start(SLEEPS, "--forks", "0")
    stage.held("plain")
    for _ in range(5):
        stage.app.by_name("tasks.sleeps").enqueue()
    eventually(lambda: stage.app.jobs.count("running"), 60)
    stage.app.queues["mail"].pause()
    eventually(lambda: stage.told("plain"), 60)
    assert stage.app.jobs.count("running") == 1
    hold.unlink()
    eventually(lambda: not stage.app.jobs.count("running"), 60)


COROUTINES = """
app = Headrace()

@app.task
async def work() -> int:
    return 1

@app.middleware
def counted(job):
    raise RuntimeError("not for hooks")

@app.on("queue_paused")
async def coroutine(events):
    told("coroutine", events)
"""


def test_a_hook_works_in_an_application_of_coroutines_alone(stage: Stage) -> None:
    stage.start(COROUTINES, "--forks", "0")
    stage.held("coroutine")
    stage.app.queues["mail"].pause()
    eventually(lambda: stage.told("coroutine"), 60)
    eventually(lambda: not stage.own("coroutine"), 60)


HELD = """
own_tasks.HOOK_TIMEOUT = 120

@app.on("failed")
def waits(events):
    told("begun", events)
    while os.path.exists("hold"):
        time.sleep(0.01)
    told("waits", events)
"""


def test_a_call_whose_runner_is_killed_loses_no_event(stage: Stage) -> None:
    hold = stage.program.directory / "hold"
    hold.touch()
    stage.start(HELD)
    stage.held("waits")
    job = stage.fail()
    (begun,) = eventually(lambda: stage.told("begun"), 60)
    os.kill(begun.parent, signal.SIGKILL)
    eventually(lambda: not lives(begun.pid), 60, what="the end of the call with its runner")
    hold.unlink()
    eventually(lambda: stage.jobs("waits") == [job], 60)
    assert stage.jobs("begun") == [job, job]


LEDGER = """
@app.on("failed")
def ledger(events):
    told("ledger", events)
"""
# Starts of one call at most: the first one and two retries, and one more for each crash that it outlives.
STARTS = 1 + 2 + 2


def test_each_event_reaches_its_hook_over_kills_of_workers(stage: Stage) -> None:
    stage.program.environment["HEADRACE_LEASE"] = "3"
    worker = stage.start(LEDGER)
    stage.held("ledger")
    ids: list[str] = []
    for _ in range(3):
        before = len(ids)
        ids += [stage.fail() for _ in range(10)]
        # Some have failed: their call is being lined up, runs, or has run.
        eventually(lambda before=before: stage.app.jobs.count("failed") > before, 60)
        kill_all(worker.process.pid)
        worker = stage.start(LEDGER)
    eventually(lambda: stage.app.jobs.count("failed") == len(ids) and set(stage.jobs("ledger")) == set(ids), 120)
    assert max(Counter(stage.jobs("ledger")).values()) <= STARTS
    # Read once: a call that has succeeded is soon deleted.
    assert [call.state for call in stage.own("ledger")][:1] != ["quarantined"]


def test_a_worker_that_stops_lets_a_call_end(stage: Stage) -> None:
    hold = stage.program.directory / "hold"
    hold.touch()
    worker = stage.start(HELD)
    stage.held("waits")
    job = stage.fail()
    eventually(lambda: stage.told("begun"), 60)
    worker.process.terminate()
    worker.says("stops claiming")
    hold.unlink()
    assert worker.ended() == 0
    assert stage.jobs("begun") == stage.jobs("waits") == [job]
    assert stage.own("waits") == []


ALARM = """
import headrace.model.activity
headrace.model.activity.CLEAR_US = 0
app.alarm("nothing serves other", queue="other", ready=0, for_=0)

@app.on("alarm_raised", "alarm_cleared")
def page(events):
    told("page", events)
"""


HANGS = """
app.alarm("nothing serves other", queue="other", ready=0, for_=0)

@app.on("failed")
def first(events):
    told("first", events)
    while os.path.exists("hold"):
        time.sleep(0.01)

@app.on("failed")
def second(events):
    told("second", events)
    while os.path.exists("hold"):
        time.sleep(0.01)
"""


def test_hooks_that_hang_delay_no_alarm(stage: Stage) -> None:
    hold = stage.program.directory / "hold"
    hold.touch()
    stage.start(HANGS)
    stage.held("first", "second")
    stage.fail()
    # They have all places of built-in jobs.
    eventually(lambda: stage.told("first") and stage.told("second"), 60)
    stage.program("enqueue", "tasks.work", "--queue", "other")
    eventually(lambda: stage.app.events.page(["alarm_raised"]).rows, 25)
    assert [one.state for one in (*stage.own("first"), *stage.own("second"))] == ["running", "running"]
    hold.unlink()


def test_an_alarm_reaches_a_hook_and_is_listed(stage: Stage) -> None:
    assert "no worker looked at an alarm" in stage.program("alarms", "list").err
    stage.start(ALARM)
    stage.held("page")
    stage.program("enqueue", "tasks.work", "--queue", "other")

    def kinds() -> list[str]:
        return [one.kind for one in stage.told("page")]

    eventually(lambda: kinds() == ["alarm_raised"], 60)
    (shown,) = stage.program("alarms", "list", "--json").lines
    assert (shown["alarm"], shown["figure"]) == ("nothing serves other", 1.0)
    assert shown["raised"]
    assert "ready of other above 0 for 0 s" in stage.program("alarms", "list").out
    stage.program("queues", "purge", "other", "--yes")
    eventually(lambda: kinds() == ["alarm_raised", "alarm_cleared"], 60)
    found: Any = stage.program("alarms", "list", "--json").json
    assert found["raised"] is None
