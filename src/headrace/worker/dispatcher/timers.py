"""When a dispatcher's core must look again although nothing happens: named times. Pure."""

from __future__ import annotations

NEVER = float("inf")


class Timers:
    """Times by name, in the loop's monotonic seconds.

    The core looks at all that it has to do with each event. So a time that is past was looked at, and wakes it no more;
    whoever declines to do something before its time sets a timer, and there is no other place to name it in.
    """

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def set(self, name: str, at: float) -> None:
        """Look again at this time, and not at the one that was set before under this name."""
        self._times[name] = at

    def clear(self, name: str) -> None:
        self._times.pop(name, None)

    def at(self, name: str) -> float:
        """When it is, or was; infinity where it is not set."""
        return self._times.get(name, NEVER)

    def due(self, name: str, now: float) -> bool:
        return now >= self._times.get(name, NEVER)

    def next(self, now: float) -> float:
        """The first of them after now."""
        first = NEVER
        for at in self._times.values():
            if now < at < first:
                first = at
        return first
