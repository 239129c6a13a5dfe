"""The example applications, started by their targets: from a request to the result of its job."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

Request = Callable[..., Any]


def made(root: Path, place: Path, target: str, *variables: str) -> list[str]:
    """The command that makes the target in a copy of the examples, with this interpreter's programs."""
    shutil.copytree(root / "examples", place / "examples")
    shutil.copy(root / "Makefile", place)
    return ["make", "-o", "setup", f"BIN={Path(sys.executable).parent}", *variables, target]


def environment(url: str) -> dict[str, str]:
    # PYTHONPATH: tests/lean hides modules that FastAPI imports.
    ours = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"HEADRACE_URL": url}


@contextmanager
def started(root: Path, place: Path, target: str, url: str) -> Generator[Request]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = made(root, place, target, f"PORT={port}")
    # The worker and the site hold the end of a pipe: they outlive make, and a worker takes the jobs of the next test.
    ended, held = os.pipe()
    process = subprocess.Popen(command, cwd=place, env=environment(url), start_new_session=True, pass_fds=[held])
    os.close(held)

    def ask(path: str, data: bytes | None = None, **headers: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            assert process.poll() is None, "the application has ended"
            return None

    try:
        eventually(lambda: ask("/") is not None, timeout=90)
        yield ask
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        assert select.select([ended], [], [], 60)[0], "the worker or the site runs still"
        os.close(ended)


def test_the_shop_writes_the_invoice_of_an_order(root: Path, tmp_path: Path, url: str) -> None:
    with started(root, tmp_path, "example-django", url) as ask:
        number = ask("/orders", b"item=tea")["order"]
        eventually(lambda: ask(f"/orders/{number}")["invoice"] == f"invoice {number}: tea", timeout=90)


def test_the_service_counts_for_its_user_only(root: Path, tmp_path: Path, url: str) -> None:
    with started(root, tmp_path, "example-fastapi", url) as ask:
        job = ask("/counts", b'"one two one"', user="ada", **{"Content-Type": "application/json"})["id"]
        eventually(lambda: ask(f"/jobs/{job}", user="ada")["state"] == "succeeded", timeout=90)
        assert ask(f"/counts/{job}", user="ada") == {"one": 2, "two": 1}
        assert ask(f"/counts/{job}", user="eve") == ask(f"/jobs/{job}", user="eve") == 404


def test_the_site_greets_with_its_configuration(root: Path, tmp_path: Path, url: str) -> None:
    with started(root, tmp_path, "example-flask", url) as ask:
        job = ask("/greetings", b"name=ada")["id"]
        done = {"state": "succeeded", "greeting": "hello, ada"}
        eventually(lambda: ask(f"/greetings/{job}") == done, timeout=90)


def test_the_pipeline_prints_its_totals(root: Path, tmp_path: Path, url: str) -> None:
    command = made(root, tmp_path, "example-pipeline")
    text = subprocess.check_output(command, cwd=tmp_path, env=environment(url), text=True, timeout=180)
    assert [line.split() for line in text.splitlines()] == [["cake", "7"], ["coffee", "1"], ["tea", "7"]]


def test_each_application_has_less_than_200_lines(root: Path) -> None:
    for folder in (path for path in (root / "examples").iterdir() if path.is_dir()):
        assert sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py")) < 200
