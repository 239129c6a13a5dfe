"""Locks that the kernel frees when their holder dies: the only facts about other processes that are believed.

Two kinds, because they answer different questions. ``flock`` belongs to the open file, so a forked child, or
a server that inherited it, goes on holding it. A POSIX lock belongs to one process, and the kernel names that
process, so a signal never goes to a pid that was read from a file and may be somebody else's by now.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import sys
import time
from typing import TYPE_CHECKING

from headrace.clock import monotonic
from headrace.errors import ServerError

if TYPE_CHECKING:
    from pathlib import Path

# struct flock as the C library lays it out: type, whence, start, length, pid; the BSDs put the numbers first.
_BSD = sys.platform == "darwin"
_LAYOUT = "qqihh" if _BSD else "hhqqi"


def open_lock(path: Path) -> int:
    """Open a lock file, made if absent; not inherited by programs that this process runs."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def take(fd: int, mode: int, deadline: float) -> bool:
    """Whether the flock ``mode`` was had before ``deadline`` (monotonic clock; one try if that is past)."""
    pause = 0.001
    while True:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left = deadline - monotonic()
            if left <= 0:
                return False
        # Not a blocking flock: a stopped holder would hang the caller for ever, without an error to show.
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)


def hold(path: Path, mode: int, deadline: float) -> int | None:
    """Open ``path`` and flock it; the descriptor, or None if others held it until ``deadline``.

    The file that was locked is the one that the path names now: a lock on a removed file excludes nobody.
    """
    while True:
        fd = open_lock(path)
        try:
            if not take(fd, mode, deadline):
                os.close(fd)
                return None
        except BaseException:
            os.close(fd)
            raise
        if names(path, fd):
            return fd
        os.close(fd)


def locked(path: Path) -> bool:
    """Whether somebody holds ``path`` exclusively."""
    return not _free(path, fcntl.LOCK_SH, 0)


def shared(path: Path) -> bool:
    """Whether somebody holds ``path`` at all.

    The lock is taken for a moment to see, so whoever takes it in this package tries more than once.
    """
    # Two who ask at once must not take each other for users.
    return not _free(path, fcntl.LOCK_EX, monotonic() + 0.01)


def _free(path: Path, mode: int, deadline: float) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return take(fd, mode, deadline)
    finally:
        release(fd)


def release(fd: int) -> None:
    """End a flock and close its file.

    Closing alone would leave the lock to a child that another thread forked meanwhile.
    """
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def names(path: Path, fd: int) -> bool:
    """Whether ``path`` still names the open file ``fd``."""
    try:
        there, here = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def claim(path: Path) -> int | None:
    """Take the POSIX lock of ``path`` for the life of this process; None if another process has it.

    Must be called once per process and path: closing any second descriptor of the file would drop the lock.
    """
    fd = open_lock(path)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        raise
    return fd


def holder(path: Path) -> int | None:
    """The pid of the process that holds the POSIX lock of ``path``, as the kernel says; None if it is free.

    0 is a process that lives where this one cannot see it (another container on the same directory).
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        ask = (0, 0, 0, fcntl.F_WRLCK, 0) if _BSD else (fcntl.F_WRLCK, 0, 0, 0, 0)
        reply = struct.unpack(_LAYOUT, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(_LAYOUT, *ask)))
    finally:
        os.close(fd)
    kind, pid = (reply[3], reply[2]) if _BSD else (reply[0], reply[4])
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def notify(path: Path, number: int) -> int | None:
    """Send a signal to the holder of the POSIX lock of ``path``; its pid, or None if nobody holds it.

    Raises:
        ServerError: the holder cannot be seen from here.
    """
    pid = holder(path)
    if pid is None:
        return None
    if pid == 0:
        raise ServerError(f"the guard that holds {path} runs in another container: stop it there")
    try:
        if sys.platform == "linux":
            # The descriptor pins the process: if it has the lock now, the signal reaches no stranger.
            process = os.pidfd_open(pid)
            try:
                if holder(path) != pid:
                    return None
                signal.pidfd_send_signal(process, number)
            finally:
                os.close(process)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return None
    return pid
