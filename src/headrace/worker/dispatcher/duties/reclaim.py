"""The duty of the dispatcher to take back what dead workers hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.protocol import consume
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.worker.dispatcher.duties.duty import BATCH, LATE, moment
from headrace.worker.dispatcher.timers import NEVER
from headrace.worker.dispatcher.worker_state import WorkerState


class Reclaim:
    """Take what dead incarnations hold back into their queues, one after the other, in pieces."""

    makes_ready = True

    def __init__(self, worker: WorkerState, renew: Callable[[], None]) -> None:
        """Make one that knows of no dead incarnation; ``renew``: has the lease renewed soon."""
        self.at = NEVER
        self._worker, self._renew = worker, renew
        self._failure_ttl = microseconds(worker.settings.failure_ttl)
        # Incarnations, and whether it is certain that they are dead.
        self._victims: deque[tuple[str, bool]] = deque()
        # The incarnation whose lease ends first.
        self._suspect = ""

    def add(self, victim: str, *, known: bool) -> None:
        """Take back what this incarnation holds; ``known``: its process is dead, else only its lease is over."""
        self._victims.append((victim, known))
        self.at = 0.0

    def call(self, _: float) -> Call[tuple[str, int]]:
        if not self._victims:
            self._victims.append((self._suspect, False))
            self._suspect = ""
        # It stays due until it is answered.
        self.at = 0.0
        victim, known = self._victims[0]
        return consume.reclaim(self._worker.keys, victim, known, BATCH, self._failure_ttl)

    def on_reply(self, reply: tuple[str, int], _: float) -> None:
        word, _ = reply
        if word == "some":
            self._victims.rotate(-1)
            return
        self._victims.popleft()
        if not self._victims:
            self.at = NEVER
        if word == "done":
            # There may be another lapsed owner behind this one: the next renewal names it.
            self._renew()

    def told(self, renewed: consume.Renewed, sent: float) -> None:
        self._suspect = "" if renewed.lapsing == self._worker.owner else renewed.lapsing
        if not self._victims:
            # An end of 0: another worker began to reclaim it, and died.
            self.at = moment(sent, renewed.now, renewed.lapse or 1) + LATE if self._suspect else NEVER
