"""The work of a worker before it forks: the preload, and making its memory fit to be shared.

:func:`warm_up`, in the supervisor, in its one thread:

1. imports and calls the names in ``preload``, and calls the functions of ``@app.on_preload``;
2. refuses a step that left a thread or a socket behind, and says which one;
3. compacts the memory and freezes it;
4. leaves nothing in a buffer that each child would write once more.

:func:`attempt` lets a throwaway child of the supervisor try set-up that might be done before the fork, and reports the
result. It must do no harm: imports do only as much as each job's import did anyway; functions are called behind a
closed door, where the kernel opens no file and no socket. See docs/design/warmth.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import logging
import os
import random
import resource
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import msgspec

from headrace.app import Headrace
from headrace.errors import PreloadError
from headrace.settings import AUTO, preload_names
from headrace.worker.forking import lifecycle_hooks, standard_streams
from headrace.worker.forking.child_process import die_with
from headrace.worker.forking.lifecycle_hooks import name_of
from headrace.worker.preload.startup_profiler import callable_alone

_ADVICE = {
    "thread": "runners will not have it, and may hang on locks that it held",
    "socket": "every runner would use the same one, and read the answers of others",
}
# Exactly these keep nothing back: a class made from one may do otherwise.
_QUIET = frozenset((logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort)))


def warm_up(app: Headrace) -> None:
    """Take every step of the application's preload, once. Call it in the process that forks, before it does.

    Raises:
        PreloadError: a step raised, or left a thread or a socket behind; the text names the step and the culprit.
    """
    for name in preload_names(app.settings.preload):
        if name != AUTO:
            _take(app, f"the preload of {name}", partial(preload, name))
    for hook in app.preload_hooks:
        _take(app, f"the on_preload hook {name_of(hook)}", hook)


def preload(name: str) -> None:
    """Import ``module``, or call ``module:function`` without arguments.

    Raises:
        AttributeError: the module has no such function.
        TypeError: it is not callable.
        Exception: whatever the import or the call raised.
    """
    find(name)() if ":" in name else import_module(name)


def find(name: str) -> Callable[[], object]:
    """The function that ``module:function`` names; see :func:`preload`."""
    module, _, path = name.partition(":")
    value: Any = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]


def _take(app: Headrace, step: str, action: Callable[[], object]) -> None:
    before = lifecycle_hooks.look()
    try:
        action()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        theirs = error.with_traceback(_beyond(error))
        # Without a line of theirs it is the name that is wrong, which the error itself says.
        trace = "\n\n" + "".join(traceback.format_exception(theirs)).rstrip() if theirs.__traceback__ else ""
        advice = "" if trace else "; correct the name, or install what it names here"
        raise PreloadError(f"{step} failed: {error!r}{advice}{trace}") from error
    # The application's own clients may be used in a step; what they opened ends here.
    app.disconnect()
    for complaint in complaints(step, before):
        raise PreloadError(complaint)


def _beyond(error: BaseException) -> Any:
    """The traceback from their first line on, without those of this file and of the import system."""
    trace = error.__traceback__
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def complaints(step: str, before: lifecycle_hooks.Seen) -> Iterator[str]:
    """What a step left behind since ``before``, each with what to do about it."""
    found = (("thread", lifecycle_hooks.threads_since(before)), ("socket", lifecycle_hooks.sockets_since(before)))
    for kind, culprits in found:
        if culprits:
            does, end = ("started", "start") if kind == "thread" else ("left open", "open")
            yield (
                f"{step} {does} {' and '.join(culprits)}: {_ADVICE[kind]}; {end} it in @app.after_fork_child, which "
                f"runs in each runner, or end it before the step does"
            )


def compact() -> None:
    """Collect garbage, give free memory back, freeze what is left, and make it cheap to fork.

    Frozen objects are not visited by the collector, so their pages stay shared with every child.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # Only the GNU C library has it: free pages at the top of the heap would be copied at each child's first use.
        ctypes.CDLL(None).malloc_trim(0)
    gc.freeze()
    lifecycle_hooks.join()


def write_out() -> None:
    """Flush streams and log handlers before a fork: each child would write once more what is still in a buffer."""
    for handler in _handlers():
        # A handler that cannot write has its own way to say so; the fork goes on.
        with contextlib.suppress(Exception):
            handler.flush()
    standard_streams.flush()


def _handlers() -> Iterable[logging.Handler]:
    found = {id(handler): handler for handler in logging.root.handlers}
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            found.update((id(handler), handler) for handler in logger.handlers)
    return found.values()


def quiet_handlers() -> object:
    """All handlers of logging that there are, if none of them keeps back what it was given; else None.

    To write them out and close them is a tenth of what a child of one job costs.
    """
    handlers = all_handlers()
    return handlers[:] if handlers is not None and all(type(one()) in _QUIET for one in handlers) else None


def all_handlers() -> list[weakref.ref[logging.Handler]] | None:
    """Those that logging would shut down. It does not tell them in public: None where it keeps them otherwise."""
    return vars(logging).get("_handlerList")


def reseed() -> None:
    """Give this child random numbers of its own in ``numpy.random``, where that was imported.

    ``random`` sees to it itself. Generators that the application made are its own to make anew, in
    ``@app.after_fork_child``.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


# A trial that takes longer (seconds) is ended by the kernel.
PATIENCE = 60
# A second call that takes more than this share of the first was work, not set-up; or more than this (seconds).
AGAIN = 0.1
QUICK = 0.0002
# A first call that takes less (seconds) is not what jobs lost time in: a narrower function did it before.
ENOUGH = 0.002
# Names that are tried at once, and characters of a verdict: together less than a pipe holds.
MOST = 100
WORDS = 160

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
        self.tried = ""
        self._on = True
        self._dice = random.getstate()
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
