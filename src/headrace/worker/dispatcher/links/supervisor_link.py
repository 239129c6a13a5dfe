"""A dispatcher's way to its supervisor: messages both ways, and the descriptors of new runners. Never waits."""

from __future__ import annotations

import contextlib

from headrace.worker.channel import Channel, Closed
from headrace.worker.dispatcher.dispatcher_events import Event, Orphaned
from headrace.worker.dispatcher.links.runner_links import RunnerLinks
from headrace.worker.dispatcher.links.watched import Selectors
from headrace.worker.messages import Died, FromSupervisor, Spawned, ToSupervisor


class ControlLink:
    """The channel to the supervisor.

    What the supervisor says of runners goes to their links, the rest into the loop's inbox.
    """

    def __init__(
        self, control: Channel[FromSupervisor], watched: Selectors, links: RunnerLinks, inbox: list[Event]
    ) -> None:
        self._control = control
        self._watched = watched
        self._links = links
        self._inbox = inbox
        watched.watch(control, self._on_ready, urgent=True)

    def ask(self, message: ToSupervisor) -> None:
        """Send a message after what did not fit before.

        Never waits: the supervisor may be waiting for us to read what it said. That it is gone its socket will tell.
        """
        with contextlib.suppress(Closed):
            self._control.offer(message)
            self._watched.also_write(self._control, wanted=self._control.full)

    def _on_ready(self) -> None:
        control = self._control
        if control.full:
            with contextlib.suppress(Closed):
                control.flush()
                self._watched.also_write(control, wanted=control.full)
        try:
            messages = control.receive_with_descriptors()
        except Closed:
            self._watched.unwatch(control)
            self._inbox.append(Orphaned())
            self._links.kill_all()
            return
        for message in messages:
            match message:
                case Spawned():
                    self._links.add(message, [control.descriptors.popleft() for _ in range(4)])
                case Died():
                    self._links.died(message)
                case _:
                    self._inbox.append(message)
