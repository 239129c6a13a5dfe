"""Run Django's own tests of its tasks on the backend of Headrace: ``python -m tests.databases.upstream_tasks SOURCE``.

``SOURCE`` is the directory of an unpacked source package of Django 6.0 or newer (``pip download --no-binary :all:
--no-deps django``), which needs Python 3.12, or of the package django-tasks. Their tests of the dummy and of the
immediate backend run on ours, which keeps jobs for the one, and runs them in a drain for the other.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

# Tests of what those two backends cannot do or how they keep results, and why they do not hold here.
NOT_OURS = {
    "ImmediateBackendTestCase.test_cannot_get_result": "results are kept",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "results are kept",
    "ImmediateBackendTestCase.test_get_result_from_different_request": "results are kept",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "run_after is supported",
    "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": "a job waits for the commit",
    "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": "a job waits for it",
    "DummyBackendTestCase.test_refresh_result": "changes the list of the dummy backend",
    "DummyBackendTestCase.test_refresh_result_async": "changes the list of the dummy backend",
}
OURS = """
from asgiref.sync import sync_to_async
from headrace.contrib.django import app
from headrace.contrib.django.tasks_backend import BACKEND
from headrace.testing import Kit

kit = Kit(app)

def renew():
    global kit
    kit.close(check=False)
    kit = Kit(app).__enter__()

class DummyBackend(BACKEND):
    results = property(lambda self: [self.get_result(record.id) for record in app.jobs.page("ready", limit=1000)])

    def clear(self):
        renew()

class ImmediateBackend(BACKEND):
    def enqueue(self, task, args, kwargs):
        renew()
        result = super().enqueue(task, args, kwargs)
        kit.drain(raises=False)
        result.refresh()
        return result

    async def aenqueue(self, task, args, kwargs):
        await sync_to_async(renew)()
        result = await super().aenqueue(task, args, kwargs)
        await kit.adrain(raises=False)
        await result.arefresh()
        return result
"""


def main(source: Path, directory: Path) -> int:
    backport = (source / "django_tasks").is_dir()
    package, name = ("django_tasks", "BackportBackend") if backport else ("django.tasks", "HeadraceBackend")
    shutil.copytree(source / "tests" if backport else source / "tests/tasks", directory / "tests", dirs_exist_ok=True)
    modules: list[str] = []
    for path in (directory / "tests").rglob("*.py"):
        text = path.read_text()
        for kind in ("dummy", "immediate"):
            text = text.replace(f"{package}.backends.{kind}", "ours")
        # Django names its package by the path of a task.
        path.write_text(text.replace("tasks.tasks.noop", "tests.tasks.noop"))
        if path.name in ("test_dummy_backend.py", "test_immediate_backend.py", "test_tasks.py"):
            modules.append(".".join(path.relative_to(directory).with_suffix("").parts))
    (directory / "ours.py").write_text(OURS.replace("BACKEND", name))
    sys.path.insert(0, str(directory))
    sys.modules.pop("tests", None)

    import django
    from django.conf import settings

    theirs = vars(import_module("tests.settings")) if backport else {"SECRET_KEY": "test", "USE_TZ": True}
    given = {name: value for name, value in theirs.items() if name.isupper()} | {
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        "INSTALLED_APPS": [*theirs.get("INSTALLED_APPS", ()), "headrace.contrib.django"],
        "HEADRACE": {"DIR": str(directory / "store")},
        "TASKS": {"default": {"BACKEND": "ours.DummyBackend", "QUEUES": []}},
    }
    settings.configure(**given)
    django.setup()
    from django.test.runner import DiscoverRunner

    class Runner(DiscoverRunner):
        def build_suite(self, *args: Any, **options: Any) -> Any:
            suite = super().build_suite(*args, **options)
            kept = unittest.TestSuite(test for test in suite if ".".join(test.id().split(".")[-2:]) not in NOT_OURS)
            print(f"{kept.countTestCases()} tests on ours, {suite.countTestCases() - kept.countTestCases()} left out")
            return kept

    return int(Runner().run_tests(sorted(modules)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(sys.argv[1]).resolve(), Path(made)))
