"""The fork kind: a warm process that runs no job, but forks a child for each.

The child is all that a process runner is (:mod:`process`), for one job: it settles in, waits, runs it, says how it
ended, and leaves. Its *forker* owns what outlasts a job, the channel and the process group, and

1. forks the next child when the last one has left, ahead of its job;
2. passes on the signal by which a running job is told to stop;
3. tells the dispatcher how a child fell that could not say so itself, and leaves;
4. leaves, too, when a job left something running, which then ends with the group; and when a child was told to.

It has one thread and runs no code of the application but the hooks around a fork. Signals and the last words of
children are datagrams of one socket, which one loop reads. A process that is only kept to be forked is Android's
zygote.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from headrace.worker.hooks import run_around_fork
from headrace.worker.parent import adopt_orphans, die_with
from headrace.worker.warmup import write_out
from headrace.worker.wire import Channel, Closed, Exit, Fell, ToRunner

if TYPE_CHECKING:
    from headrace.app import Headrace

# A forker's first children are audited, then one in so many.
FIRST, EACH = 4, 16
# By this signal the kernel tells that the supervisor is gone.
_ORPHANED = signal.SIGUSR2
# Seconds for a word that always finds room.
_PATIENCE = 5.0


def lasts(app: Headrace) -> bool:
    """Whether runners of this kind outlast their jobs; else each child comes from the supervisor, which costs more.

    They do not where the kernel does not give us the orphans of jobs, nor where the application has exit hooks: the
    next job would wait for those of the one before.
    """
    return sys.platform == "linux" and not app.exit_hooks


@dataclass(frozen=True, slots=True)
class Life:
    """What a child gets from its forker.

    Attributes:
        recalls: how many the children before it heard.
        forked: when it was about to be forked, nanoseconds of the monotonic clock, if it is audited; else 0.
        first: whether it is the first of its forker.
        leave: to be called when its job has ended, with the number of recalls now, and whether the forker is to leave.
    """

    recalls: int
    forked: int
    first: bool
    leave: Callable[[int, bool], None]


class Forker:
    """Forks children, one after the other, until one says that it is time to leave, or falls."""

    def __init__(self, app: Headrace, channel: Channel[ToRunner], *, audited: bool) -> None:
        self._app = app
        self._channel = channel
        self._audited = audited
        self._ears, self._mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._child = 0
        self._count = 0
        self._recalls = 0
        self._leaves: bool | None = None

    def run(self) -> Life | None:
        """Fork. Returns in each child, with what it gets; and in the forker, with None, when it is time to leave."""
        self._listen()
        life = self._fork()
        while life is None:
            while self._child:
                self._hear(self._ears.recv(2))
            if not self._goes_on():
                return None
            life = self._fork()
        return life

    def _goes_on(self) -> bool:
        if self._leaves is not False:
            return False
        if _something_lives():
            # It ends with our group, when the supervisor buries us.
            self._say(Exit())
            return False
        return True

    def _listen(self) -> None:
        self._mouth.setblocking(False)
        for number in (signal.SIGCHLD, signal.SIGUSR1, _ORPHANED):
            signal.signal(number, _nothing)
        signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        adopt_orphans()
        die_with(os.getppid(), _ORPHANED)

    def _fork(self) -> Life | None:
        audited = self._audited and (self._count < FIRST or self._count % EACH == 0)
        forked = time.monotonic_ns() if audited else 0
        run_around_fork(list(reversed(self._app.before_fork_hooks)))
        write_out()
        self._leaves = None
        self._child = os.fork()
        self._count += 1
        if not self._child:
            return self._born(forked)
        run_around_fork(self._app.after_fork_parent_hooks)
        return None

    def _born(self, forked: int) -> Life:
        """In the child: have nothing of the forker's but its memory."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, _ORPHANED):
            signal.signal(number, signal.SIG_DFL)
        self._ears.close()
        return Life(self._recalls, forked, self._count == 1, partial(_last_word, self._mouth))

    def _hear(self, heard: bytes) -> None:
        if len(heard) == 2:
            self._recalls, self._leaves = heard[0], bool(heard[1])
        elif heard[0] == signal.SIGUSR1 and self._child:
            os.kill(self._child, signal.SIGUSR1)
        elif heard[0] == signal.SIGCHLD and self._child:
            self._reap()
        elif heard[0] == _ORPHANED:
            os.killpg(0, signal.SIGKILL)

    def _reap(self) -> None:
        """The child, if it has ended, and whatever else has."""
        while True:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == self._child:
                break
            if not pid:
                return
        self._child = 0
        # Its last word came before its end, but maybe after the signal that we heard.
        with contextlib.suppress(BlockingIOError):
            while self._leaves is None:
                self._hear(self._ears.recv(2, socket.MSG_DONTWAIT))
        if self._leaves is None:
            code = os.waitstatus_to_exitcode(status)
            self._say(Fell(max(0, -code), max(0, code), usage.ru_maxrss * 1024))

    def _say(self, message: Fell | Exit) -> None:
        with contextlib.suppress(Closed):
            self._channel.send(message)


def _something_lives() -> bool:
    """Whether the last job left something running; what has ended is reaped on the way."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _last_word(mouth: socket.socket, recalls: int, leaves: bool) -> None:
    # Not setblocking: the forker shares the file's description, and its signals must not wait.
    mouth.settimeout(_PATIENCE)
    mouth.send(bytes((recalls & 0xFF, leaves)))
    mouth.close()


def _nothing(number: int, frame: FrameType | None) -> None:
    """A signal is a datagram in the socket; the handler has nothing to add."""
