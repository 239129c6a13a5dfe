"""Headrace in a Django project: add ``headrace.contrib.django`` to ``INSTALLED_APPS``, and register tasks with ``app``.

    # shop/tasks.py
    from headrace.contrib.django import app

    @app.task
    def invoice(order_id: int) -> None: ...

``HEADRACE = {"URL": "redis://…"}`` in the settings gives what the environment does not; its keys are the settings of
Headrace in capital letters, and ``AFTER_COMMIT``. ``apps.py`` imports the tasks, ``database.py`` knows transactions and
connections. Needs ``pip install 'headrace[django]'``.
"""

# Django has no types.
# pyright: basic
from __future__ import annotations

from typing import Any

from headrace.app import Headrace
from headrace.errors import MissingExtra, SettingsError

try:
    import django
except ImportError:
    raise MissingExtra("this needs Django: pip install 'headrace[django]'") from None

from django.apps import apps
from django.conf import settings

from headrace.contrib.django import database


def settings_of_project() -> dict[str, Any]:
    """``HEADRACE`` of the project's settings, by the names of Headrace. Raises SettingsError: it has another type."""
    given = getattr(settings, "HEADRACE", {})
    if not isinstance(given, dict):
        raise SettingsError(f'HEADRACE={given!r:.80} cannot be used: write a dictionary, such as {{"URL": ...}}')
    return {str(name).lower(): value for name, value in given.items()}


def _app() -> Headrace:
    given = settings_of_project()
    after_commit = given.pop("after_commit", True)
    made = Headrace(defaults=given)
    database.install(made, after_commit=after_commit)
    return made


#: The application of the project.
app = _app()

if not (apps.ready or apps.loading):
    # A worker that names this module is not a command of manage.py: the supervisor sets Django up, once.
    django.setup()
