"""Log lines that would repeat themselves for as long as a fault lasts: said, then counted."""

from __future__ import annotations

# A fault that lasts is told again after this many seconds, with how often it was met since.
AGAIN_AFTER = 60.0
# Lines that are counted at once: a server that is half away fails in two or three ways by turns.
MOST = 8


class Folded:
    """The lines of one source. Times are monotonic seconds."""

    def __init__(self) -> None:
        # By line: when it was said, and how often it was met since.
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, text: str, now: float) -> list[str]:
        """What to log for ``text``: itself, nothing while it repeats itself, or how often it did."""
        if text not in self._said:
            lines = self.rest() if len(self._said) == MOST else []
            self._said[text] = now, 0
            return [*lines, text]
        at, times = self._said[text]
        over = now - at >= AGAIN_AFTER
        self._said[text] = (now, 0) if over else (at, times + 1)
        return [_counted(text, times + 1)] if over else []

    def rest(self) -> list[str]:
        """The fault is over: how often lines were repeated and not told."""
        said, self._said = self._said, {}
        return [_counted(text, times) for text, (_, times) in said.items() if times]


def _counted(text: str, times: int) -> str:
    return f"{text} (repeated {times} times)" if times > 1 else f"{text} (once more)"
