"""Looking at processes that may end at any moment: whoever has ended does not live, and has nothing below it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.deadline import eventually


def lives(process: psutil.Process | int) -> bool:
    """Whether it runs still: as itself, not as a reused number, and not as a zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def below(process: psutil.Process | int, *, recursive: bool = True) -> list[psutil.Process]:
    """The living processes below it; none once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process) if isinstance(process, int) else process
        return [child for child in process.children(recursive=recursive) if lives(child)]
    return []


def kill_all(pid: int) -> None:
    """Kill it and all that is below it, as a machine that goes down does."""
    for process in [psutil.Process(pid), *below(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def group_of(pid: int) -> int:
    """Its process group; 0 once it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


def dispatcher_of(worker: int) -> psutil.Process | None:
    """The dispatcher of a worker's image, which stays in the group of that; its runners lead groups of their own.

    None where there is none, or where it cannot be told from what was forked this moment: then look again.
    """
    group = group_of(worker)
    found = [child for child in below(worker, recursive=False) if group_of(child.pid) == group]
    return found[0] if len(found) == 1 else None


def where(pid: int) -> str:
    """What this process and those below it wait for, and which signals they block: for the message of a failed test."""
    told: list[str] = []
    for process in (pid, *(child.pid for child in below(pid))):
        proc = Path(f"/proc/{process}")
        with contextlib.suppress(OSError):
            lines = (proc / "status").read_text().splitlines()
            status = [
                " ".join(line.split()) for line in lines if line.startswith(("State", "Threads", "Sig", "ShdPnd"))
            ]
            told.append(f"{process} in {(proc / 'wchan').read_text()}: {', '.join(status)}")
    return "\n".join(told)


@contextlib.contextmanager
def site(directory: Path, *command: str, environ: Mapping[str, str]) -> Generator[str]:
    """A web site that Python runs in a process of its own; yields the address that it prints."""
    said = directory / "said.txt"
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=directory, env=environ, stdout=out, stderr=subprocess.STDOUT
        )
    with announced(process, said, r"(http://127.0.0.1:[1-9]\d*)") as address:
        yield address


@contextlib.contextmanager
def announced(process: Any, said: Path, pattern: str) -> Generator[str]:
    """Yield what a process writes into a file, by a pattern with one group; interrupt it at the end."""

    def told() -> str:
        assert process.poll() is None, said.read_text()
        found = re.search(pattern, said.read_text())
        return found[1] if found else ""

    try:
        yield eventually(told, 60, what=f"its output has {pattern}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
