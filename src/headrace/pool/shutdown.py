"""The interpreter's end, and its forks: pools hear of both here. Owns no pool."""

from __future__ import annotations

import atexit
import os
import sys
import weakref

from headrace.pool.members import Members

_known: weakref.WeakSet[Members] = weakref.WeakSet()


def tell(crew: Members) -> None:
    _known.add(crew)


def at_exit() -> None:
    """Run what was accepted, as executors do, then let the interpreter end. Again does nothing. A program that a Ctrl-C
    ends does not wait for it: its calls are interrupted, and killed after the pool's ``shutdown_timeout``.
    """
    all_known = [*_known]
    # Set by the interpreter when no code has caught it.
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        for each in all_known:
            each.interrupt()
        return
    try:
        for each in all_known:
            each.finish()
        for each in all_known:
            each.wait()
    except KeyboardInterrupt:
        for each in all_known:
            each.interrupt()
        raise


def before_others() -> None:
    """Have :func:`at_exit` run before all exit handlers that were registered until now: the last one runs first."""
    atexit.register(at_exit)


def _in_fork() -> None:
    for each in [*_known]:
        each.orphan()


before_others()
os.register_at_fork(after_in_child=_in_fork)
