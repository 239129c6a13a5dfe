"""The work of a worker around its forks: the preload, the application's hooks, and memory that is fit to be shared.

:func:`warm_up` takes the steps of the preload in the supervisor's one thread, and refuses one that left a thread or a
socket behind. Threads that C libraries start are not seen: those that survive forks well (the linear algebra under
numpy stops its own before each) cannot be distinguished from the others. Hooks run in the main thread, where a Unix
timer can interrupt one, unless C code does not return. A fork copies a table with an entry for each page (4 kB), which
costs more than most jobs do, so :func:`join` makes entries fewer. See docs/design/warmth.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import logging
import mmap
import os
import signal
import socket
import stat
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from headrace.app import Headrace
from headrace.errors import AppImportError, HeadraceError
from headrace.settings import preload_names
from headrace.worker import standard_streams
from headrace.worker.standard_streams import log

_ADVICE = {
    "thread": "runners will not have it, and may hang on locks that it held",
    "socket": "every runner would use the same one, and read the answers of others",
}
# Exactly these keep nothing back: a class made from one may do otherwise.
_QUIET = frozenset((logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort)))


def warm_up(app: Headrace) -> None:
    """Take each step of the preload. Raises AppImportError: one raised, or left a thread or socket, which it names."""
    for name in preload_names(app.settings.preload):
        _take(app, f"the preload of {name}", partial(preload, name))
    for hook in app.preload_hooks:
        _take(app, f"the on_preload hook {name_of(hook)}", hook)


def preload(name: str) -> None:
    find(name)() if ":" in name else import_module(name)


def find(name: str) -> Callable[[], object]:
    module, _, path = name.partition(":")
    value: Any = import_module(module)
    for part in path.split("."):
        value = getattr(value, part)
    if not callable(value):
        raise TypeError(f"{name} is a {type(value).__name__}, which cannot be called")
    return value  # type: ignore[no-any-return]


def _take(app: Headrace, step: str, action: Callable[[], object]) -> None:
    before = read_state()
    try:
        action()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # From their first line on, without those of this file and of the import system.
        own = error.__traceback__
        while own is not None and _ours(own.tb_frame.f_code.co_filename):
            own = own.tb_next
        theirs = error.with_traceback(own)
        # Without a line of theirs it is the name that is wrong, which the error itself says.
        trace = "\n\n" + "".join(traceback.format_exception(theirs)).rstrip() if theirs.__traceback__ else ""
        advice = "" if trace else "; correct the name, or install what it names here"
        raise AppImportError(f"{step} failed: {error!r}{advice}{trace}") from error
    # The application's own clients may be used in a step; what they opened ends here.
    app.disconnect()
    for complaint in complaints(step, before):
        raise AppImportError(complaint)


def _ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def complaints(step: str, before: Seen) -> Iterator[str]:
    found = (("thread", threads_since(before)), ("socket", sockets_since(before)))
    for kind, culprits in found:
        if culprits:
            does, end = ("started", "start") if kind == "thread" else ("left open", "open")
            yield (
                f"{step} {does} {' and '.join(culprits)}: {_ADVICE[kind]}; {end} it in @app.after_fork_child, which "
                f"runs in each runner, or end it before the step does"
            )


def compact() -> None:
    """Collect garbage, give free memory back, and freeze what is left: its pages stay shared with every child."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # Only the GNU C library has it: free pages at the top of the heap would be copied at each child's first use.
        ctypes.CDLL(None).malloc_trim(0)
    gc.freeze()
    join()


class StoreUse:
    """Whether a job of a small image has used the store: then what is forked later has it before the fork."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def learn(self, app: Headrace) -> None:
        self._page[0] = 1
        self.load_if_used(app)

    def load_if_used(self, app: Headrace) -> None:
        if self._page[0] and not store_is_loaded():
            # A job that needs it gets the error, if there is one.
            with contextlib.suppress(HeadraceError, OSError):
                _ = app.store
            compact()


def store_is_loaded() -> bool:
    return "headrace.store.store" in sys.modules


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
    """All handlers if none keeps anything back, else None: to close them is a tenth of a child of one job."""
    handlers = all_handlers()
    return handlers[:] if handlers is not None and all(type(one()) in _QUIET for one in handlers) else None


def all_handlers() -> list[weakref.ref[logging.Handler]] | None:
    """Those that logging would shut down. It does not tell them in public: None where it keeps them otherwise."""
    return vars(logging).get("_handlerList")


def reseed_numpy() -> None:
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


Hook = Callable[[], object]

# Seconds that the application's hooks before one fork, or after it, may take: no process is reaped or forked then.
AROUND_FORK = 5.0


class HookTimeout(BaseException):
    """A hook took too long. No Exception, so that a hook's own ``except Exception`` does not swallow it."""


def run_each(hooks: Sequence[Hook], seconds: float, failed: Callable[[Hook, BaseException, float], None]) -> None:
    """Run hooks in this order, each within an even share of the time that those before it have left. ``failed`` gets
    one that raised, or was cut (:class:`HookTimeout`), and how many seconds it had.
    """
    before = signal.signal(signal.SIGALRM, _ring)
    end = time.monotonic() + seconds
    try:
        for number, hook in enumerate(hooks):
            share = max(0.01, (end - time.monotonic()) / (len(hooks) - number))
            try:
                signal.setitimer(signal.ITIMER_REAL, share)
                try:
                    hook()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
            except BaseException as error:  # noqa: BLE001 - SystemExit of one hook must not cost the others their turn
                failed(hook, error, share)
    finally:
        signal.signal(signal.SIGALRM, before)


