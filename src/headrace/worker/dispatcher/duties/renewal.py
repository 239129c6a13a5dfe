"""The duty of the dispatcher that tells when all others are due: to renew the lease."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.protocol import consume
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.worker.dispatcher.worker_state import WorkerState

# Share of the lease after which it is renewed: there is time for a second try, and an idle worker says little.
RENEW = 0.4


class Renewal:
    """Keep the lease, and hear from the store what else there is to do.

    Attributes:
        lease_until: until when this incarnation is sure of what it holds, reckoned from before the renewal was sent.
        gone: the lease was lost.
        doubts: how many renewals in a row have counted other jobs than we do.
        paused: queues that it serves and that were paused at the last renewal.
        ready: how many of its queues had ready jobs at the last renewal and were not paused.
        looked: when that renewal was sent (monotonic seconds).
        cancels: ids that run here and were asked to stop, to be taken by the core.
    """

    makes_ready = True

    def __init__(
        self,
        worker: WorkerState,
        metadata: Callable[[], Sequence[str | int]],
        expected: Callable[[], int],
        tell: Callable[[consume.Renewed, float], None],
    ) -> None:
        """Make one that is due at once.

        Args:
            metadata: what the worker says of itself has changed: names and values.
            expected: how many jobs the store should count as held.
            tell: passes the reply on to all whom it concerns.
        """
        self.at = 0.0
        self.lease_until = 0.0
        self.gone = False
        self.doubts = 0
        self.ready = 0
        self.looked = 0.0
        self.cancels: deque[str] = deque()
        self.paused = frozenset[str]()
        self._worker, self._lease = worker, worker.settings.lease
        self._metadata, self._expected, self._tell = metadata, expected, tell
        self._held = 0
        # Whether it is to hear when the next tick is due. What brings an earlier one has all renew at once, so once a
        # tick is known, no renewal asks that comes with time: schedules cost an idle worker no command.
        self._asks_ticks = True

    def begin(self, sent: float) -> None:
        """A new incarnation was registered by a request sent at ``sent``."""
        self.gone, self.doubts = False, 0
        self.lease_until = sent + self._lease
        # At once, since the first renewal tells what else is due in this store.
        self.renew_soon()
        self.at = sent

    def call(self, now: float) -> Call[consume.Renewed]:
        self.at = now + self._lease * RENEW
        worker, lease = self._worker, microseconds(self._lease)
        queues, metadata = worker.options.queues.names, self._metadata()
        call = consume.renew(worker.keys, worker.owner, lease, metadata, queues, self._asks_ticks)
        self._held = self._expected()
        return call

    def on_reply(self, reply: consume.Renewed, sent: float) -> None:
        if reply.alive:
            self.paused, self.ready, self.looked = frozenset(reply.paused), reply.ready, sent
            self._tell(reply, sent)
        else:
            self.gone = True

    def told(self, renewed: consume.Renewed, sent: float) -> None:
        self.doubts = self.doubts + 1 if renewed.held != self._held else 0
        self.lease_until = sent + self._lease
        self.cancels.extend(renewed.cancels)
        if renewed.tick is not None and self.at:
            self._asks_ticks = not renewed.tick

    def renew_soon(self) -> None:
        """Renew soon: the worker has something to say of itself, or there is something to hear."""
        self.at, self._asks_ticks = 0.0, True
