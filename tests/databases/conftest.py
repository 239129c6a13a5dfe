"""Django in this process: two databases in files, one model, the apps of a small project."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import Headrace


@pytest.fixture(scope="session")
def django_site() -> Iterator[Any]:
    """Django is set up once for a process."""
    import django
    from django.conf import settings

    with tempfile.TemporaryDirectory() as directory:
        engine = "django.db.backends.sqlite3"
        settings.configure(
            DATABASES={
                name: {"ENGINE": engine, "NAME": str(Path(directory) / f"{name}.db"), "OPTIONS": {"timeout": 60}}
                for name in ("default", "other")
            },
            INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "headrace.contrib.django"],
            HEADRACE={"URL": "redis://nowhere.invalid:1", "NAMESPACE": "site"},
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            SECRET_KEY="test",
            USE_TZ=True,
            LOGGING_CONFIG=None,
        )
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        for name in ("default", "other"):
            call_command("migrate", database=name, verbosity=0)
        yield SimpleNamespace(directory=directory, pid=os.getpid())
        connections.close_all()


@pytest.fixture
def shop(django_site: Any, url: str) -> Iterator[Headrace]:
    """An application that is tied to Django, with a task ``fetch``."""
    from django.db import connections

    from headrace.contrib import django as tie

    with Headrace(url, timeout=20) as app:
        tie.install(app)
        app.task(name="fetch")(fetch)
        yield app
    for connection in connections.all():
        assert not connection.in_atomic_block
        connection.close()


@pytest.fixture
def app(url: str, engine: Any) -> Iterator[Headrace]:
    """An application that is tied to the module's engine of SQLAlchemy, with a task ``fetch``."""
    from headrace.contrib import sqlalchemy as tie

    with Headrace(url, timeout=20) as made:
        tie.install(made, engine)
        made.task(name="fetch")(fetch)
        yield made


def fetch(n: int = 0, *, name: str = "") -> int:
    return n
