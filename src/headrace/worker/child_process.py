"""Forked processes of a worker: their start, their end, their ties and their signals.

Signals are values in a queue that one loop reads: a handler does nothing, and the interpreter writes the number of each
signal into a pipe. Imports little of Headrace, since a worker needs signals first of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

import msgspec

from headrace.worker import standard_streams
from headrace.worker.channel import Channel
from headrace.worker.standard_streams import STREAMS, log

T = TypeVar("T")

# Signal handlers of ours are defined in here.
_OURS = "headrace.worker."

# Exit code of a process of ours that its own code ended.
FAULTY = 70


class NoRoom(Exception):
    """A process of ours cannot begin its work: the system has no room for a process or thread of its own."""


def die_with(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    if sys.platform == "linux":
        set_parent_death_signal = 1
        prctl()(set_parent_death_signal, signal_number)
        if os.getppid() != parent_pid:
            os._exit(0)


def adopt_orphans() -> None:
    if sys.platform == "linux":
        set_child_subreaper = 36
        prctl()(set_child_subreaper, 1)


def let_fork(channel: Channel[Any]) -> None:
    """From now on, what this process forks is an ordinary process: no runner, with the signal handlers of any program.

    A runner handles TERM and INT by doing nothing. A child that inherited that could not be terminated, and
    ``multiprocessing.Pool`` waited for its processes for ever. A signal that reaches a child before its handlers are
    the usual ones would be lost, so all are blocked around the fork. The child closes the channel.
    """
    mask = threading.local()

    def before() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    def after_in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def after_in_child() -> None:
        channel.close()
        faulthandler.unregister(signal.SIGUSR2)
        for number in signal.valid_signals():
            if getattr(signal.getsignal(number), "__module__", "").startswith(_OURS):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


def end_faulty() -> NoReturn:
    """End this runner at once: its own code failed. Its jobs crash, with this traceback as the end of their stderr."""
    traceback.print_exc()
    os._exit(FAULTY)


@cache
def prctl() -> Callable[[int, int], int]:
    """Linux's; looked up once, since the look-up takes longer than the call."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else max


# One runner more, one less, as other forking servers understand these.
RESIZE = {signal.SIGTTIN: 1, signal.SIGTTOU: -1}
# The first one lets running jobs finish, a later one stops them; QUIT stops them at once.
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# What a process that watches others hears.
HEARD = (*STOPS, signal.SIGHUP, signal.SIGCHLD, *RESIZE)


# What ends a process by default and means nothing to a worker. Python ignores PIPE and XFSZ by itself. Those that tell
# of a fault of the process (SEGV, ABRT, ...) or of its limit of processor time (XCPU) stay as they are.
_NAMES = {"SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT"}
_REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()
UNHEARD = (*(int(known) for known in signal.Signals if known.name in _NAMES), *_REAL_TIME)


def only_wake(number: int, frame: FrameType | None) -> None:
    """A handler for signals that :func:`taken_signals` gives, or that mean nothing: it has nothing to add."""


# Both ends of the pipe, in a process that listens.
_ends: list[int] = []


def listen(numbers: Iterable[int]) -> int:
    """Hear these from now on; the descriptor to read. A pipe holds 65,536; a socket 277, and a TERM was lost."""
    _ends[:] = os.pipe()
    for end in _ends:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(_ends[1], warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, only_wake)
    return _ends[0]


def taken_signals() -> Counter[int]:
    try:
        return Counter(os.read(_ends[0], 1 << 16))
    except BlockingIOError:
        return Counter()


def listen_no_more() -> None:
    signal.set_wakeup_fd(-1)
    while _ends:
        os.close(_ends.pop())


def hold_back() -> None:
    """Signals wait until :func:`let_in`, also in programs that this process becomes: most would end one not ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*HEARD, *UNHEARD))


def let_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*HEARD, *UNHEARD))


def disregard() -> None:
    """What means nothing ends this process no longer: by a handler, since programs inherit that a signal is ignored."""
    for number in UNHEARD:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, only_wake)


class Terminal(msgspec.Struct, frozen=True):
    """The terminal of this process, whose end sends HUP; ``ignored``: a process that ``nohup`` started ignores it."""

    present: bool
    ignored: bool

    @classmethod
    def of_process(cls) -> Self:
        return cls(_has_terminal(), signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)

    @property
    def gone(self) -> bool:
        return self.present and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def leave_at_once(number: int, _frame: FrameType | None) -> None:
    """A handler for INT and QUIT while there is nothing yet to stop in order: no traceback shows where it came."""
    os._exit(128 + number)


def how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_runner(pid: int, *, is_fork_server: bool) -> None:
    """End a runner with its group; of a fork server also its child, which a call of ``os.setsid`` puts out of that."""
    child = _held_child(pid) if is_fork_server else None
    kill_group(pid)
    if child is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)


def _held_child(pid: int) -> int | None:
    """A descriptor of the child that runs the job: the first one, since none lived when that was forked."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        first = children.read_text().split()[:1]
        if not first:
            return None
        child = os.pidfd_open(int(first[0]))
        # It cannot have become a stranger's between the two.
        if children.read_text().split()[:1] == first:
            return child
        os.close(child)
    except OSError:
        # A kernel that does not list children, or one of the two has ended.
        pass
    return None


def reap() -> Iterator[tuple[int, int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-1, os.WNOHANG))[0]:
            yield ended[0], ended[1], ended[2].ru_maxrss


def fork_child(main: Callable[[], int], strangers: Sequence[socket.socket], *, tied: bool = True) -> int:
    """Fork a child, which has nothing of ours but the memory, and never our frames' ``finally`` or ``atexit``.

    One that is ``tied`` ends with this process, and leads a group, which a kill takes along and no Ctrl-C in the
    terminal hits. Raises OSError: the system has no room for it.
    """
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _be_child(main, strangers, parent, tied=tied)
    if tied:
        # Both sides set the group: whichever comes first, a kill of the group can never hit ours.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
    return pid


def in_child(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises, done in a child: what it imports and opens leaves this process as it was."""
    import pickle  # between two processes of one program

    read, write = os.pipe()

    def be() -> int:
        os.close(read)
        try:
            answer: tuple[T | None, Exception | None] = work(), None
        except Exception as error:  # noqa: BLE001 - raised in the parent
            answer = None, error
        with open(write, "wb") as end:  # noqa: PTH123 - a descriptor
            pickle.dump(answer, end)
        return 0

    with open(read, "rb") as end:  # noqa: PTH123 - a descriptor
        try:
            pid = fork_child(be, [])
        finally:
            os.close(write)
        told = end.read()
    _, status = os.waitpid(pid, 0)
    if not told:
        raise RuntimeError(f"a process of the worker ended without an answer: {how(status)}")
    value, error = pickle.loads(told)  # noqa: S301 - our own child wrote it
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _be_child(main: Callable[[], int], strangers: Sequence[socket.socket], parent: int, *, tied: bool) -> NoReturn:
    code = 70
    try:
        listen_no_more()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A Python handler, not SIG_IGN: what the user's code starts must not inherit deafness.
            signal.signal(number, only_wake)
        for stranger in strangers:
            stranger.close()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        if tied:
            os.setpgid(0, 0)
            die_with(parent)
        code = main()
    except BaseException:
        log.critical("a process of the worker failed", exc_info=True, code="process.failed")
    finally:
        standard_streams.flush()
        STREAMS.drain()
        os._exit(code)
