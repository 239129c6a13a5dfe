"""``manage.py headrace ...``: the whole command line, for the application and the settings of the project.

Django looks for a command in a module of its name.
"""

# Django has no types.
# pyright: basic
from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from headrace.contrib.django import settings_of_project


class Command(BaseCommand):
    """Hands its words on: options of Django such as ``--settings`` have been read by then."""

    help = "Run a command of Headrace, such as: manage.py headrace worker"

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command that follows ``headrace``, and leave with its exit code."""
        os.environ.setdefault("HEADRACE_APP", "headrace.contrib.django:app")
        # A worker is a program of its own, which imports the project as this one does.
        given = [word.removeprefix("--pythonpath=") for word in argv if word.startswith("--pythonpath=")]
        paths = (*given, str(Path(argv[0]).resolve().parent), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # Not above: the command line imports ties.
        cli: Any = import_module("headrace.cli")
        sessions: Any = import_module("headrace.cli.session")
        sessions.defaults.update(settings_of_project())
        sessions.defaults.pop("after_commit", None)
        cli.main([word for word in argv[2:] if not word.startswith(("--settings=", "--pythonpath="))])

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 - of a caller that has parsed words
        """For ``call_command("headrace", "jobs", "list")``."""
        self.run_from_argv([sys.argv[0], "headrace", *args])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs="*")
