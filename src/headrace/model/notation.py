"""How times are written for programs, and sizes for people. Pure."""

from __future__ import annotations

from headrace.model.job_record import utc


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
