"""A Django project in a directory, as its developers run it: by ``manage.py`` and programs."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.nursery import nursery_of

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
        ended, out, err = self._run("manage", *words, cwd=cwd, **environ)
        assert code is None or ended == code, out + err
        return out + err

    def python(self, code: str, *, failing: bool = False) -> Any:
        """What a program of the project prints, as JSON."""
        self.write("program", "import django\ndjango.setup()\n" + code)
        ended, out, err = self._run("program", DJANGO_SETTINGS_MODULE="settings")
        assert bool(ended) == failing, out + err
        return err if failing else json.loads(out or "null")

    def _run(self, module: str, *words: str, cwd: Path | None = None, **environ: str) -> tuple[int, str, str]:
        """A fork of a process in which Django is imported, which takes half of the processor that an interpreter takes."""
        values = self.environment | environ
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = nursery_of(values, "django").start(
                "tests.databases.forked_django", values, str(self.directory / f"{module}.py"), *words,
                stdout=out, stderr=err, directory=cwd or self.directory,
            )  # fmt: skip
            try:
                ended = process.wait(120)
            except BaseException:
                process.kill()
                raise
            said = [os.pread(stream.fileno(), 1 << 20, 0).decode() for stream in (out, err)]
            return ended, *said

    def tables(self) -> None:
        # The shop has no migrations.
        self.manage("migrate", "--run-syncdb")
