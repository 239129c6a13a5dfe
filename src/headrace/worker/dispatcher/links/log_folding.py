"""Log lines that would repeat themselves for as long as a fault lasts: said, then counted."""

from __future__ import annotations

# A fault that lasts is told again after this many seconds, with how often it was met since.
AGAIN_AFTER = 60.0


class Folded:
    """The lines of one source. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._text = ""
        self._said_at = 0.0
        self._unsaid = 0

    def say(self, text: str, now: float) -> list[str]:
        """What to log for ``text``: itself, nothing while it repeats itself, or how often it did."""
        if text != self._text:
            lines = [*self.rest(), text]
            self._text, self._said_at = text, now
            return lines
        self._unsaid += 1
        if now - self._said_at < AGAIN_AFTER:
            return []
        self._said_at = now
        return self._count()

    def rest(self) -> list[str]:
        """The fault is over: how often the last line was repeated and not told."""
        lines = self._count() if self._unsaid else []
        self._text = ""
        return lines

    def _count(self) -> list[str]:
        times, self._unsaid = self._unsaid, 0
        return [f"{self._text} (repeated {times} times)" if times > 1 else f"{self._text} (once more)"]
