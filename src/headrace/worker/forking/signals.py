"""Signals: which ones a worker's processes hear, and which ones must not end them.

Signals are values in a queue that one loop reads: a handler does nothing, and the interpreter writes the number of each
signal into a pipe. Imports nothing else of Headrace, since a worker needs it first of all.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from types import FrameType

# One runner more, one less, as other forking servers understand these.
RESIZE = {signal.SIGTTIN: 1, signal.SIGTTOU: -1}
# The first one lets running jobs finish, a later one stops them; QUIT stops them at once.
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
# What a process that watches others hears.
HEARD = (*STOPS, signal.SIGHUP, signal.SIGCHLD, *RESIZE)


def _without_meaning() -> tuple[int, ...]:
    names = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")
    found = [int(getattr(signal, name)) for name in names if hasattr(signal, name)]
    if hasattr(signal, "SIGRTMIN"):
        found += range(signal.SIGRTMIN, signal.SIGRTMAX + 1)
    return tuple(found)


# What ends a process by default and means nothing to a worker. Python ignores PIPE and XFSZ by itself. Those that tell
# of a fault of the process (SEGV, ABRT, ...) or of its limit of processor time (XCPU) stay as they are.
UNHEARD = _without_meaning()


def only_wake(number: int, frame: FrameType | None) -> None:
    """A handler for signals that are heard by :func:`heard`, or not at all: it has nothing to add."""


# Both ends of the pipe, in a process that listens.
_ends: list[int] = []


def listen(numbers: Iterable[int]) -> int:
    """Hear these from now on; the descriptor that can be read when :func:`heard` has some.

    A pipe holds 65,536 of them, a socket 277: a TERM behind as many, which came amid slow hooks around forks, was lost.
    """
    _ends[:] = os.pipe()
    for end in _ends:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(_ends[1], warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, only_wake)
    return _ends[0]


def heard() -> Counter[int]:
    """Those that have come since, and how often."""
    try:
        return Counter(os.read(_ends[0], 1 << 16))
    except BlockingIOError:
        return Counter()


def listen_no_more() -> None:
    """In a forked child: leave the pipe to its parent."""
    signal.set_wakeup_fd(-1)
    while _ends:
        os.close(_ends.pop())


def hold_back() -> None:
    """Signals wait from now on, in the programs too that this process becomes, until :func:`let_in` is called.

    A process that is not ready would be ended by most of them, and INT would show where it was just then.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*HEARD, *UNHEARD))


def let_in() -> None:
    """What was held back is handled now, and so is what whoever started this process had blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*HEARD, *UNHEARD))


def disregard() -> None:
    """What means nothing to a worker no longer ends this process.

    A handler, since what is ignored would be ignored by the programs as well that user code starts. Where the
    application has a handler of its own, that stays.
    """
    for number in UNHEARD:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, only_wake)


def regard() -> None:
    """In a runner: these are again as in any program, but for those by which the supervisor reaches it.

    USR1 interrupts a job, and USR2 asks for stacks: one may come before the runner has handlers of its own.
    """
    for number in (*UNHEARD, signal.SIGQUIT):
        if number not in (signal.SIGUSR1, signal.SIGUSR2) and signal.getsignal(number) is only_wake:
            signal.signal(number, signal.SIG_DFL)


def leave_at_once(number: int, _frame: FrameType | None) -> None:
    """A handler for INT and QUIT while there is nothing yet to stop in order: no traceback shows where it came."""
    os._exit(128 + number)
