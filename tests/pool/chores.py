"""What the pools of the tests run. At the top of a module, so that processes can be told by name."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.pool import DeferredResult

state: dict[str, Any] = {}


def double(value: int) -> int:
    return value * 2


def me() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def block(started: Path, release: Path) -> str:
    """Say that it runs, then wait for a file."""
    started.touch()
    while not release.exists():
        time.sleep(0.002)
    return "released"


def note(path: Path, text: str) -> None:
    """Append one line; whole, whoever else writes."""
    with path.open("a") as file:
        file.write(f"{text}\n")


def slow_note(path: Path, text: str, seconds: float) -> None:
    time.sleep(seconds)
    note(path, text)


def fail(text: str) -> None:
    raise ValueError(text)


def die(code: int) -> None:
    os._exit(code)


def die_beside_a_program(code: int) -> None:
    """Die while a program runs on that got whatever can be inherited."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    os._exit(code)


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    raise SystemExit(3)


def set_up(value: str) -> None:
    state["value"] = value


def broken_set_up() -> None:
    raise RuntimeError("no licence")


def broken_once(path: Path) -> None:
    if not path.exists():
        path.touch()
        raise RuntimeError("not yet")


def recall() -> object:
    return state.get("value")


def unpicklable() -> Callable[[], None]:
    return lambda: None


class Awkward(Exception):
    """Can be pickled and not read back."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def raise_awkward() -> None:
    raise Awkward("one", "two")


def answer_later(value: str, started: Path, release: Path) -> DeferredResult[str]:
    later: DeferredResult[str] = DeferredResult()

    def wait() -> None:
        block(started, release)
        later.reply(value)

    # A daemon: nothing but the pool waits for it, and a test that failed before its release does not keep the run.
    threading.Thread(target=wait, daemon=True).start()
    return later


def echo(data: bytes) -> bytes:
    return data


def with_grandchild(path: Path) -> None:
    """Start a process that lives on, write down both, and hang, deaf to a friendly end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pid = os.fork()
    if not pid:
        time.sleep(600)
        os._exit(0)
    path.with_suffix(".part").write_text(f"{os.getpid()} {child.pid} {pid}")
    path.with_suffix(".part").rename(path)
    time.sleep(600)


def threads_at_start() -> int:
    """How many threads a process of the pool has."""
    return threading.active_count()


def parent_name() -> str:
    parent = multiprocessing.parent_process()
    return parent.name if parent else ""


def clean_up_at_exit(path: Path) -> None:
    """An initializer whose work is to be undone at the end."""
    atexit.register(note, path, str(os.getpid()))


def scribble() -> None:
    """Write rubbish into each socket that this process has."""
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"rubbish\n")
        except OSError:
            continue
    time.sleep(600)


def deaf_to_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def sleep_and_clean_up(path: Path) -> None:
    """Start a program that lives on, write down both, sleep, and say so when it is interrupted."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (path / "part").write_text(f"{os.getpid()} {child.pid}")
        (path / "part").rename(path / "pids")
        time.sleep(600)
    finally:
        (path / "cleaned").touch()
        child.kill()
        child.wait()


def sleep_for_long(path: Path) -> None:
    (path / "pids").touch()
    time.sleep(600)
