"""Stored times as datetimes and texts, sizes and durations for people, time zones and their changes. Pure."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from headrace.errors import OptionsError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(microseconds: int) -> datetime | None:
    """A stored time as a datetime; None for 0, and for what unreadable bytes claim to be a time."""
    try:
        return EPOCH + timedelta(microseconds=microseconds) if microseconds > 0 else None
    except OverflowError:
        return None


class Moment:
    """A time of a record as a datetime in UTC, of its attribute with ``_us``; None: it was not reached."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._source = f"{name}_us"

    def __get__(self, record: object, owner: type) -> datetime | None:
        return utc(getattr(record, self._source, 0))


def iso(microseconds: int) -> str | None:
    """A time of the store for programs: ISO 8601 in UTC; None when it was not reached."""
    at = utc(microseconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z") if at else None


def size(amount: float) -> str:
    """Bytes for people: ``12 B``, ``3.4 KiB``, ``56 MiB``."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1023.5:  # more is 1024 when it is rounded
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}" if amount < 10 and unit != "B" else f"{amount:.0f} {unit}"


def shown_share(share: float) -> float:
    """A share as it is rounded for people: what is almost all is not shown as all of it."""
    return min(share, 0.99) if share < 1 else share


def duration(microseconds: float) -> str:
    """``30 µs``, ``12.3 ms``, ``2.06 s``, ``3 min 20 s``, ``5 h 10 min``, ``12 d 3 h``; 0 for less than half a µs."""
    seconds = microseconds / 1e6
    if seconds < 59.95:
        for unit, length in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)):
            if seconds < 999.5 * length:
                return f"{seconds / length:.3g} {unit}" if seconds >= 0.0000005 else "0"
    whole = round(seconds)
    for high, low, most, length in (("min", "s", 3600, 60), ("h", "min", 86400, 3600)):
        if whole < most:
            rest = whole % length // (length // 60)
            return f"{whole // length} {high}" + (f" {rest} {low}" if rest else "")
    days, hours = divmod(whole // 3600, 24)
    return f"{days:,} d" + (f" {hours} h" if hours and days < 60 else "")


# Changes of clocks that are told: of these years.
_FIRST = datetime(2020, 1, 1, tzinfo=UTC)
_LAST = datetime(2051, 1, 1, tzinfo=UTC)
_STEP = timedelta(days=5)
_SECOND = timedelta(seconds=1)


@lru_cache(256)
def zone_of(name: str) -> tzinfo:
    """The time zone of a name. Raises OptionsError: this machine does not know it."""
    from zoneinfo import ZoneInfo, available_timezones

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    known = available_timezones()
    if not known:
        raise OptionsError(
            f"this machine has no time zones, so {name!r} is unknown: pip install 'headrace[cron]', which brings tzdata"
        )
    near = difflib.get_close_matches(str(name), known, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else "take a name of the IANA database, such as Europe/Berlin"
    raise OptionsError(f"there is no time zone {name!r}: {hint}")


@lru_cache(256)
def changes_of(name: str) -> str:
    """When the clocks of a zone change, until 2050: ``0 3600 1585443600 7200 ...``. From each time on, seconds since
    1970, they are ahead of UTC by the seconds behind it. Raises OptionsError: this machine does not know it.
    """
    zone = zone_of(name)
    at, changed = _FIRST.astimezone(zone), EPOCH
    words: list[str] = []
    while True:
        offset = at.utcoffset() or timedelta()
        words += [str(int((changed - EPOCH).total_seconds())), str(round(offset.total_seconds()))]
        if (found := change_after(at, _LAST, _STEP)) is None:
            return " ".join(words)
        at, changed = found.astimezone(zone), found


def change_after(begin: datetime, end: datetime, step: timedelta = timedelta(days=1)) -> datetime | None:
    """When a clock changes after ``begin``, until ``end``, to the second; no change that is undone within ``step``."""
    zone, shift = begin.tzinfo, begin.utcoffset()
    low, last = begin.astimezone(UTC), end.astimezone(UTC)
    while low < last:
        high = min(low + step, last)
        if high.astimezone(zone).utcoffset() != shift:
            while (half := (high - low) // 2 // _SECOND * _SECOND) >= _SECOND:
                if (low + half).astimezone(zone).utcoffset() == shift:
                    low += half
                else:
                    high = low + half
            return high
        low = high
    return None
