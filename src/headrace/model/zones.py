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
    zone, at = zone_of(name), _FIRST
    offset = _offset(zone, at)
    words = ["0", str(offset)]
    while at < _LAST:
        after = at + _STEP
        if (later := _offset(zone, after)) != offset:
            low, high = at, after
            while high - low > _SECOND:
                middle = low + (high - low) // 2
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            words += [str(int((high - EPOCH).total_seconds())), str(later)]
            offset = later
        at = after
    return " ".join(words)


def _offset(zone: tzinfo, at: datetime) -> int:
    offset = at.astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())
