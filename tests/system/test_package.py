"""What a user installs: the wheel that is built from the source distribution, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

TASKS = """
from headrace import Headrace

app = Headrace()

@app.task
def add(x: int, y: int) -> int:
    return x + y
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.system
def test_the_wheel_of_the_source_distribution_runs_a_job(root: Path, tmp_path: Path, url: str, namespace: str) -> None:
    build = (sys.executable, "-m", "hatchling", "build")
    run(*build, "-t", "sdist", "-d", tmp_path, cwd=root)
    (source,) = tmp_path.glob("*.tar.gz")
    run("tar", "-xzf", source, "-C", tmp_path, cwd=tmp_path)
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    run(*build, "-t", "wheel", "-d", tmp_path, cwd=unpacked)
    (wheel,) = tmp_path.glob("*.whl")
    # Its packages are those of this interpreter, but not the project, which stands there as a link to this checkout.
    place = tmp_path / "fresh"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps")
    run(*pip, "--disable-pip-version-check", wheel, cwd=tmp_path)
    # A line of a .pth file is a directory; only a directory that is on the path by itself has its own .pth files read.
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "tasks.py").write_text(TASKS)
    headrace = place / "bin" / "headrace"
    where = run(python, "-c", "import headrace; print(headrace.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(place)
    assert run(headrace, "--version", cwd=tmp_path).split()[1] in wheel.name
    server = ("--url", url, "--namespace", namespace)
    id = run(headrace, "enqueue", "tasks.add", 40, 2, *server, cwd=tmp_path).split()[-1]
    run(headrace, "worker", "tasks:app", "--burst", *server, cwd=tmp_path)
    assert run(headrace, "jobs", "result", id, *server, cwd=tmp_path).strip() == "42"
