"""The app of Django: imports the tasks of the project when Django is ready.

Django looks for its configuration in a module of this name.
"""

# Django has no types.
# pyright: basic
from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

from django.apps import AppConfig, apps
from django.conf import settings
from django.utils.module_loading import module_has_submodule

TASKS = "tasks"


class HeadraceConfig(AppConfig):
    """``headrace.contrib.django``."""

    name = "headrace.contrib.django"
    label = "headrace"
    verbose_name = "Headrace"

    def ready(self) -> None:
        """Import ``tasks.py`` of each app, so that its tasks are registered. Raises what one raises, with a note."""
        if any("headrace.contrib.django" in str(one.get("BACKEND")) for one in getattr(settings, "TASKS", {}).values()):
            import_module("headrace.contrib.django.tasks_backend")
        with _set_up():
            for config in apps.get_app_configs():
                if not module_has_submodule(config.module, TASKS):
                    continue
                try:
                    import_module(f"{config.name}.{TASKS}")
                except Exception as error:
                    error.add_note(f"headrace.contrib.django imports {config.name}.{TASKS} to find its tasks")
                    raise


@contextmanager
def _set_up() -> Generator[None]:
    """Let modules call ``django.setup()``, as those do that ran without Django before: all models are loaded. Without
    this Django refuses: it is not done before the last app is ready.
    """
    before = apps.ready
    apps.ready = True
    try:
        yield
    finally:
        apps.ready = before
