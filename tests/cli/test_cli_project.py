"""One private server for a project, from wherever in it a command is started; and none for a command that only looks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import embedded
from tests.commands import Commands

pytestmark = pytest.mark.system

LOOKS = [
    ["jobs", "list"],
    ["jobs", "count"],
    ["jobs", "show", "0" * 21],
    ["jobs", "logs", "0" * 21],
    ["jobs", "result", "0" * 21],
    ["queues", "list"],
    ["workers", "list"],
    ["workers", "show", "host:1"],
    ["workers", "startup"],
    ["workflows", "list"],
    ["workflows", "show", "0" * 21],
    ["stats", "show", "views"],
    ["stats", "task"],
    ["stats", "queue"],
    ["stats", "worker"],
    ["profile", "host:1", "--out", "x.svg"],
]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    project = tmp_path / "shop"
    (project / "src" / "shop").mkdir(parents=True)
    (project / "pyproject.toml").touch()
    yield project
    if (project / ".headrace").exists():
        embedded.stop(project / ".headrace")


def program(directory: Path) -> Commands:
    made = Commands(directory, None)
    made.environment["HEADRACE_EMBEDDED_IDLE_TIMEOUT"] = "0"
    return made


def test_a_worker_shows_no_password_that_the_private_server_made(project: Path) -> None:
    """``unix://:***@`` made its readers look for a password that they had not set."""
    worker = program(project)("worker", "tasks:app", "--burst", "--processes", "1")
    assert f" at unix://{project}/.headrace/valkey.sock\n" in worker.err


def test_all_directories_of_a_project_have_one_server(project: Path) -> None:
    above, below = program(project), program(project / "src" / "shop")
    assert below("server", "path").out == above("server", "path").out == f"{project / '.headrace'}\n"
    below("server", "start")
    id = above.enqueue("tasks.add", "1")
    assert below("jobs", "list", "--json").lines[0]["id"] == id
    link = project.parent / "link"
    link.symlink_to(project / "src")
    assert program(link)("server", "path").out == f"{project / '.headrace'}\n"
    assert not (project / "src" / "shop" / ".headrace").exists()


def test_a_program_in_a_directory_of_the_project_joins_its_server(project: Path) -> None:
    below = program(project / "src" / "shop")
    below("server", "start")
    code = "from tasks import app, add; print(add.enqueue(1).id)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=below.directory,
        env=below.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert program(project)("jobs", "list", "--json").lines[0]["id"] == run.stdout.strip()


def test_a_command_that_looks_starts_no_server(project: Path) -> None:
    headrace = program(project / "src" / "shop")
    for arguments in LOOKS:
        said = headrace(*arguments, code=3).fault
        assert said.startswith(f"no private server runs for {project} ({project / '.headrace'}): a worker or a program")
        assert "`headrace server start`" in said
    assert not (project / ".headrace").exists()


def test_jobs_of_a_server_that_has_ended_are_not_forgotten(project: Path) -> None:
    headrace = program(project)
    id = headrace.enqueue("tasks.add", "1")
    headrace("server", "stop")
    assert "its jobs are kept" in headrace("jobs", "list", code=3).fault
    assert headrace("jobs", "list", "--json", code=3).out == ""
    headrace("server", "start")
    assert headrace("jobs", "list", "--json").lines[0]["id"] == id


def test_a_url_needs_no_private_server(project: Path) -> None:
    said = program(project)(
        "jobs", "list", "--url", f"unix://{project / 'absent'}", code=3, HEADRACE_TIMEOUT="0.1"
    ).fault
    assert "is the server running?" in said


def test_a_directory_that_was_removed_is_told(project: Path) -> None:
    headrace = program(project / "src")
    process = subprocess.run(
        [sys.executable, "-c", "import os, shutil, subprocess, sys; shutil.rmtree(os.getcwd());"
         "sys.exit(subprocess.run([sys.executable, '-m', 'headrace', 'jobs', 'list']).returncode)"],
        cwd=headrace.directory, env=headrace.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the current directory was removed" in process.stderr
    assert process.returncode in (2, 3)
    assert not (project / "src").exists()


def test_a_project_that_is_removed_as_a_whole_is_not_made_again(project: Path) -> None:
    headrace = program(project / "src")
    headrace("server", "start")
    shutil.rmtree(project)
    (project / "src").mkdir(parents=True)
    said = headrace("jobs", "list", code=3).fault
    assert f"no private server runs for {project / 'src'}" in said, "nothing marks a project any more"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_a_directory_that_another_user_planted_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    planted, mine = tmp_path / ".headrace", tmp_path / "mine"
    planted.mkdir()
    mine.mkdir()
    os.chown(planted, 12345, 12345)
    assert program(mine)("server", "path").out == f"{mine / '.headrace'}\n"


def test_a_url_and_a_directory_on_one_command_line_are_refused(project: Path, tmp_path: Path) -> None:
    for command in (("jobs", "count"), ("enqueue", "tasks.add", "1", "--app", "tasks:app"), ("worker", "tasks:app")):
        fault = program(project)(*command, "--url", "unix:///production", "--dir", str(tmp_path), code=2).fault
        assert "--url and --dir each name a server: give one of them" in fault


def test_a_directory_on_the_command_line_wins_over_the_url_of_the_environment(project: Path, tmp_path: Path) -> None:
    headrace = program(project)
    # A server outlives the worker that started it for the command that looks for the result.
    headrace.environment |= {"HEADRACE_URL": "unix:///production", "HEADRACE_EMBEDDED_IDLE_TIMEOUT": "60"}
    data = tmp_path / "data"
    assert f"({data})" in headrace("jobs", "count", "--dir", str(data), code=3).fault
    try:
        id = headrace("enqueue", "tasks.add", "1", "--app", "tasks:app", "--dir", str(data)).out.strip()
        headrace("worker", "tasks:app", "--burst", "--processes", "1", "--dir", str(data))
        assert headrace("jobs", "result", id, "--dir", str(data)).json == 2
    finally:
        embedded.stop(data)
