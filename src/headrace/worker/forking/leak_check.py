"""What a step of the warm-up left behind that a fork must not find: threads and sockets, each with its name.

Looks only. Threads that C libraries start by themselves are not seen: those that survive forks well (the linear algebra
under numpy stops its own before each) could not be told from the others.
"""

from __future__ import annotations

import os
import socket
import stat
import threading

import msgspec

# A thread that was told to end may take this long (seconds) to do so.
PATIENCE = 0.5


class Seen(msgspec.Struct, frozen=True):
    """Threads by identity, and sockets by descriptor and inode."""

    threads: frozenset[threading.Thread]
    sockets: frozenset[tuple[int, int]]


def look(*, sockets: bool = True) -> Seen:
    """What this process has now; without ``sockets`` where descriptors cannot be listed."""
    return Seen(frozenset(threading.enumerate()), frozenset(_sockets() if sockets else ()))


def threads_since(before: Seen) -> list[str]:
    """Threads that were started since and live on, in words."""
    started = [thread for thread in threading.enumerate() if thread not in before.threads]
    for thread in started:
        thread.join(PATIENCE / len(started))
    return [_thread(thread) for thread in started if thread.is_alive()]


def sockets_since(before: Seen) -> list[str]:
    """Sockets that were opened since and are open still, in words."""
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