def run_around_fork(hooks: Sequence[Hook]) -> None:
    if hooks:
        run_each(hooks, AROUND_FORK, _failed_around_fork)


def _failed_around_fork(hook: Hook, error: BaseException, seconds: float) -> None:
    if isinstance(error, HookTimeout):
        text = "the hook %s took more than %.2g s around a fork and was interrupted"
        log.error(text, name_of(hook), seconds, code="hook.cut")
    else:
        log.error("the hook %s failed around a fork", name_of(hook), exc_info=error, code="hook.failed")


def _ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form of a handler
    raise HookTimeout


def name_of(hook: object) -> str:
    name = getattr(hook, "__qualname__", None)
    return f"{getattr(hook, '__module__', '?')}.{name}" if isinstance(name, str) else repr(hook)


# A thread that was told to end may take this long (seconds) to do so.
PATIENCE = 0.5


class Seen(msgspec.Struct, frozen=True):
    threads: frozenset[threading.Thread]
    sockets: frozenset[tuple[int, int]]


def read_state() -> Seen:
    return Seen(frozenset(threading.enumerate()), frozenset(_sockets()))


def threads_since(before: Seen) -> list[str]:
    started = [thread for thread in threading.enumerate() if thread not in before.threads]
    for thread in started:
        thread.join(PATIENCE / len(started))
    return [_thread(thread) for thread in started if thread.is_alive()]


def sockets_since(before: Seen) -> list[str]:
    return [_socket(number) for number, inode in sorted(_sockets()) if (number, inode) not in before.sockets]


def _sockets() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    try:
        names = os.listdir("/dev/fd")  # noqa: PTH208 - names of descriptors, no paths
    except OSError:
        # Without /proc, as in a bare chroot, they cannot be listed.
        return []
    for name in names:
        try:
            status = os.fstat(int(name))
        except (OSError, ValueError):
            # The descriptor of this very listing, closed by now.
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.append((int(name), status.st_ino))
    return found


def _thread(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None) or type(thread).run
    where = f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', target)}"
    return f"the thread {thread.name!r} (runs {where})"


def _socket(number: int) -> str:
    try:
        with socket.socket(fileno=os.dup(number)) as copy:
            listens = copy.family != socket.AF_UNIX or bool(copy.getsockname())
            try:
                peer = copy.getpeername()
            except OSError:
                return f"a socket at {_place(copy.getsockname())}" if listens else "a socket"
            return f"a socket to {_place(peer)}" if peer else "one end of a pair of sockets"
    except OSError:
        return "a socket"


def _place(address: object) -> str:
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"  # pyright: ignore[reportUnknownVariableType]
    return address.decode("utf-8", "backslashreplace") if isinstance(address, bytes) else str(address)


_HUGE = Path("/sys/kernel/mm/transparent_hugepage")
_FIELDS = frozenset((b"Rss:", b"Shared_Clean:", b"Shared_Dirty:", b"AnonHugePages:"))
# Since Linux 6.1.
_COLLAPSE = 25
# Bytes of a mapping that are not in use: with more, a program reserved what may never be needed.
_SPARE = 4 << 20
# Bytes that others have as well, in small pages: to join them is to copy them.
_SHARED = 24 << 20
# Where a huge page has more bytes (arm64 with pages of 64 kB: 512 MB), to take one apart costs too much.
_MOST = 32 << 20


class Mapping(NamedTuple):
    """A piece of the address space; ``file``: it shows a file, ``sizes``: further fields of ``smaps``, in bytes."""

    start: int
    end: int
    mode: bytes
    file: bool
    sizes: dict[bytes, int]

    @property
    def resident(self) -> int:
        return self.sizes[b"Rss:"]

    @property
    def shared_bytes(self) -> int:
        return max(0, self.sizes[b"Shared_Clean:"] + self.sizes[b"Shared_Dirty:"] - self.sizes[b"AnonHugePages:"])

    @property
    def joinable(self) -> bool:
        return self.mode == b"rw-p" and not self.file and self.end - self.start - self.resident <= _SPARE


def join() -> None:
    """Map memory that is in use in huge pages (mostly 2 MB), each one entry; a write copies a usual page only."""
    size, room = _huge(), _SHARED
    for one in _mappings() if size else ():
        start, end = -(-one.start // size) * size, one.end // size * size
        if start < end and one.joinable and one.shared_bytes <= room:
            room -= one.shared_bytes
            with contextlib.suppress(OSError, AttributeError):
                madvise = ctypes.CDLL(None).madvise
                madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
                madvise(start, end - start, _COLLAPSE)


def _mappings() -> Iterator[Mapping]:
    try:
        # The name of a file may be anything: bytes, and nothing but line feeds between lines.
        lines = Path("/proc/self/smaps").read_bytes().split(b"\n")
    except OSError:
        return
    head, sizes = list[bytes](), dict[bytes, int]()
    for words in map(bytes.split, lines):
        if words and words[0] in _FIELDS:
            sizes[words[0]] = int(words[1]) << 10
        elif words and not words[0].endswith(b":"):
            head, sizes = words, {}
        elif words and words[0] == b"VmFlags:":
            start, _, end = head[0].partition(b"-")
            yield Mapping(int(start, 16), int(end, 16), head[1], head[4] != b"0", sizes)


@cache
def _huge() -> int:
    try:
        size = int((_HUGE / "hpage_pmd_size").read_text())
        return size if size <= _MOST and "[never]" not in (_HUGE / "enabled").read_text() else 0
    except (OSError, ValueError):
        return 0
