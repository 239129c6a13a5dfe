"""The stored times of a schedule: which ticks come next, when each is due, and which were missed. Pure.

A tick is a nominal time, in microseconds of UTC. It is due later than that by its jitter, which follows from the
schedule's name and the tick: every worker, every preview and every repeat reckons the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice, pairwise, takewhile
from typing import Literal

import msgspec

from headrace.errors import CronError
from headrace.schedules.timetables import SECOND, Cron, Every, Timetable, changes

Missed = Literal["latest", "skip", "all"]
Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]

# Ticks that are kept ahead of time.
AHEAD = 16
# Missed ticks that run at most, where all of them are to.
MOST_MISSED = 100
# Ticks that a search for missed ones looks at, at most, on top of those that it brings.
_LOOK = 1000
_HOUR = 3600 * SECOND
# Ticks by which a jitter is checked against the interval.
_SAMPLE = 64

_pack = msgspec.msgpack.Encoder().encode


class Search(msgspec.Struct, frozen=True):
    """What was missed.

    Attributes:
        ticks: nominal times that are to be looked at again, oldest first.
        passed: how many others were missed.
        more: there were more than ``passed``, which nobody counted.
    """

    ticks: list[int]
    passed: int
    more: bool


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times of a schedule as its record holds them; microseconds.

    Attributes:
        cron, zone: an expression and its time zone; or
        step, shift: an interval and its offset.
        jitter: how much later than its nominal time a tick is due at most.
        start, until: ticks from and to these times only; 0: no such bound.
    """

    cron: str = ""
    zone: str = "UTC"
    step: int = 0
    shift: int = 0
    jitter: int = 0
    start: int = 0
    until: int = 0

    @property
    def timetable(self) -> Timetable:
        """When it ticks.

        Raises:
            CronError, UnknownTimezone, MissingExtra: this machine cannot reckon it.
        """
        if self.cron:
            return Cron(self.cron, self.zone)
        return Every(self.step / SECOND, self.shift / SECOND)

    @property
    def text(self) -> str:
        """For people."""
        if self.cron:
            return f"{self.cron} {self.zone}"
        return f"every {self.step / SECOND:g} s" + (f" + {self.shift / SECOND:g} s" if self.shift else "")

    def packed(self) -> bytes:
        return _pack(self)

    def after(self, moment: int) -> Iterator[int]:
        """Nominal times later than ``moment``, within its bounds."""
        ticks = self.timetable.after(max(moment, self.start - 1))
        return takewhile(lambda tick: tick <= self.until, ticks) if self.until else ticks

    def due(self, name: str, tick: int) -> int:
        """When a tick of the schedule of this name is due."""
        return tick + jitter(name, tick, self.jitter)

    def missed(self, last: int, now: int, most: int) -> Search:
        """Ticks after ``last`` until ``now``: the newest of them, at most ``most``.

        The search begins near ``now`` and goes back in growing steps, so that it costs the same after a minute and
        after a year.
        """
        end = min(now, self.until) if self.until else now
        window, begin = _HOUR, end
        while True:
            begin = max(last, begin - window)
            found, all_of_it = self._between(begin, end, most)
            if begin == last or len(found) > most or not all_of_it:
                break
            window *= 4
        ticks = found[-most:]
        return Search(ticks, len(found) - len(ticks), begin > last or not all_of_it)

    def _between(self, begin: int, end: int, least: int) -> tuple[list[int], bool]:
        """Ticks after ``begin`` until ``end``; and whether these are all.

        Of too many the newest count: ``least`` of them, and up to ``_LOOK`` more.
        """
        most = least + _LOOK
        if self.step:
            found = self._first(max(begin, end - (most + 1) * self.step), end, most + 1)
            return found[-most:], len(found) <= most
        found = self._first(begin, end, most + 1)
        if len(found) <= most:
            return found, True
        # More than one a minute there cannot be: nearer to the end there are fewer, and too few beyond all of them.
        many, few = begin, end
        while not least <= len(found) <= most:
            half = (many + few) // 2
            found = self._first(half, end, most + 1)
            many, few = (half, few) if len(found) > most else (many, half)
        return found, False

    def _first(self, begin: int, end: int, most: int) -> list[int]:
        return list(islice(takewhile(lambda tick: tick <= end, self.after(begin)), most))


def read_timing(about: bytes) -> Timing | None:
    """The times of a record's ``about``; None for what cannot be read."""
    try:
        return msgspec.msgpack.decode(about, type=Timing)
    except (msgspec.MsgspecError, ValueError):
        return None


def jitter(name: str, tick: int, most: int) -> int:
    """Microseconds from 0 to ``most`` that follow from the name and the tick."""
    if not most:
        return 0
    digest = hashlib.blake2b(f"{name}:{tick}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (most + 1)


def timing_of(
    timetable: Timetable, name: str, jitter_us: int, start: int, until: int, now: int, *, code: bool = False
) -> Timing:
    """What is stored of a schedule's times.

    Args:
        now: microseconds; a schedule that has no tick after it is refused.
        code: code declares it, and outlives it: one whose ``until`` has passed is refused only if it never ticked.

    Raises:
        CronError: the jitter is not below the interval, the end is before the start, or no tick comes.
    """
    if until and until < max(start, 1):
        raise CronError("until is before start: no tick would come")
    if isinstance(timetable, Cron):
        timing = Timing(timetable.expression, timetable.timezone, jitter=jitter_us, start=start, until=until)
    else:
        timing = Timing(step=timetable.step, shift=timetable.shift, jitter=jitter_us, start=start, until=until)
    ticks = list(islice(timing.after(now), 1))
    if not ticks and not (code and 0 < until <= now and any(True for _ in timing.after(0))):
        raise CronError(f"schedule {name!r} has no tick from now on: {timing.text} ends before one comes")
    nearest = _nearest(timing, max(now, start - 1)) if jitter_us else 0
    if nearest and jitter_us >= nearest:
        raise CronError(
            f"jitter must be less than the time between two ticks, and {timing.text} has ticks "
            f"{nearest / SECOND:,.9g} s apart"
        )
    return timing


def _nearest(timing: Timing, moment: int) -> int:
    """The least time between two ticks after ``moment``; 0: there are no two.

    Also where clocks change within a year: else it would go by the date of a deploy whether a jitter is refused.
    """
    found = _least(timing, moment)
    zone = timing.zone if timing.cron and found else ""
    beside = (_least(timing, max(moment, change - found - _HOUR)) for change in (changes(zone, moment) if zone else ()))
    return min((found, *filter(None, beside)))


def _least(timing: Timing, moment: int) -> int:
    ticks = islice(timing.after(moment), _SAMPLE)
    return min((second - first for first, second in pairwise(ticks)), default=0)


def refilled(timing: Timing, last: int, now: int, most: int) -> tuple[list[int], Search]:
    """Nominal times that follow a schedule's last known tick: what was missed meanwhile, and what comes next.

    Args:
        last: nominal time of the last tick that is known.
        most: how many missed ones are to be looked at again.
    """
    search = timing.missed(last, now, most) if now > last else Search([], 0, False)
    return search.ticks + list(islice(timing.after(max(last, now)), AHEAD)), search
