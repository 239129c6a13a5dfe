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
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import msgspec

from headrace.worker.forking import lifecycle_hooks
from headrace.worker.forking.child_process import die_with
from headrace.worker.preload.startup_profiler import callable_alone
from headrace.worker.preload.warmup import find

# A trial that takes longer (seconds) is ended by the kernel.
PATIENCE = 60
# A second call that takes more than this share of the first was work, not set-up; or more than this (seconds).
AGAIN, QUICK = 0.1, 0.0002
# A first call that takes less (seconds) is not what jobs lost time in: a narrower function did it before.
ENOUGH = 0.002
# Names that are tried at once, and characters of a verdict: together less than a pipe holds.
MOST, WORDS = 100, 160

WARM = "warm"
WORK = "it takes its time at each call: that is work, not set-up"
UNRELATED = "it is not what takes the time"
_TRYING = "trying"

# Python's audit events that need no descriptor, and change what is outside of this process.
_EFFECTS = frozenset((
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link", "os.mkdir",
    "os.posix_spawn", "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.startfile", "os.symlink",
    "os.system", "os.truncate", "os.unsetenv", "os.utime", "signal.pthread_kill", "subprocess.Popen",
    "_thread.start_new_thread", "_posixsubprocess.fork_exec",
))  # fmt: skip
_OPENS = frozenset(("open", "socket.__new__", "socket.connect", "sqlite3.connect", "os.listdir", "os.scandir"))
# What must differ among processes: who asks for it cannot be called once for all of them.
_OWN: tuple[object, ...] = (os.urandom, os.getpid)

Verdicts = dict[str, str]


class Effect(BaseException):
    """A function tried something that a trial must not do."""


def attempt(names: Sequence[str], never: Collection[object]) -> Verdicts:
    """What a child found of each name: ``WARM``, or why it must not be done before the fork.

    A name without a verdict was not reached, since one before it left something behind.

    Args:
        names: modules, then ``module:function``, in the order in which they are tried; more than ``MOST`` are not.
        never: functions that must not be called, such as those of tasks.

    Raises:
        OSError: the system has no room for a child now.
    """
    read, write = os.pipe()
    supervisor = os.getpid()
    try:
        pid = os.fork()
        if not pid:
            _be(names[:MOST], never, write, supervisor)
        os.close(write)
        write = -1
        os.waitpid(pid, 0)
        # What it started may hold the other end.
        os.set_blocking(read, False)
        with suppress(BlockingIOError):
            return _read(os.read(read, 1 << 16))
        return {}
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def _read(said: bytes) -> Verdicts:
    """What a child said before it ended; whatever it was trying then ended it."""
    verdicts: Verdicts = {}
    for line in said.splitlines():
        name, word = msgspec.json.decode(line, type=tuple[str, str])
        verdicts[name] = word
    return {name: "it ends the process that does it" if word == _TRYING else word for name, word in verdicts.items()}


def _be(names: Sequence[str], never: Collection[object], write: int, supervisor: int) -> NoReturn:
    try:
        die_with(supervisor)
        _become_nobody(write)

        def say(name: str, word: str) -> None:
            os.write(write, msgspec.json.encode((name, word[:WORDS])) + b"\n")

        _try_all(names, never, say)
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


def _try_all(names: Sequence[str], never: Collection[object], say: Callable[[str, str], None]) -> None:
    functions: dict[str, Callable[[], object]] = {}
    for name in names:
        say(name, _TRYING)
        before = lifecycle_hooks.look()
        try:
            if ":" in name:
                functions[name] = find(name)
            else:
                import_module(name)
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, only says that it cannot be imported here
            functions.pop(name, None)
            say(name, f"its import failed: {error!r}")
            continue
        threads, sockets = lifecycle_hooks.threads_since(before), lifecycle_hooks.sockets_since(before)
        if threads or sockets:
            # Nothing after it can be judged.
            say(name, f"its import starts {threads[0]}" if threads else f"its import opens {sockets[0]}")
            return
        if ":" not in name:
            say(name, WARM)
    _close_the_door()
    watch = _Watch()
    for name, function in functions.items():
        say(name, _TRYING)
        if function in never or not callable_alone(function):
            say(name, "it is a task, or needs arguments")
        else:
            say(name, _judged(function, watch))


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

    def _called(self, frame: FrameType | None, event: str, argument: Any) -> None:  # noqa: ARG002 - the form of a profiler
        if event == "c_call" and argument in _OWN:
            self.tried = self.tried or "it asks for random numbers or the process id, which must differ among runners"

    def __enter__(self) -> None:
        self.tried, self._on, self._dice = "", True, random.getstate()
        sys.setprofile(self._called)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._on = False
        if random.getstate() != self._dice:
            self._called(None, "c_call", os.urandom)


def _judged(function: Callable[[], object], watch: _Watch) -> str:
    """Call it twice: set-up takes its time once."""
    before = lifecycle_hooks.look(sockets=False)
    costs: list[float] = []
    failed = ""
    with watch:
        try:
            for _ in range(2):
                began = time.thread_time()
                function()
                costs.append(time.thread_time() - began)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, it cannot be done beforehand
            failed = f"its call failed: {error!r}"
    if watch.tried or failed:
        return watch.tried or failed
    if lifecycle_hooks.threads_since(before):
        return "it starts a thread"
    first, second = costs
    if second > max(first * AGAIN, QUICK):
        return WORK
    return WARM if first >= ENOUGH else UNRELATED
