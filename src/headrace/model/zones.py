"""Time zones by name, and when their clocks change. Pure."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from headrace.errors import UnknownTimezone
from headrace.model.notation import EPOCH

# Changes of clocks that are told: of these years.
_FIRST, _LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2051, 1, 1, tzinfo=UTC)
_STEP, _SECOND = timedelta(days=5), timedelta(seconds=1)


@lru_cache(256)
def zone_of(name: str) -> tzinfo:
    """The time zone of a name.

    Raises:
        UnknownTimezone: this machine does not know it.
    """
    from zoneinfo import ZoneInfo, available_timezones

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    known = available_timezones()
    if not known:
        raise UnknownTimezone(
            f"this machine has no time zones, so {name!r} is unknown: pip install 'headrace[cron]', which brings tzdata"
        )
    near = difflib.get_close_matches(str(name), known, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else "take a name of the IANA database, such as Europe/Berlin"
    raise UnknownTimezone(f"there is no time zone {name!r}: {hint}")


@lru_cache(256)
def changes_of(name: str) -> str:
    """When the clocks of a zone change, until 2050: ``0 3600 1585443600 7200 ...``.

    From each time on, seconds since 1970, they are ahead of UTC by the seconds behind it.

    Raises:
        UnknownTimezone: this machine does not know it.
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
    """The first moment after ``begin``, until ``end``, at which the clock of their zone has changed; to the second.

    Args:
        step: a clock that changes and changes back within it was not changed.
    """
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
