"""When a schedule ticks. Pure; times are microseconds of UTC.

cronsim (BSD-3-Clause, by the author of Healthchecks) reads expressions and finds times. This module adds expressions
without seconds only, errors that name the field, and ticks that always advance in UTC.

A tick is a nominal time. It is due later than that by its jitter, which follows from the schedule's name and the tick:
every worker, every preview and every repeat computes the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from headrace.errors import MissingExtra, OptionsError
from headrace.model import option_checks
from headrace.model.notation import EPOCH, change_after, zone_of
from headrace.settings import Duration, microseconds, seconds

if TYPE_CHECKING:
    from cronsim import CronSim

SECOND = 1_000_000
# Ids of jobs hold the tick in milliseconds.
_FINEST = 10_000
_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_SHORTCUTS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
# Of each field: its first and last value, its longest step, and the unit of even intervals, if the field has one.
_STEPS = ((0, 59, 59, "minutes"), (0, 23, 23, "hours"), (1, 31, 30, "days"), (1, 12, 11, ""), (0, 7, 6, ""))
_RANGES = "minute 0-59, hour 0-23, day-of-month 1-31, month 1-12 or JAN-DEC, day-of-week 0-7 or SUN-SAT"


class Cron(msgspec.Struct, frozen=True):
    """Ticks at the minutes that a cron expression of five fields names: ``Cron("0 9 * * MON-FRI", timezone="UTC")``.

    Names of months and days, ``L`` (the last day), ``LW`` (the last working day), ``5L`` and ``MON#2`` are read as
    Debian's cron and cronsim read them. Where clocks are set forward, a fixed time in the gap ticks once, right after
    the gap. Where clocks are set back, a fixed time ticks once, at the first of the two. Expressions whose minute or
    hour begins with ``*`` follow elapsed time.

    Attributes:
        expression: minute, hour, day of month, month, day of week.
        timezone: a name of the IANA database, such as ``Europe/Berlin``.

    Raises:
        OptionsError: the expression cannot be read; names the field. Or it names a day that never comes, or has a step
            that is longer than its field: ``*/90`` of the minutes would tick once an hour. Or there is no such zone on
            this machine.
        MissingExtra: cronsim is not installed.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _no_expression(self.expression, "")
        if not isinstance(self.timezone, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(
                f"a time zone is a name of the IANA database, such as Europe/Berlin, not {self.timezone!r:.80}"
            )
        _checked(self.expression, self.timezone)

    def after(self, moment: int) -> Iterator[int]:
        """Ticks later than ``moment``, soonest first; ends where none comes within 50 years. Cost: none."""
        minute, hour, *_ = self.expression.split()
        by = _by_elapsed if minute.startswith("*") or hour.startswith("*") else _by_clock
        return by(self.expression, zone_of(self.timezone), moment)


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks at even intervals from 1970 on, UTC: ``Every(3600)``, ``Every(timedelta(days=1), offset=3600)``.

    The interval does not begin anew at a deploy, a restart or a late run. Days are of 24 hours; for a time of the day
    in a zone use :class:`Cron`.

    Attributes:
        interval: seconds or a timedelta, at least a second, of whole hundredths of a second.
        offset: how much later than the multiples of ``interval``; less than it.

    Raises:
        OptionsError: one of them cannot be used.
    """

    interval: Duration
    offset: Duration = 0
    step: int = field(init=False, repr=False, compare=False)
    shift: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        step, shift = span("interval", self.interval), span("offset", self.offset)
        if step < SECOND:
            raise OptionsError(f"interval must be at least a second, not {self.interval!r}")
        if step % _FINEST or shift % _FINEST:
            raise OptionsError(
                "interval and offset must be whole hundredths of a second: ids of jobs hold no finer time"
            )
        if shift >= step:
            raise OptionsError(f"offset must be less than the interval, and {self.offset!r} is not less than it")
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "shift", shift)

    def after(self, moment: int) -> Iterator[int]:
        """Ticks later than ``moment``, soonest first; they do not end. Cost: none."""
        tick = (moment - self.shift) // self.step * self.step + self.shift
        while True:
            tick += self.step
            yield tick


Timetable: TypeAlias = Cron | Every


def clock_changes(zone: str, moment: int) -> Iterator[int]:
    begin = _local(moment, zone_of(zone))
    end = begin + timedelta(days=366)
    while (found := change_after(begin, end)) is not None:
        yield _instant(found)
        begin = found.astimezone(begin.tzinfo)


def span(name: str, value: Duration) -> int:
    try:
        return microseconds(seconds(value, name))
    except ValueError as error:
        raise OptionsError(str(error)) from None


def moment_of(name: str, value: datetime | None) -> int:
    """A moment in microseconds since 1970; 0 for none. Raises OptionsError: no datetime, or one without a time zone."""
    return 0 if value is None else option_checks.moment(name, value)


def time_of(moment: int) -> datetime:
    return EPOCH + timedelta(microseconds=moment)


@lru_cache(1024)
def _checked(expression: str, zone: str) -> None:
    fields = expression.split()
    if fields and fields[0].startswith("@"):
        instead = _SHORTCUTS.get(fields[0].lower())
        hint = f"write {instead!r}" if instead else "a schedule has times, not events: use a lifespan or `enqueue`"
        raise OptionsError(f"{expression!r} is not a cron expression of five fields: {hint}")
    if len(fields) != 5:
        more = ": seconds are not among them, so use app.every(...) for less than a minute" if len(fields) == 6 else ""
        raise _no_expression(expression, more)
    zone_of(zone)
    if _simulated(expression, datetime(2000, 1, 1)) is None:  # noqa: DTZ001 - only whether there is one
        raise _never(expression)
    _check_steps(expression, fields)


def _check_steps(expression: str, fields: list[str]) -> None:
    """Refuse a step that is longer than what it divides, since its field then has one value."""
    for name, text, (lowest, highest, longest, unit) in zip(_FIELDS, fields, _STEPS, strict=True):
        for term in text.split(","):
            values, _, step = term.partition("/")
            low, _, high = values.partition("-")
            first, last = int(low) if low.isdecimal() else lowest, int(high) if high.isdecimal() else highest
            if step.isdecimal() and int(step) > min(last - first, longest):
                only = lowest if low == "*" else low
                every = f", or app.every(timedelta({unit}={int(step)}), ...) for an even interval" if unit else ""
                raise OptionsError(
                    f"the step of {term!r}, field {name} of {expression!r}, is longer than its range: "
                    f"write '{only}' for that one value{every}"
                )


def _simulated(expression: str, start: datetime) -> datetime | None:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError:
        raise MissingExtra("cron expressions need cronsim: pip install 'headrace[cron]'") from None
    try:
        rounds: CronSim = CronSim(expression, start)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        # cronsim refuses a day that never comes as a day that cannot be read.
        part = expression.split()[2]
        if name == "day-of-month" and part.isdecimal() and 1 <= int(part) <= 31:
            raise _never(expression) from None
        place = _FIELDS.index(name) if name in _FIELDS else 0
        raise OptionsError(
            f"cannot read the field {name} of {expression!r}, {expression.split()[place]!r}: {_RANGES}"
        ) from None
    except (ValueError, AssertionError, IndexError, TypeError):
        raise OptionsError(f"cannot read the cron expression {expression!r}: {_RANGES}") from None
    return next(rounds, None)


def _no_expression(given: object, more: str) -> OptionsError:
    return OptionsError(f"a cron expression has five fields, {', '.join(_FIELDS)}; {given!r:.80} is not one{more}")


def _never(expression: str) -> OptionsError:
    return OptionsError(f"the day-of-month and the month of {expression!r} name a day that never comes")


# cronsim is asked for times without a zone only: with one, it strays where clocks change by half an hour.
def _by_clock(expression: str, zone: tzinfo, moment: int) -> Iterator[int]:
    from cronsim import CronSim

    last = moment
    for time in CronSim(expression, _local(moment, zone).replace(tzinfo=None)):
        tick = _instant(_existing(time, zone))
        # Several times in one gap are one tick; of a time that comes twice the first may have passed.
        if tick > last:
            last = tick
            yield tick


def _by_elapsed(expression: str, zone: tzinfo, moment: int) -> Iterator[int]:
    from cronsim import CronSim

    begin = _local(moment // SECOND * SECOND, zone)
    while True:
        shift = begin.utcoffset() or timedelta()
        reached = begin
        for time in CronSim(expression, begin.replace(tzinfo=None)):
            found = (time - shift).replace(tzinfo=UTC).astimezone(zone)
            if (change := change_after(reached, found)) is not None:
                # A second before, by the new clock: a tick may be at the very change.
                begin = change.astimezone(zone)
                if (tick := _instant(begin)) > moment and _matches(expression, begin):
                    yield tick
                break
            reached = found
            yield _instant(found)
        else:
            return


def _matches(expression: str, time: datetime) -> bool:
    from cronsim import CronSim

    naive = time.replace(tzinfo=None)
    return not naive.second and next(CronSim(expression, naive - timedelta(seconds=1)), None) == naive


def _existing(time: datetime, zone: tzinfo) -> datetime:
    while True:
        found = time.replace(tzinfo=zone, fold=0)
        if found.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == time:
            return found
        time += timedelta(minutes=1)


def _local(moment: int, zone: tzinfo) -> datetime:
    return time_of(moment).astimezone(zone)


def _instant(time: datetime) -> int:
    return (time.astimezone(UTC) - EPOCH) // timedelta(microseconds=1)


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
    """What was missed: nominal times that are to be looked at again, oldest first; how many others; whether more."""

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
        if self.cron:
            return Cron(self.cron, self.zone)
        return Every(self.step / SECOND, self.shift / SECOND)

    @property
    def text(self) -> str:
        if self.cron:
            return f"{self.cron} {self.zone}"
        return f"every {self.step / SECOND:g} s" + (f" + {self.shift / SECOND:g} s" if self.shift else "")

    def packed(self) -> bytes:
        return _pack(self)

    def after(self, moment: int) -> Iterator[int]:
        ticks = self.timetable.after(max(moment, self.start - 1))
        return takewhile(lambda tick: tick <= self.until, ticks) if self.until else ticks

    def due(self, name: str, tick: int) -> int:
        return tick + jitter(name, tick, self.jitter)

    def missed(self, last: int, now: int, most: int) -> Search:
        """Ticks after ``last`` until ``now``: the newest of them, at most ``most``. The search begins near ``now`` and
        goes back in growing steps, so that it costs the same after a minute and after a year.
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
        """Ticks after ``begin`` until ``end``, and whether these are all: of too many the newest, ``least`` or more."""
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
    try:
        return msgspec.msgpack.decode(about, type=Timing)
    except (msgspec.MsgspecError, ValueError):
        return None


def jitter(name: str, tick: int, most: int) -> int:
    if not most:
        return 0
    digest = hashlib.blake2b(f"{name}:{tick}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (most + 1)


def timing_of(
    timetable: Timetable, name: str, jitter_us: int, start: int, until: int, now: int, *, code: bool = False
) -> Timing:
    """What is stored of a schedule's times; a schedule without a tick after ``now`` is refused. ``code``: code declares
    it, and outlives it: one whose ``until`` has passed is refused only if it never ticked.
    """
    if until and until < max(start, 1):
        raise OptionsError("until is before start: no tick would come")
    if isinstance(timetable, Cron):
        timing = Timing(timetable.expression, timetable.timezone, jitter=jitter_us, start=start, until=until)
    else:
        timing = Timing(step=timetable.step, shift=timetable.shift, jitter=jitter_us, start=start, until=until)
    ticks = list(islice(timing.after(now), 1))
    if not ticks and not (code and 0 < until <= now and any(True for _ in timing.after(0))):
        raise OptionsError(f"schedule {name!r} has no tick from now on: {timing.text} ends before one comes")
    nearest = _nearest(timing, max(now, start - 1)) if jitter_us else 0
    if nearest and jitter_us >= nearest:
        raise OptionsError(
            f"jitter must be less than the time between two ticks, and {timing.text} has ticks "
            f"{nearest / SECOND:,.9g} s apart"
        )
    return timing


def _nearest(timing: Timing, moment: int) -> int:
    """The least time between two ticks after ``moment``; 0: there are no two. Also where clocks change within a year:
    else it would go by the date of a deploy whether a jitter is refused.
    """
    found = _least(timing, moment)
    zone = timing.zone if timing.cron and found else ""
    beside = (
        _least(timing, max(moment, change - found - _HOUR)) for change in (clock_changes(zone, moment) if zone else ())
    )
    return min((found, *filter(None, beside)))


def _least(timing: Timing, moment: int) -> int:
    ticks = islice(timing.after(moment), _SAMPLE)
    return min((second - first for first, second in pairwise(ticks)), default=0)


def refilled(timing: Timing, last: int, now: int, most: int) -> tuple[list[int], Search]:
    """Nominal times that follow a schedule's last known tick: what was missed meanwhile, and what comes next."""
    search = timing.missed(last, now, most) if now > last else Search([], 0, False)
    return search.ticks + list(islice(timing.after(max(last, now)), AHEAD)), search
