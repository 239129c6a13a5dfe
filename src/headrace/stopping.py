"""An event that a stop sets while a job runs: code in threads waits for it, code in coroutines awaits it.

Not ``threading.Event``: in a process runner it is set by a signal handler, and the code that this interrupts may be
during a wait for the same event, whose lock the handler would then wait for.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from headrace.clock import monotonic
from headrace.settings import Duration, patience

if TYPE_CHECKING:
    import asyncio

# Seconds after which a waiter looks for itself: an exception that is raised in another one may lose its wake-up.
_LOOK = 1.0


class Stopping:
    """Set when a stop of the running job begins: its worker shuts down, its soft limit is over, or it is cancelled.

    ``wait`` is for functions, ``await`` for coroutines. Threads that a job starts may use it, too.
    """

    __slots__ = ("_begun", "_futures", "_lock")

    def __init__(self, begun: Callable[[], bool]) -> None:
        self._begun = begun
        # Held until it is set; then each waiter takes it and gives it to the next one.
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._futures: list[asyncio.Future[None]] = []
        if begun():
            # A signal came before there was anything to wake.
            self.wake()

    def is_set(self) -> bool:
        """Whether a stop has begun. Cost: none."""
        return self._begun()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until a stop begins; False when none has begun within ``timeout`` seconds. Cost: none."""
        limit = patience(timeout)
        end = None if limit is None else monotonic() + limit
        while not self._begun():
            left = _LOOK if end is None else min(_LOOK, end - monotonic())
            if left <= 0:
                return False
            if self._lock.acquire(timeout=left):
                self._release()
        return True

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in a coroutine until a stop begins; with a limit: ``asyncio.wait_for(job.stopping, 5)``."""
        return self._awaited().__await__()

    async def _awaited(self) -> None:
        import asyncio

        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            # It may have been set before the future was there to be told.
            if not self._begun():
                await future
        finally:
            self._futures.remove(future)

    def wake(self) -> None:
        """Wake who waits, since a stop has begun; called by the runner, also from a signal handler."""
        self._release()
        for future in list(self._futures):
            # Its loop may have ended.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_resolve, future)

    def _release(self) -> None:
        # No thread holds it any more where it was set before.
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def __repr__(self) -> str:
        return f"<Stopping {'set' if self._begun() else 'not set'}>"


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def on_event_loop() -> bool:
    """Whether the caller is code of a running event loop."""
    # Not imported for this: where it was never loaded, none runs.
    events: Any = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None  # noqa: SLF001 - documented, for libraries
