"""Locks that the kernel frees when their holder dies: the only facts about other processes that are believed.

``flock`` belongs to the open file, so a forked child, or a server that inherited it, goes on holding it. To check a
lock is to take it for a moment, so a process that wants one tries more than once.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from headrace.clock import monotonic

if TYPE_CHECKING:
    from pathlib import Path


def open_lock(path: Path) -> int:
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
    """Open ``path`` and flock it; the descriptor, or None if other processes held it until ``deadline``. The file that
    was locked is the one that the path names now: a lock on a removed file excludes no process.
    """
    while True:
        fd = open_lock(path)
        try:
            taken = take(fd, mode, deadline)
        except BaseException:
            os.close(fd)
            raise
        if taken and names(path, fd):
            return fd
        os.close(fd)
        if not taken:
            return None


def locked(path: Path, mode: int = fcntl.LOCK_SH) -> bool:
    """Whether a process holds ``path`` exclusively; with ``LOCK_EX``, whether one holds it at all."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Two that ask at once must not take each other for users.
        return not take(fd, mode, monotonic() + 0.01 if mode == fcntl.LOCK_EX else 0)
    finally:
        release(fd)


def release(fd: int) -> None:
    """End a flock and close its file. Closing alone would leave the lock to a child of another thread."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def names(path: Path, fd: int) -> bool:
    try:
        there, here = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
