"""How the store lives with event loops and forks. Apart from the connections, since it needs no driver.

1. :func:`in_forks` names objects that begin anew in a forked child: locks that a thread held, counts and connections
   are the parent's. A process that used none has no handler: the first function that runs in a fork is its dearest,
   since each page that it writes to is copied.
2. :func:`aside`: runs a call that blocks beside an event loop, also in the exit hooks of a program.
"""

from __future__ import annotations

# Python refuses to import this in an exit hook, and the driver imports it at its first use.
import concurrent.futures.thread  # noqa: F401  # pyright: ignore[reportUnusedImport]
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Anew(Protocol):
    """An object that can forget all that it inherited."""

    def begin_anew(self) -> None: ...


_used: set[weakref.ref[Anew]] = set()
_hook_set = False


def in_forks(one: Anew) -> None:
    """Have :meth:`Anew.begin_anew` called in each forked child while ``one`` lives. A second call does nothing."""
    global _hook_set
    _used.add(weakref.ref(one, _used.discard))
    if not _hook_set and hasattr(os, "register_at_fork"):  # Windows has no forks
        _hook_set = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for reference in list(_used):
        if (one := reference()) is not None:
            one.begin_anew()


async def aside(act: Callable[[], T]) -> T:
    """Run it in a thread, so that the event loop is free; in an exit hook, which gets no thread any more, here."""
    if threading.main_thread().is_alive():
        import asyncio  # the caller's event loop has it; a program without one must not pay for it

        return await asyncio.to_thread(act)
    return act()
