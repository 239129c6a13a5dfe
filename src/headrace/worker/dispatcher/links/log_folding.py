"""Log lines that would repeat themselves for as long as a fault lasts, or come in floods: said, then counted."""

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


# Lines of one code and task that a second has room for.
MOST = 10


class Flood:
    """Lines about jobs, of which a second has room for a few of each code and task. Times are monotonic seconds.

    Attributes:
        next: when what was held back must be told.
    """

    def __init__(self) -> None:
        self.next = float("inf")
        self._since = 0.0
        self._counts: dict[tuple[str, str], list[int]] = {}

    def admits(self, code: str, task: str, level: int, now: float) -> bool:
        """Whether a line is to be logged; else it is counted."""
        if now - self._since >= 1.0 and self.next > now:
            self._counts.clear()
            self._since = now
        row = self._counts.setdefault((code, task), [0, level])
        row[0] += 1
        if row[0] > MOST:
            self.next = self._since + 1.0
        return row[0] <= MOST

    def rest(self, now: float) -> list[tuple[int, str, str, int]]:
        """Level, code, task and number of lines that were held back, once their second is over."""
        if now < self.next:
            return []
        held = [(level, *key, count - MOST) for key, (count, level) in self._counts.items() if count > MOST]
        self._counts.clear()
        self._since, self.next = now, float("inf")
        return held
