"""The supervisor's dispatcher: one process after the other, and the channel to it."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Callable

from headrace.worker.channel import Channel, Closed
from headrace.worker.forking.child_process import fork_child
from headrace.worker.messages import FromSupervisor, ToSupervisor
from headrace.worker.preload import warmup

# From the second on that dies younger than this (seconds), the next one is forked after a pause of at most so long.
YOUNG, MOST_PAUSE = 10.0, 10.0


class DispatcherProcess:
    """The one that works, if any.

    Attributes:
        pid: of its process; 0: there is none.
        fork_at: when one must be forked (monotonic seconds); infinity: none any more.
    """

    def __init__(self, selector: selectors.BaseSelector, hear: Callable[[ToSupervisor], None]) -> None:
        """Make one that is due at once; ``hear``: called with each message of it."""
        self.pid = 0
        self.fork_at = 0.0
        self._selector = selector
        self._hear = hear
        self._control: Channel[ToSupervisor] | None = None
        self._born = 0.0
        self._deaths = 0

    @property
    def socks(self) -> list[socket.socket]:
        """What other children must close."""
        return [] if self._control is None else [self._control.sock]

    def fork(self, work: Callable[[Channel[FromSupervisor]], None], strangers: list[socket.socket]) -> None:
        """Fork one that does this work. Raises OSError: the system has no room for it."""
        mine, theirs = socket.socketpair()
        warmup.write_out()

        def be() -> int:
            self._selector.close()
            # It holds four descriptors for each runner. No code of the application will miss the lower limit there.
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            work(Channel(theirs, FromSupervisor))
            return 0

        with theirs:
            try:
                self.pid = fork_child(be, [mine, *strangers], tied=False)
            except OSError:
                mine.close()
                raise
        self.fork_at, self._born = float("inf"), time.monotonic()
        self._control = Channel(mine, ToSupervisor)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def tell(self, message: FromSupervisor, descriptors: list[int] | None = None) -> None:
        """Send it a message. What a dead one should have heard does not matter: its death is noticed."""
        if self._control is not None:
            with contextlib.suppress(Closed):
                self._control.send(message, descriptors)

    def _on_control(self) -> None:
        control = self._control
        if control is None:
            return
        try:
            messages = control.receive(wait=False)
        except Closed:
            self._selector.unregister(control)
            return
        for message in messages:
            self._hear(message)

    def reaped(self) -> None:
        self.pid = 0
        if self._control is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._control)
            self._control.close()
            self._control = None

    def replace(self) -> None:
        """Another one is due: at once, or after a pause where several died young."""
        self._deaths = self._deaths + 1 if time.monotonic() - self._born < YOUNG else 0
        delay = 0.0 if self._deaths < 2 else min(0.1 * 2 ** min(self._deaths, 7), MOST_PAUSE)
        self.fork_at = time.monotonic() + delay
