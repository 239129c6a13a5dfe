"""A throwaway child of the supervisor tries what might be done before the fork, and says what came of it.

It must do no harm: imports do what each job's import did anyway; functions are called behind a closed door, where the
kernel opens no file and no socket. See docs/design/warmth.md.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn

import msgspec

from headrace.worker.forking import leak_check
from headrace.worker.forking.process_ties import die_with
from headrace.worker.messages import Judged, Rehearse
from headrace.worker.preload.candidates import Suspect, suspects

# A rehearsal that takes longer (seconds) is ended by the kernel.
PATIENCE = 60
# A second call that takes more than this share of the first was work, not set-up; or more than this (seconds).
AGAIN, QUICK = 0.1, 0.0002
# A first call that takes less than this share of what jobs lost below it is not what they lost it in: a narrower
# function was tried before it, and had done it.
ENOUGH = 0.1

WARM = "warm"
WORK = "it takes its time at each call: that is work, not set-up"
UNRELATED = "it is not what takes the time"
FAILED = "its import failed"

# Python's audit events that need no descriptor, and change what is outside of this process.
_EFFECTS = frozenset((
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.mkdir",
    "os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.startfile", "os.symlink",
    "os.system", "os.truncate", "os.unsetenv", "os.utime", "signal.pthread_kill", "subprocess.Popen",
    "_thread.start_new_thread", "_posixsubprocess.fork_exec",
))  # fmt: skip
_OPENS = frozenset(("open", "socket.__new__", "socket.connect", "sqlite3.connect", "os.listdir", "os.scandir"))

_lines = msgspec.json.Encoder()
_judged = msgspec.json.Decoder(Judged)


class Effect(BaseException):
    """A function tried something that a rehearsal must not do."""


def begin(request: Rehearse, never: Collection[object]) -> tuple[int, int]:
    """Fork a rehearsal; its process and the descriptor that says what it found until it ends.

    Args:
        never: functions that must not be tried.

    Raises:
        OSError: the system has no room for it now.
    """
    read, write = os.pipe()
    supervisor = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if not pid:
        _be(request, never, write, supervisor)
    # A group of its own, set by both: in the supervisor's there is nobody but the dispatcher.
    with suppress(OSError):
        os.setpgid(pid, pid)
    os.close(write)
    os.set_blocking(read, False)
    return pid, read


def read(said: bytes) -> list[Judged]:
    """What a rehearsal said before it ended; whatever it was trying then ended it."""
    judged: list[Judged] = []
    trying = ""
    for line in said.split(b"\n"):
        with suppress(msgspec.MsgspecError):
            one = _judged.decode(line)
            if one.word == "trying":
                trying = one.name
            else:
                judged.append(one)
                trying = ""
    if trying:
        judged.append(Judged(trying, "it ends the process that does it", 0, ()))
    return judged


def _be(request: Rehearse, never: Collection[object], write: int, supervisor: int) -> NoReturn:
    try:
        os.setpgid(0, 0)
        die_with(supervisor)
        _become_nobody(write)

        def say(one: Judged) -> None:
            os.write(write, _lines.encode(one) + b"\n")

        if _rehearse_imports(request.imports, say):
            found = suspects(request.functions, never)
            _close_the_door()
            for suspect in found:
                say(Judged(suspect.name, "trying", 0, ()))
                say(_rehearsed(suspect))
    finally:
        os._exit(0)


def _become_nobody(write: int) -> None:
    """Let go of everything that the supervisor has: its garbage, its signals, its descriptors, its patience."""
    # Finalizers of what it has not collected yet would look like deeds of the function that runs then.
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/dev/fd"):  # noqa: PTH208 - names of descriptors, no paths
        if int(name) > 2 and int(name) != write:
            with suppress(OSError):
                os.close(int(name))


def _rehearse_imports(names: list[str], say: Callable[[Judged], None]) -> bool:
    """Import modules; False when one left something behind, so that nothing after it can be judged."""
    for name in names:
        say(Judged(name, "trying", 0, ()))
        before, began = leak_check.look(), time.monotonic_ns()
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, only says that it cannot be imported here
            say(Judged(name, f"{FAILED}: {error!r}"[:200], 0, ()))
            continue
        cost = (time.monotonic_ns() - began) // 1000
        threads, sockets = leak_check.threads_since(before), leak_check.sockets_since(before)
        if threads or sockets:
            does = f"starts {threads[0]}" if threads else f"opens {sockets[0]}"
            say(Judged(name, f"its import {does}"[:200], cost, ()))
            return False
        say(Judged(name, WARM, cost, ()))
    return True


def _close_the_door() -> None:
    # What is open stays so: the one descriptor by which we speak. Nothing can be opened any more, by whatever code.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


class _Watch:
    """What a function tried that it must not, while it ran.

    Attributes:
        tried: in words; empty when nothing was.
    """

    def __init__(self) -> None:
        self.tried = ""
        self._on = False
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _EFFECTS:
            self.tried = self.tried or f"it does {event}"
            raise Effect(event)
        if event in _OPENS:
            what = f" ({arguments[0]})" if event == "open" and arguments else ""
            self.tried = (
                self.tried or f"it opens files or sockets{what}: put it into an on_preload hook if all may share it"
            )

    @contextmanager
    def on(self) -> Generator[None]:
        before = random.getstate()
        asked = _Asked()
        self.tried, self._on = "", True
        try:
            with asked.on():
                yield
        finally:
            self._on = False
            if not self.tried and (asked.any or random.getstate() != before):
                self.tried = "it asks for random numbers or the process id, which must differ among runners"


class _Asked:
    """Whether somebody asked for what must differ among processes."""

    def __init__(self) -> None:
        self.any = False

    @contextmanager
    def on(self) -> Generator[None]:
        places: list[tuple[Any, str]] = [(os, "urandom"), (os, "getpid"), (random, "_urandom")]
        real = [getattr(place, name) for place, name in places]

        def noting(function: Callable[..., Any]) -> Callable[..., Any]:
            def asked(*given: Any) -> Any:
                self.any = True
                return function(*given)

            return asked

        for (place, name), function in zip(places, real, strict=True):
            setattr(place, name, noting(function))
        try:
            yield
        finally:
            for (place, name), function in zip(places, real, strict=True):
                setattr(place, name, function)


_watch: _Watch | None = None


def _rehearsed(suspect: Suspect) -> Judged:
    """Call it twice: set-up takes its time once."""
    global _watch
    _watch = _watch or _Watch()
    before = leak_check.look_at_threads()
    costs: list[float] = []
    failed = ""
    with _watch.on():
        try:
            for _ in range(2):
                began = time.thread_time()
                suspect.call()
                costs.append(time.thread_time() - began)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it cannot be done beforehand
            failed = f"its call failed: {error!r}"[:200]
    cost = round(costs[0] * 1e6) if costs else 0
    word = _watch.tried or failed
    if not word and leak_check.threads_since(before):
        word = "it starts a thread"
    if not word:
        word = _verdict(costs[0], costs[1], suspect.cost / 1e6)
    return Judged(suspect.name, word, cost, suspect.seen)


def _verdict(first: float, second: float, lost: float) -> str:
    if second > max(first * AGAIN, QUICK):
        return WORK
    if first < lost * ENOUGH:
        return UNRELATED
    return WARM
