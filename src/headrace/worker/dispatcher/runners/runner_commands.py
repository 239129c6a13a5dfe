"""What runners and the supervisor are told about runners: actions, nothing more."""

from __future__ import annotations

from headrace.worker.dispatcher.dispatcher_events import Actions, Ask, Notify, TakeBack
from headrace.worker.dispatcher.runners.runner_handle import RunnerHandle
from headrace.worker.messages import Exit, Signal, Stop


class RunnerCommands:
    """Decides nothing but whether there is a runner to tell."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def say(self, seat: RunnerHandle, message: Stop | Exit) -> None:
        """Send it a message, if it still hears."""
        if not seat.gone:
            self._actions.add(Notify(seat.number, message))

    def signal(self, seat: RunnerHandle, what: str) -> None:
        """Have the supervisor ``stop`` what it runs, or ``kill`` it."""
        self._actions.add(Ask(Signal(seat.number, what)))

    def take_back(self, seat: RunnerHandle, *, but: int = 0) -> bool:
        """Ask for what it has not begun, ``but`` for the first ones; whether there may be any."""
        if not seat.counted or len(seat.starts) <= but:
            return False
        seat.recalling = True
        self._actions.add(TakeBack(seat.number, len(seat.starts) - but))
        return True
