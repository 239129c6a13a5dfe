"""What must begin anew in a forked child: locks that a thread held, counts and connections that are its parent's.

An object is told from its first use on. A process that used none has no handler at all: the first function that runs
in a fork is its dearest, since each page that it writes to is copied.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Anew(Protocol):
    """What can forget all that it inherited."""

    def begin_anew(self) -> None: ...


_used: set[weakref.ref[Anew]] = set()
_told = False


def in_forks(one: Anew) -> None:
    """Have :meth:`Anew.begin_anew` called in each forked child from now on, as long as it lives. Again does nothing."""
    global _told
    _used.add(weakref.ref(one, _used.discard))
    if not _told:
        _told = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for reference in list(_used):
        if (one := reference()) is not None:
            one.begin_anew()
