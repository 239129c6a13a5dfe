"""How often jobs may start: a number in a time, and how it counts. Pure; rates.lua keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeGuard, get_args

import msgspec

from headrace.errors import OptionsError
from headrace.model.option_checks import YEAR, span
from headrace.model.zones import changes_of, zone_of
from headrace.settings import Duration, microseconds, seconds

Shape = Literal["even", "window", "clock"]
MOST_NUMBER = 1_000_000_000
_WEEK = 7 * 86400


class Rate(msgspec.Struct, frozen=True):
    """At most ``n`` starts in each ``per``: ``Rate(500, per=60)`` starts one each 120 ms.

    With ``shape="even"`` starts are spread. One that comes late, by up to 1 % of ``per`` and at least 10 ms, is made
    good by an earlier next one. So while work waits, each ``per`` has at least 0.99 ``n`` starts, and no window that is
    shorter than ``per`` by that much has more than ``n`` and ``burst`` together.

    With ``"window"`` no window of the length ``per`` has more than ``n`` starts, wherever it begins, and while work
    waits it has at least 0.99 ``n``; they may start together. With ``"clock"`` so many may start until the clock begins
    the next minute, hour, day or week (which begins on Monday), in a time zone. A period of up to an hour lasts so
    long, also where clocks change; a day lasts 23 or 25 hours then.

    Attributes:
        n: starts, above 0; whole where they are not spread.
        per: seconds or a timedelta, from a millisecond to a year; by the clock a part of a day, a day or a week.
        burst: so many more may start together after a time without work; only where starts are spread.
        shape: ``even``, ``window`` or ``clock``.
        timezone: in which the clock is read, such as ``Europe/Berlin``.

    Raises:
        OptionsError: a number is out of range, or does not go with the shape.
        UnknownTimezone: this machine does not know the zone.
    """

    n: float
    per: Duration = 1
    burst: int = 0
    shape: Shape = "even"
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        check_number("Rate: n", self.n)
        per = span("Rate: per", self.per)
        if not is_whole(self.burst) or not 0 <= self.burst <= MOST_NUMBER:
            raise OptionsError(f"Rate: burst must be a whole number from 0, not {self.burst!r}")
        if per / self.n > YEAR:
            raise OptionsError(f"Rate({self.n:g}, per={per:g}) would start less than one job in a year")
        if self.shape not in get_args(Shape):
            raise OptionsError(f"Rate: shape must be one of {', '.join(get_args(Shape))}, not {self.shape!r:.80}")
        if self.shape != "even":
            self._check_quota()
        if self.shape == "clock":
            if 86_400_000_000 % microseconds(per) and per != _WEEK:
                raise OptionsError(
                    f'Rate: with shape="clock" per must be a part of a day, a day or a week, not {self.per!r}'
                )
            zone_of(self.timezone)
        elif self.timezone != "UTC":
            raise OptionsError(f'Rate: a time zone goes with shape="clock", not with {self.shape!r}')

    def __str__(self) -> str:
        """As people read it: ``500 per 60 s``."""
        text = f"{self.n:,g} per {seconds(self.per, 'per'):g} s"
        if self.shape == "clock":
            return f"{text} of the clock ({self.timezone})"
        if self.shape == "window":
            return f"{text}, at any time"
        return f"{text}, {self.burst:,} more together" if self.burst else text

    def _check_quota(self) -> None:
        if self.n != int(self.n):
            raise OptionsError(f"Rate: with shape={self.shape!r} n must be a whole number, not {self.n!r}")
        if self.burst:
            raise OptionsError(f"Rate: burst goes with evenly spread starts, not with shape={self.shape!r}")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_number(name: str, value: Any) -> None:
    """Refuse what is no number above 0.

    Raises:
        OptionsError: names it.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_NUMBER:
        raise OptionsError(f"{name} must be a number above 0, at most {MOST_NUMBER:,}, not {value!r}")


def rate_fields(rate: Rate) -> dict[str, str]:
    """All fields that a rate may have in the hash of its limit; empty: it has none."""
    per = str(microseconds(seconds(rate.per, "per")))
    by_clock = rate.shape == "clock" and rate.timezone != "UTC"
    return {
        "rate": repr(rate.n),
        "per": per,
        "burst": str(rate.burst) if rate.burst else "",
        "shape": "" if rate.shape == "even" else rate.shape,
        "timezone": rate.timezone if by_clock else "",
        "zone": changes_of(rate.timezone) if by_clock else "",
    }


def rate_of(fields: Mapping[str, str]) -> Rate | None:
    """A limit's rate of its fields; None: it has none.

    Raises:
        OptionsError, UnknownTimezone, ValueError, KeyError: they are no numbers of a rate, or not of this machine.
    """
    if not fields.get("rate"):
        return None
    n, shape = float(fields["rate"]), fields.get("shape") or "even"
    return Rate(
        int(n) if n.is_integer() else n,
        int(fields["per"]) / 1_000_000,
        int(fields.get("burst") or 0),
        shape,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - Rate checks it
        fields.get("timezone") or "UTC",
    )
