"""What a dispatcher's core has under way to the store, as far as it decides what may be sent now. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.worker.dispatcher.dispatcher_events import Actions, Send, SendFirst, Sleep, Step, WakeUp


class StoreRequests:
    """One request at a time, and a sleep beside it.

    Attributes:
        number: of the last call that has one, so that the store recognizes one that is repeated.
        ready: whether a request may be sent.
        firsts: whether some were sent first in this turn: then ``ready`` must be told anew.
        away: the connections were lost, and nothing was answered since.
        armed: whether a sleep is under way; ``waking``: whether it is being ended.
    """

    def __init__(self, actions: Actions) -> None:
        self.number = 0
        self.ready = self.firsts = self.armed = self.waking = False
        self.away = True
        self._actions = actions

    def send(self, steps: list[Step]) -> None:
        """Send these in one round trip, which must be ``ready``."""
        self.ready = False
        self._actions.add(Send(steps))

    def send_first(self, steps: list[Step]) -> None:
        """Send these before what waits to be sent again."""
        self.ready, self.firsts = False, True
        self._actions.add(SendFirst(steps))

    def sleep(self, keys: Sequence[str], claim: Step) -> None:
        """Sleep on wake-up keys; the claim is made when the sleep ends."""
        self.armed, self.waking = True, False
        self._actions.add(Sleep(list(keys), claim))

    def wake_up(self) -> None:
        if self.armed and not self.waking:
            self.waking = True
            self.ready = False
            self._actions.add(WakeUp())

    def lost(self) -> None:
        """The connections are gone. What was under way is sent again before anything else."""
        self.ready = self.armed = False
        self.away = True

    def may_send(self) -> None:
        """Everything that was sent is answered."""
        self.ready, self.away = not self.firsts, False
