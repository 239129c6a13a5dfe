"""Facts about a schedule that is stored, and about its ticks. Pure records."""

from __future__ import annotations

from typing import Literal

import msgspec


class TickRecord(msgspec.Struct, frozen=True, array_like=True):
    """What became of a tick of a schedule.

    Attributes:
        tick: its nominal time; of several ticks, of the oldest. Microseconds.
        at: when that was noted, microseconds of server time.
        what: ran; missed; skipped (another job of the schedule was at work); twice (it had run before).
        text: id of the job that ran, or of the one that was at work, or why it was missed.
        count: how many ticks this tells of.
    """

    tick: int
    at: int
    what: str
    text: str = ""
    count: int = 1


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A schedule as it is stored. Times are microseconds of server time; 0: none.

    Attributes:
        name: of the schedule.
        about: its times, as :class:`headrace.schedules.timing.Timing` packs them.
        task: name of the task that it runs.
        queue: where its jobs go.
        source: ``code``, declared by workers; ``stored`` at run time.
        missed, within, overlap: its policies; ``within`` in microseconds, 0: without end.
        left: jobs that it may still make; None: without end.
        paused: the note of the pause; None: it is not paused.
        created: when it was declared or put first.
        paused_at, changed, ended, orphaned: when that was.
        runs: jobs that it made.
        known: nominal time up to which its ticks are known.
        ticks: the next ones, nominal and due time each.
        last: what became of its last ticks, oldest first.
    """

    name: str
    about: bytes
    task: str
    queue: str
    source: str
    missed: str
    within: int
    overlap: str
    left: int | None
    paused: str | None
    paused_at: int
    created: int
    changed: int
    ended: int
    orphaned: int
    runs: int
    known: int
    ticks: list[tuple[int, int]]
    last: list[TickRecord]

    @property
    def state(self) -> Literal["active", "paused", "ended", "orphaned"]:
        """Whether it makes jobs."""
        if self.ended:
            return "ended"
        if self.orphaned:
            return "orphaned"
        return "active" if self.paused is None else "paused"
