"""Durations, sizes and times as people write and read them on a command line. Pure but for the local time zone."""

from __future__ import annotations

import contextlib
import math
import re
from datetime import UTC, datetime, timedelta

from headrace.model.notation import shown_share, utc

_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)


def _bad(text: str) -> Exception:
    # Not at the top: a worker's image has nothing of the command line's parser.
    import typer

    return typer.BadParameter(text)


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``1.5h`` or ``250ms``."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise _bad(f"{text!r} is not a duration: write seconds, or a number with ms, s, m, h or d, such as 5m")
    return float(found[1]) * _UNITS[found[2]]


def parse_moment(text: str) -> datetime:
    """A time of ``2026-11-21T22:36:00Z`` (local, where no zone is given), or one that is ``2h`` or ``2h ago``."""
    ago = text.strip().removesuffix(" ago")
    try:
        if _DURATION.fullmatch(ago) is not None:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(ago))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise _bad(
            f"{text!r:.80} is not a time: write one such as 2026-11-21T22:36, or how long ago, such as 2h"
        ) from None


def parse_size(text: str) -> int:
    """Bytes of ``512M``, ``1.5GiB`` or ``4096``; the units are powers of 1024."""
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " ") if found else math.inf
    if math.isinf(size):
        raise _bad(f"{text!r:.80} is not a size: write bytes, or a number with K, M or G, such as 512M")
    return int(size)


def span(seconds: float) -> str:
    """A duration in at most six characters or so: ``0.4s``, ``12s``, ``3m``, ``5h``, ``2d``."""
    seconds = max(0.0, seconds)
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, size, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds < size * most:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def percent(share: float) -> str:
    """``12%``; 100% only when nothing is missing."""
    return f"{shown_share(share):.0%}"


def several(count: int, noun: str) -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def moment(microseconds: int, now: float) -> str:
    """A time of the store in local time, and how far away it is: ``2026-11-21 22:36:00 CET (3m ago)``."""
    at = local(microseconds)
    return at if at == "-" else f"{at} ({distance(microseconds, now)})"


def local(microseconds: int) -> str:
    """A time of the store in local time, with its zone: ``2026-11-21 22:36:00 CET``."""
    at = utc(microseconds)
    # The last hours of the year 9999 have no local time.
    with contextlib.suppress(OverflowError):
        at = at and at.astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S %Z}" if at else "-"


def distance(microseconds: int, now: float) -> str:
    """How far a time of the store is from ``now`` (seconds since 1970): ``3m ago`` or ``in 3m``."""
    if utc(microseconds) is None:
        return "-"
    away = now - microseconds / 1e6
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"
