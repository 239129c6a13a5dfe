"""The test kit under pytest-django: each kind of task sees the transaction of the test, in both kinds of drains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.databases.django_project import Project

INI = """
[pytest]
DJANGO_SETTINGS_MODULE = settings
pythonpath = .
headrace_app = headrace.contrib.django:app
asyncio_mode = auto
addopts = -p no:valkey -p no:celery -p no:cacheprovider
"""
TESTS = """
import asyncio
import threading

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from headrace.contrib.django import app
from shop.models import Order
from shop.tasks import note, note_async, note_fork, note_thread

pytestmark = pytest.mark.django_db
TASKS = [note, note_async, note_fork, note_thread]


def names():
    return sorted(Order.objects.values_list("name", flat=True))


@app.task
async def nested(name):
    await sync_to_async(async_to_sync(note_async))(name)


def test_drain(headrace_app):
    Order.objects.create(name="0")
    for n, task in enumerate([*TASKS, nested], 1):
        task.enqueue(str(n))
    assert headrace_app.drain().ends == {"succeeded": 5}
    assert names() == ["0", "1", "2", "3", "4", "5"]


async def test_adrain(headrace_app):
    await Order.objects.acreate(name="0")
    for n, task in enumerate([*TASKS, nested], 1):
        await task.aenqueue(str(n))
    loop = asyncio.get_running_loop()
    assert (await headrace_app.adrain()).ends == {"succeeded": 5}
    assert await sync_to_async(names)() == ["0", "1", "2", "3", "4", "5"]
    assert asyncio.get_running_loop() is loop


async def test_errors_pass(headrace_app):
    with pytest.raises(Order.DoesNotExist):
        await Order.objects.aget(name="none")


@pytest.mark.headrace(mode="inline")
async def test_inline(headrace_app):
    for task in TASKS:
        await task.aenqueue("here")
    assert await Order.objects.acount() == 4


def test_nothing_was_committed():
    assert names() == []
    with connection.cursor() as cursor:
        assert threading.current_thread() is threading.main_thread()


async def test_threads_are_as_before_without_a_kit():
    assert await sync_to_async(threading.current_thread)() is not threading.main_thread()
"""


def test_both_drains_work_in_the_transaction_of_a_test(tmp_path: Path, url: str) -> None:
    project = Project(tmp_path, url)
    project.write("test_shop", TESTS)
    (tmp_path / "pytest.ini").write_text(INI)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_shop.py"],
        cwd=tmp_path, env={**os.environ, **project.environment}, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert "6 passed" in run.stdout, run.stdout
