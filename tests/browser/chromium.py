"""The system's Chromium, and a dashboard for it to look at, in a process of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.nursery import headrace
from tests.processes import announced

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# A host of no encrypted connection, which a browser trusts less than localhost.
NAME = "board.example"
TOKEN = "browser-token-0123456789"


def executable() -> str | None:
    """Where a browser is: ``HR_CHROMIUM``, or on the path."""
    named = os.environ.get("HR_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


# Seconds after which a store that does not answer counts as away; a page may take five.
PATIENT = "from headrace.dashboard import dashboard_site; dashboard_site.SILENCE = 5.0"


@contextmanager
def served(url: str, directory: Path, *options: str, prelude: str = PATIENT) -> Iterator[str]:
    """``headrace dashboard`` on a port of its own; yields its address without a slash at the end."""
    said = directory / "dashboard.txt"
    environ = os.environ | {"HEADRACE_URL": url, "HEADRACE_DASHBOARD_TOKEN": TOKEN}
    with said.open("w") as out:
        process = headrace(
            environ, "dashboard", "--listen", "0", *options,
            purpose="command", prelude=prelude, stdout=out, stderr=out, directory=directory,
        )  # fmt: skip

    with announced(process, said, r"dashboard (http://\S+)/\n") as address:
        yield address
