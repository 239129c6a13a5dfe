"""Runs an application's hooks, one after the other, each within its share of the time; one that fails costs no other.

Must run in the main thread, where a Unix timer can interrupt a hook; C code that does not return is not reached. Owns
SIGALRM and its timer while hooks run.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

log = logging.getLogger("headrace.worker")

Hook = Callable[[], object]

# What the application's hooks before one fork, or after it, may take (seconds): meanwhile nobody is reaped or forked.
AROUND_FORK = 5.0


class HookTimeout(BaseException):
    """A hook took too long. No Exception, so that a hook's own ``except Exception`` does not swallow it."""


def run_each(hooks: Sequence[Hook], seconds: float, failed: Callable[[Hook, BaseException, float], None]) -> None:
    """Run hooks in this order. Each may take an even share of the time that those before it have left.

    Args:
        seconds: for all of them together.
        failed: told of a hook that raised, or was cut (:class:`HookTimeout`), and how many seconds it had.
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
    """Run hooks before or after a fork; what goes wrong with one is logged."""
    if hooks:
        run_each(hooks, AROUND_FORK, _failed_around_fork)


def _failed_around_fork(hook: Hook, error: BaseException, seconds: float) -> None:
    if isinstance(error, HookTimeout):
        log.error("the hook %s took more than %.2g s around a fork and was interrupted", name_of(hook), seconds)
    else:
        log.error("the hook %s failed around a fork", name_of(hook), exc_info=error)


def _ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form of a handler
    raise HookTimeout


def name_of(hook: object) -> str:
    """What people call a hook: ``module.function``."""
    name = getattr(hook, "__qualname__", None)
    return f"{getattr(hook, '__module__', '?')}.{name}" if isinstance(name, str) else repr(hook)
