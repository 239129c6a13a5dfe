"""The names that the package itself gives."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import headrace


def test_a_star_import_gives_every_public_name() -> None:
    given: dict[str, Any] = {}
    exec("from headrace import *", given)
    assert set(headrace._HOMES) <= set(given)
    assert given["Headrace"] is headrace.Headrace


@pytest.mark.parametrize("missing", ["starlette", "jinja2"])
def test_a_dashboard_without_its_extra_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import headrace.dashboard"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert said.splitlines()[-1].endswith(
        f"MissingExtra: the dashboard needs {missing}: pip install 'headrace[dashboard]'"
    )


def test_it_works_without_docstrings() -> None:
    code = "from headrace import *; from headrace.cli import main; main()"
    run = subprocess.run(
        [sys.executable, "-OO", "-c", code, "jobs", "list", "--help"], capture_output=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert b"--queue NAME" in run.stdout
