"""Headrace as a backend of Django's tasks, over the backport of them where Django itself has none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.databases.django_project import Project

pytestmark = pytest.mark.system

TASKS = """
import asyncio
from PACKAGE import task
from PACKAGE.signals import task_enqueued, task_started, task_finished
from django.dispatch import receiver

@receiver([task_enqueued, task_started, task_finished])
def note(sender, task_result, **_):
    with open("signals", "a") as file:
        print(sender.__name__, task_result.id, task_result.status, file=file)

@task
def add(a, b=1):
    return {"sum": (a + b,)}

@task(takes_context=True, queue_name="other", priority=7)
def which(context):
    return [context.attempt, context.task_result.id]

@task
async def wait(n):
    await asyncio.sleep(0)
    return n

@task
def fail():
    raise ValueError("boom")

def no_task():
    pass
"""
ENQUEUE = """
import asyncio, datetime, json
from django.utils import timezone
from PACKAGE import task_backends, TaskResultStatus
from PACKAGE.exceptions import TaskResultDoesNotExist, TaskResultMismatch
from shop.tasks import *
backend = task_backends["default"]
flags = [backend.supports_defer, backend.supports_async_task, backend.supports_get_result, backend.supports_priority]
found = [add.enqueue(1, b=2), which.enqueue(), wait.enqueue(3), fail.enqueue(), asyncio.run(add.aenqueue(4))]
later = add.using(run_after=timezone.now() + datetime.timedelta(hours=1)).enqueue(5)
states = [one.status for one in found]
assert found[0] == add.get_result(found[0].id)
errors = []
for ask in (lambda: add.get_result("nothing"), lambda: which.get_result(found[0].id)):
    try:
        ask()
    except (TaskResultDoesNotExist, TaskResultMismatch) as error:
        errors.append(type(error).__name__)
print(json.dumps([flags, states, [one.id for one in found], later.id, errors]))
"""
READ = """
import asyncio, json, sys
from shop.tasks import *
ids = json.loads(IDS)
results = [task.get_result(id) for task, id in zip((add, which, wait, fail, add), ids[:5])]
again = asyncio.run(add.aget_result(ids[0]))
later = add.get_result(ids[5])
print(json.dumps([
    [[one.status, one.attempts, one.return_value if one.status == "SUCCESSFUL" else None] for one in results],
    again.return_value, later.status, later.attempts,
    results[3].errors[0].exception_class.__name__, "boom" in results[3].errors[0].traceback,
    [one.started_at is not None and one.finished_at is not None for one in results],
    [results[1].task.priority, results[1].task.queue_name, results[0].args, results[0].kwargs],
]))
"""


@pytest.fixture(params=["django.tasks", "django_tasks"])
def package(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not here: Django has it from 6.0 on, which needs Python 3.12")
    return str(request.param)


def test_a_task_of_django_runs_as_a_job(tmp_path: Path, url: str, package: str) -> None:
    name = "HeadraceBackend" if package == "django.tasks" else "BackportBackend"
    backend = {"BACKEND": f"headrace.contrib.django.tasks_backend.{name}", "QUEUES": []}
    site = Project(tmp_path, url, TASKS={"default": backend})
    site.write("shop/tasks", TASKS.replace("PACKAGE", package))
    flags, states, ids, later, errors = site.python(ENQUEUE.replace("PACKAGE", package))
    assert flags == [True] * 4
    assert states == ["READY"] * 5
    assert errors == ["TaskResultDoesNotExist", "TaskResultMismatch"]
    site.manage("headrace", "worker", "--burst", "--processes", "1", "--queues", "default,other")
    read: Any = site.python(READ.replace("IDS", repr(json.dumps([*ids, later]))))
    results, again, state, attempts, error, told, times, asked = read
    assert results == [
        ["SUCCESSFUL", 1, {"sum": [3]}],
        ["SUCCESSFUL", 1, [1, ids[1]]],
        ["SUCCESSFUL", 1, 3],
        ["FAILED", 1, None],
        ["SUCCESSFUL", 1, {"sum": [5]}],
    ]
    assert (again, state, attempts, error, told) == ({"sum": [3]}, "READY", 0, "ValueError", True)
    assert times == [True] * 5
    assert asked == [7, "other", [1], {"b": 2}]
    signals = [line.split() for line in (tmp_path / "signals").read_text().splitlines()]
    assert [state for sender, id, state in signals if id == ids[0]] == ["READY", "RUNNING", "SUCCESSFUL"]
    assert [state for sender, id, state in signals if id == ids[3]] == ["READY", "RUNNING", "FAILED"]
    assert {sender for sender, _, _ in signals} == {name}


def test_only_tasks_of_django_are_run(tmp_path: Path, url: str, package: str) -> None:
    name = "HeadraceBackend" if package == "django.tasks" else "BackportBackend"
    backend = {"BACKEND": f"headrace.contrib.django.tasks_backend.{name}", "QUEUES": []}
    site = Project(tmp_path, url, TASKS={"default": backend})
    site.write("shop/tasks", TASKS.replace("PACKAGE", package))
    code = "import json; from headrace.contrib.django.tasks_backend import run; "
    code += "print(json.dumps(run.enqueue('shop.tasks.no_task', 'default', [], {}).id))"
    id = site.python(code)
    site.manage("headrace", "worker", "--burst", "--processes", "1")
    assert "is not a task of Django" in site.manage("headrace", "jobs", "show", id)
