"""Stored times as datetimes and as texts for programs; sizes and durations for people. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc(microseconds: int) -> datetime | None:
    """A stored time as a datetime; None for 0, and for what alien bytes claim to be a time."""
    try:
        return EPOCH + timedelta(microseconds=microseconds) if microseconds > 0 else None
    except OverflowError:
        return None


def iso(microseconds: int) -> str | None:
    """A time of the store for programs: ISO 8601 in UTC; None when it was not reached."""
    at = utc(microseconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z") if at else None


def size(amount: float) -> str:
    """Bytes for people: ``12 B``, ``3.4 KiB``, ``56 MiB``."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
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
