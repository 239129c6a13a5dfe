"""Ticks reckoned the slow way, as an oracle: every minute of a window is looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

# Zone -> a moment near a change of its clocks, and what is special there.
CHANGES: dict[str, list[str]] = {
    "UTC": ["2026-03-29"],
    "Europe/Berlin": ["2026-03-29", "2026-10-25"],
    "America/New_York": ["2026-03-08", "2026-11-01"],
    # Half an hour.
    "Australia/Lord_Howe": ["2026-04-05", "2026-10-04"],
    # A day that was left out.
    "Pacific/Apia": ["2011-12-30", "2011-09-24"],
    # Back for Ramadan, which is its "summer time" turned round.
    "Africa/Casablanca": ["2026-02-15", "2026-03-22"],
    # The day begins at one o'clock.
    "Africa/Cairo": ["2026-04-24", "2026-10-30"],
    "America/Havana": ["2026-03-08", "2026-11-01"],
    "Asia/Beirut": ["2026-03-29", "2026-10-25"],
    "America/Asuncion": ["2023-10-01", "2024-03-24"],
    # 45 minutes beside the hour, and changes at 02:45.
    "Pacific/Chatham": ["2026-04-05", "2026-09-27"],
    # 00:00 came twice.
    "America/Sao_Paulo": ["2018-02-18", "2018-11-04"],
    "Asia/Kathmandu": ["2026-03-29"],
    "Europe/Dublin": ["2026-03-29", "2026-10-25"],
}


@lru_cache(256)
def _values(text: str, low: int, high: int) -> set[int]:
    found = set[int]()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if first == "*":
            found |= set(range(low, high + 1, int(step or 1)))
        else:
            found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def _day_matches(time: datetime, fields: list[str]) -> bool:
    if time.month not in _values(fields[3], 1, 12):
        return False
    by_day = time.day in _values(fields[2], 1, 31)
    by_week = time.isoweekday() % 7 in {day % 7 for day in _values(fields[4], 0, 7)}
    both = fields[2].startswith("*") or fields[4].startswith("*")
    return (by_day and by_week) if both else (by_day or by_week)


@lru_cache(4)
def _minutes(zone: ZoneInfo, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Every minute that there is after ``start`` until ``end``: of UTC, and by the clock of the zone."""
    found, time = [], start.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while time <= end:
        found.append((time, time.astimezone(zone)))
        time += timedelta(minutes=1)
    return found


def ticks(expression: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Ticks after ``start`` until ``end``, both of UTC."""
    fields, place = expression.split(), ZoneInfo(zone)
    minutes, hours = _values(fields[0], 0, 59), _values(fields[1], 0, 23)
    if fields[0].startswith("*") or fields[1].startswith("*"):
        # Elapsed time.
        return [
            time
            for time, local in _minutes(place, start, end)
            if local.minute in minutes and local.hour in hours and _day_matches(local, fields)
        ]
    # Times of the clock: each of every date, the first of two, or right after the gap.
    times = set[datetime]()
    day = start.astimezone(place).date() - timedelta(days=2)
    while day <= end.astimezone(place).date():
        for hour in hours:
            for minute in minutes:
                naive = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001
                if _day_matches(naive, fields):
                    while naive.replace(tzinfo=place).astimezone(UTC).astimezone(place).replace(tzinfo=None) != naive:
                        naive += timedelta(minutes=1)
                    times.add(naive.replace(tzinfo=place, fold=0).astimezone(UTC))
        day += timedelta(days=1)
    return sorted(time for time in times if start < time <= end)
