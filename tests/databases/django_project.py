"""A Django project in a directory, as its developers run it: by ``manage.py``, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
MODELS = """
from django.db import models

class Order(models.Model):
    name = models.CharField(max_length=100)
    pid = models.IntegerField(default=0)
"""
TASKS = """
import os
from headrace.contrib.django import app
from shop.models import Order

@app.task
def note(name: str) -> int:
    return Order.objects.create(name=name, pid=os.getpid()).pk

@app.task(kind="thread")
def note_thread(name: str) -> None:
    Order.objects.create(name=name)

@app.task(kind="fork")
def note_fork(name: str) -> None:
    Order.objects.create(name=name)

@app.task
async def note_async(name: str) -> None:
    await Order.objects.acreate(name=name)
"""


class Project:
    """A project with one app, ``shop``.

    Attributes:
        directory: of its ``manage.py``.
        environment: of its programs.
    """

    def __init__(self, directory: Path, url: str, database: dict[str, Any] | None = None, **settings: Any) -> None:
        self.directory = directory
        self.environment = {**os.environ, "COLUMNS": "100", "HEADRACE_TIMEOUT": "20"}
        (directory / "shop").mkdir()
        sqlite = {
            "ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "db.sqlite3"), "OPTIONS": {"timeout": 60}
        }  # fmt: skip
        given = {
            "SECRET_KEY": "test",
            "INSTALLED_APPS": [
                "django.contrib.contenttypes", "django.contrib.auth", "shop", "headrace.contrib.django"
            ],
            "DATABASES": {"default": database or sqlite},
            "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
            "HEADRACE": {"URL": url, "NAMESPACE": "shop"},
            "USE_TZ": True,
        } | settings  # fmt: skip
        self.write("settings", "\n".join(f"{name} = {value!r}" for name, value in given.items()))
        self.write("manage", MANAGE)
        self.write("shop/__init__", "")
        self.write("shop/models", MODELS)
        self.write("shop/tasks", TASKS)

    def write(self, module: str, text: str) -> None:
        (self.directory / f"{module}.py").write_text(text)

    def manage(self, *words: str, code: int | None = 0, cwd: Path | None = None, **environ: str) -> str:
        """Run a command; what it printed, errors too."""
        run = subprocess.run(
            [sys.executable, str(self.directory / "manage.py"), *words],
            cwd=cwd or self.directory, env=self.environment | environ, text=True, timeout=120, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert code is None or run.returncode == code, run.stdout
        return run.stdout

    def python(self, code: str, *, failing: bool = False) -> Any:
        """What a program of the project prints, as JSON."""
        prelude = "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'settings'; import django; django.setup()\n"
        run = subprocess.run(
            [sys.executable, "-c", prelude + code],
            cwd=self.directory, env=self.environment, text=True, timeout=120, check=False, capture_output=True,
        )  # fmt: skip
        assert bool(run.returncode) == failing, run.stdout + run.stderr
        return run.stderr if failing else json.loads(run.stdout or "null")

    def tables(self) -> None:
        # The shop has no migrations.
        self.manage("migrate", "--run-syncdb")
