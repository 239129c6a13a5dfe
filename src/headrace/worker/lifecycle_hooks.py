"""Work around a fork: hooks of the application, leftovers that a fork must not meet, and the mapping of memory.

Hooks run in the main thread, where a Unix timer can interrupt one; C code that does not return is not reached. Of
leftovers, threads that C libraries start by themselves are not seen: those that survive forks well (the linear algebra
under numpy stops its own before each) cannot be distinguished from the others. A fork copies a table with an entry for
each page (4 kB), and the end of the child takes that table apart: both cost more than most jobs do, so :func:`join`
makes entries fewer. Linux only; a refusal loses nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from headrace.worker.standard_streams import log

Hook = Callable[[], object]

# What the application's hooks before one fork, or after it, may take (seconds): meanwhile no process is reaped or
# forked.
AROUND_FORK = 5.0


class HookTimeout(BaseException):
    """A hook took too long. No Exception, so that a hook's own ``except Exception`` does not swallow it."""


def run_each(hooks: Sequence[Hook], seconds: float, failed: Callable[[Hook, BaseException, float], None]) -> None:
    """Run hooks in this order. Each may take an even share of the time that those before it have left; ``failed`` is
    told of one that raised, or was cut (:class:`HookTimeout`), and how many seconds it had.
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
        log.error(
            "the hook %s took more than %.2g s around a fork and was interrupted",
            name_of(hook),
            seconds,
            code="hook.cut",
        )
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


def read_state(*, sockets: bool = True) -> Seen:
    """What this process has now; without ``sockets`` where descriptors cannot be listed."""
    return Seen(frozenset(threading.enumerate()), frozenset(_sockets() if sockets else ()))


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
    def shared(self) -> int:
        """Bytes that another process has as well, but for those in huge pages."""
        return max(0, self.sizes[b"Shared_Clean:"] + self.sizes[b"Shared_Dirty:"] - self.sizes[b"AnonHugePages:"])

    @property
    def joinable(self) -> bool:
        return self.mode == b"rw-p" and not self.file and self.end - self.start - self.resident <= _SPARE


def join() -> None:
    """Map memory that is in use in huge pages (mostly 2 MB), each one entry; a write copies a usual page only."""
    size, room = _huge(), _SHARED
    for one in _mappings() if size else ():
        start, end = -(-one.start // size) * size, one.end // size * size
        if start < end and one.joinable and one.shared <= room:
            room -= one.shared
            with contextlib.suppress(OSError, AttributeError):
                _madvise()(start, end - start, _COLLAPSE)


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


@cache
def _madvise() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
