"""Both type checkers see the argument and result types of tasks, in strict mode."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def mypy(root: Path) -> dict[str, set[int]]:
    # With what it keeps of `make check`: else it reads all of Headrace each time.
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    files = [str(HERE / name) for name in ("accepted.py", "refused.py")]
    done = subprocess.run([*command, *files], cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    found: dict[str, set[int]] = {"accepted.py": set(), "refused.py": set()}
    for name, line in re.findall(r"(\w+\.py):(\d+): error:", done.stdout):
        found.setdefault(name, set()).add(int(line))
    return found


def pyright(root: Path) -> dict[str, set[int]]:
    files = [str(HERE / name) for name in ("accepted.py", "refused.py")]
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, *files]
    environ = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, check=False)
    found: dict[str, set[int]] = {"accepted.py": set(), "refused.py": set()}
    for fault in json.loads(done.stdout)["generalDiagnostics"]:
        if fault["severity"] == "error":
            found.setdefault(Path(fault["file"]).name, set()).add(fault["range"]["start"]["line"] + 1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_type_checker_refuses_what_is_wrong_and_nothing_else(checker: str, root: Path) -> None:
    lines = (HERE / "refused.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    found = mypy(root) if checker == "mypy" else pyright(root)
    assert found == {"accepted.py": set(), "refused.py": marked}
