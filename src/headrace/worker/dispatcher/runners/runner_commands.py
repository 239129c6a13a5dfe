"""What runners and the supervisor are told about runners: actions, nothing more."""

from __future__ import annotations

from headrace.worker.dispatcher.dispatcher_events import Actions, Notify, TakeBack
from headrace.worker.dispatcher.runners.runner_handle import RunnerHandle
from headrace.worker.messages import Exit, Signal, Stop


class RunnerCommands:
    """Decides nothing but whether there is a runner to tell."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def say(self, handle: RunnerHandle, message: Stop | Exit) -> None:
        """Send it a message, if it still hears."""
        if not handle.gone:
            self._actions.add(Notify(handle.number, message))

    def signal(self, handle: RunnerHandle, what: str) -> None:
        """Have the supervisor ``stop`` what it runs, or ``kill`` it."""
        self._actions.add(Signal(handle.number, what))

    def take_back(self, handle: RunnerHandle, *, but: int = 0) -> bool:
        """Ask for what it has not begun, ``but`` for the first ones; whether there may be any."""
        if len(handle.starts) <= but:
            return False
        handle.recalling = True
        self._actions.add(TakeBack(handle.number, len(handle.starts) - but))
        return True
