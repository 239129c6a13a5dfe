"""Streams that cannot be written: a full disk, a reader that has left. Exit codes count, and no traceback shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.session import ExitCode
from headrace.worker.health_stamps import HealthStamps
from tests.program import Program

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's"),
]
UNWRITTEN = "the output cannot be written: No space left on device; what was printed is not whole"
# What typer answers itself, too.
WORDS = (({"PYTHONUNBUFFERED": "1"}, ("stats", "rules")), ({"PYTHONUNBUFFERED": ""}, ("--help",)))


def run(headrace: Program, *words: str, **streams: int) -> tuple[int, str]:
    """The exit code, and what was said on stderr if that goes nowhere else."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE} | streams
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        cwd=headrace.directory, env=headrace.environment, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, stdout=streams["stdout"], stderr=streams["stderr"],
    )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(("environment", "words"), WORDS)
def test_a_disk_without_room_for_the_output_is_told_in_one_line(
    headrace: Program, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    headrace.environment |= environment
    with Path("/dev/full").open("w") as full:
        assert run(headrace, *words, stdout=full.fileno()) == (ExitCode.FAILED, f"headrace: {UNWRITTEN}\n")
        code, said = run(headrace, "jobs", "count", "--json", stdout=full.fileno())
    assert json.loads(said) == {"error": UNWRITTEN, "type": "OperationFault", "exit": code}
    assert code == ExitCode.FAILED


@pytest.mark.parametrize(("environment", "words"), WORDS)
def test_a_reader_that_has_left_ends_a_command_in_silence(
    headrace: Program, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    headrace.environment |= environment
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(headrace, *words, stdout=writer) == (ExitCode.PIPE, "")
    finally:
        os.close(writer)


def test_an_error_that_cannot_be_told_keeps_its_exit_code(headrace: Program) -> None:
    with Path("/dev/full").open("w") as full:
        assert run(headrace, "jobs", "show", "zzz", stderr=full.fileno())[0] == ExitCode.FAILED
        assert run(headrace, "jobs", "list", "--limit", "0", stderr=full.fileno())[0] == ExitCode.USAGE
        # It has a remark for people.
        assert run(headrace, "acts", stderr=full.fileno())[0] == ExitCode.OK


def test_a_probe_whose_reason_cannot_be_written_has_its_verdict(headrace: Program) -> None:
    headrace.environment["TMPDIR"] = str(headrace.directory)
    reader, gone = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full:
        for stream in (full.fileno(), gone):
            assert run(headrace, "health", stdout=stream, stderr=stream)[0] == 1, "no worker runs"
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TMPDIR", str(headrace.directory))
                stamps = HealthStamps()
            try:
                assert run(headrace, "health", "--json", stdout=stream) == (0, ""), "a worker that starts is healthy"
            finally:
                stamps.end()
    os.close(gone)
