"""What was read of labels before: those under which nothing was counted since are not read again.

A label holds some hundred counters, most of them buckets of histograms. Two of them say whether anything was counted:
each end of a start adds to ``started``, each new job to ``enqueued``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.protocol.stats_calls import Held

# Fields that change when anything is counted under a task or a queue.
CHANGES = ("started", "enqueued")


class _KnownLabel(NamedTuple):
    """What a label held, and whether it was read again since it changed last."""

    held: Held
    settled: bool

    def changed(self, now: Held) -> bool:
        return any(self.held.get(field, 0) != now.get(field, 0) for field in CHANGES)


class LabelMemory:
    """Labels as they were read last; of those that a reading no longer asks for nothing is kept."""

    def __init__(self) -> None:
        self._known: dict[str, _KnownLabel] = {}

    def changed(self, names: Sequence[str], now: Sequence[Held]) -> list[str]:
        """Those that must be read.

        One that has just changed is read once more: its other counters may have been on their way.

        Args:
            now: what ``CHANGES`` of each are.
        """
        found: list[str] = []
        for name, counts in zip(names, now, strict=True):
            known = self._known.get(name)
            if known is None or not known.settled or known.changed(counts):
                found.append(name)
        return found

    def learn(self, names: Sequence[str], read: Sequence[str], held: Sequence[Held]) -> list[Held]:
        """What each of all names holds.

        Args:
            read: those that were read, and ``held``, what they hold.
        """
        new = dict(zip(read, held, strict=True))
        known: dict[str, _KnownLabel] = {}
        for name in names:
            before = self._known.get(name)
            if name in new:
                known[name] = _KnownLabel(new[name], before is not None and not before.changed(new[name]))
            elif before is not None:
                known[name] = before
        self._known = known
        return [known[name].held for name in names]
