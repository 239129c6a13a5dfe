"""The names that the package itself gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

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


def test_it_works_from_a_zip_file(tmp_path: Path) -> None:
    package = Path(headrace.__file__).parent
    with ZipFile(tmp_path / "headrace.zip", "w") as archive:
        for file in (*package.rglob("*.py"), *package.rglob("*.lua")):
            archive.write(file, file.relative_to(package.parent))
    code = """
import headrace
from headrace.dashboard import Dashboard
from headrace.protocol.script import load
load('enqueue')
try:
    Dashboard(headrace.Headrace("redis://unused"))
except headrace.errors.MissingExtra as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path / "headrace.zip")}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert run.stderr == ""
    assert re.fullmatch(
        r"the dashboard needs its files in a folder, not .*headrace.zip/.*: pip install .*\n", run.stdout
    )
