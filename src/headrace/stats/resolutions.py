"""Resolutions and buckets: how time is cut into pieces, each with a name and an end of its own.

Pure. All of it is UTC, so that no bucket is repeated or left out when clocks change; a time zone is for showing only.
Times are whole seconds since 1970. A bucket's name is its date, whose length tells its resolution: ``2026`` is a
year, ``20264`` its last quarter, ``202611`` a month, ``20261122013005`` a second.

Labels, fields and events of statistics are checked here too.

A value of a histogram falls into the bucket ``ceil(log(value) / log(growth))``, and is told again as the bucket's
middle, which is at most ``ERROR`` of the value away. So two histograms are added by adding their counts: over any
range, any set of labels and any set of processes. The idea is DDSketch's (Masson, Rim, Lee: VLDB 2019).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import msgspec

from headrace.errors import OptionsError
from headrace.model.codec import encode
from headrace.model.notation import EPOCH
from headrace.settings import Duration, seconds

Every = Literal["second", "minute", "hour", "day", "month", "quarter", "year"]
Moment = datetime | date | float | int | str

DAY = 86400
# The years that a date of four digits can name; one is left free at either end, for the buckets beside them.
_FIRST = -62_104_060_800
_LAST = 253_370_764_800
_DATE = re.compile(r"\d{4}(\d{2}){0,5}", re.ASCII)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|y)", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "y": 365.25 * DAY}


class Resolution(msgspec.Struct, frozen=True):
    """One way to cut time.

    Attributes:
        name: ``second`` to ``year``.
        step: seconds of one bucket; 0 where months make it.
        months: months of one bucket; 0 where seconds make it.
        digits: how long the date is that names a bucket; the coarser, the shorter.
    """

    name: Every
    step: int
    months: int
    digits: int

    def number(self, at: int) -> int:
        """How many buckets began since a fixed one, at ``at``: buckets in a row have numbers in a row."""
        if self.step:
            return at // self.step
        day = EPOCH + timedelta(seconds=at)
        return (day.year * 12 + day.month - 1) // self.months

    def start(self, number: int) -> int:
        return number * self.step if self.step else _month(number * self.months)

    def floor(self, at: int) -> int:
        return self.start(self.number(at))

    def ceil(self, at: int) -> int:
        return -(-at // self.step) * self.step if self.step else self.after(at - 1)

    def after(self, at: int) -> int:
        return self.start(self.number(at) + 1)

    def walk(self, start: int, end: int) -> Iterator[int]:
        return (self.start(number) for number in range(self.number(start), self.number(end)))

    def date(self, at: int) -> str:
        return _digits(at)[: self.digits] if self.months != 3 else f"{_digits(at)[:4]}{self.number(at) % 4 + 1}"


@lru_cache(4096)
def _digits(at: int) -> str:
    day = EPOCH + timedelta(seconds=at)
    # Not strftime: how it pads years differs between systems.
    return f"{day.year:04}{day.month:02}{day.day:02}{day.hour:02}{day.minute:02}{day.second:02}"


@lru_cache(4096)
def _month(number: int) -> int:
    year, month = divmod(number, 12)
    return (datetime(year, month + 1, 1, tzinfo=UTC) - EPOCH).days * DAY


RESOLUTIONS: dict[str, Resolution] = {
    "second": Resolution("second", 1, 0, 14),
    "minute": Resolution("minute", 60, 0, 12),
    "hour": Resolution("hour", 3600, 0, 10),
    "day": Resolution("day", DAY, 0, 8),
    "month": Resolution("month", 0, 1, 6),
    "quarter": Resolution("quarter", 0, 3, 5),
    "year": Resolution("year", 0, 12, 4),
}


class Level(msgspec.Struct, frozen=True):
    """A resolution that is kept.

    Attributes:
        cut: the resolution.
        keep: seconds that a bucket stays after its end.
    """

    cut: Resolution
    keep: int

    def ends(self, at: int) -> int:
        """When the bucket that holds ``at`` goes away, however late it was written to."""
        return self.cut.after(at) + self.keep


class Resolutions(msgspec.Struct, frozen=True):
    """The resolutions that a family of series keeps.

    Attributes:
        levels: from the finest to the coarsest, none of which goes away before a finer one.
        slot: seconds of the pieces in which a writer merges: the finest resolution, a day at most.
    """

    levels: tuple[Level, ...]
    slot: int

    def level(self, every: str) -> Level:
        for level in self.levels:
            if level.cut.name == every:
                return level
        kept = ", ".join(level.cut.name for level in self.levels)
        if every in RESOLUTIONS:
            raise OptionsError(f"every={every!r} is not kept here: take one of {kept}, or add it to stats_keep")
        week = "; a week is seven days" if every == "week" else ""
        raise OptionsError(f"there is no resolution {every!r}: take one of {kept}{week}")

    @property
    def text(self) -> str:
        return " ".join(f"{level.cut.name}={level.keep}s" for level in self.levels)


def layout_of(keep: str | Mapping[str, Duration]) -> Resolutions:
    """The layout of ``"minute=2d hour=60d"``, or of a mapping. Raises OptionsError: a coarse one ends before a fine."""
    return _parsed(keep) if isinstance(keep, str) else _layout(keep)


@lru_cache(256)
def _parsed(text: str) -> Resolutions:
    found: dict[str, Duration] = {}
    for part in text.replace(",", " ").split():
        name, _, span = part.partition("=")
        amount = _SPAN.fullmatch(span)
        if amount is None:
            raise OptionsError(f"{part!r} does not say how long a resolution is kept: write it as hour=60d (s m h d y)")
        found[name] = float(amount[1]) * _UNITS[amount[2]]
    return _layout(found)


def _layout(keep: Mapping[str, Duration]) -> Resolutions:
    if not keep:
        raise OptionsError("statistics need a resolution at least, such as hour=60d")
    for name in keep:
        if name not in RESOLUTIONS:
            raise OptionsError(f"there is no resolution {name!r}: take {', '.join(RESOLUTIONS)}")
    levels = tuple(
        Level(cut, round(seconds(keep[name], f"how long {name} is kept", zero=False)))
        for name, cut in RESOLUTIONS.items()
        if name in keep
    )
    for fine, coarse in pairwise(levels):
        if coarse.keep < fine.keep:
            # A plan covers a range with coarse buckets between fine ones: what is coarse must be there as long.
            raise OptionsError(f"{coarse.cut.name} is kept shorter than {fine.cut.name}: give it the same at least")
    return Resolutions(levels, min(levels[0].cut.step or DAY, DAY))


def instant(moment: Moment, what: str = "at") -> int:
    """A time of the public API in whole seconds since 1970: a datetime with a time zone, a date (its midnight in UTC),
    seconds, ISO 8601 text, or the beginning of a compact date such as ``2026112213``.
    """
    if isinstance(moment, str):
        moment = _read(moment, what)
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise OptionsError(f"{what} needs a time zone, such as datetime(..., tzinfo=UTC), not {moment!r}")
        moment = (moment - EPOCH) // timedelta(seconds=1)
    elif isinstance(moment, date):
        moment = (moment - EPOCH.date()).days * DAY
    if isinstance(moment, bool) or not isinstance(moment, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(
            f"{what} must be a datetime, a date, seconds since 1970 or text, not {type(moment).__name__}"
        )
    if not _FIRST <= moment < _LAST:
        raise OptionsError(f"{what} must be in the years 2 to 9998, not {moment!r} seconds since 1970")
    return int(moment // 1)


def _read(text: str, what: str) -> datetime:
    try:
        if _DATE.fullmatch(text):
            # A beginning of a date means the first moment of it.
            return datetime.strptime(text + "00010101000000"[len(text) :], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
        found = datetime.fromisoformat(text)
    except ValueError:
        raise OptionsError(
            f"{what}={text!r} is not a time: write 2026-11-22, 2026-11-22T13:30Z or 2026112213"
        ) from None
    # A date alone has no zone to forget.
    return found.replace(tzinfo=UTC) if len(text) <= 10 else found


LONGEST = 512
# Between a field and the number of a histogram's bucket.
MARK = "~"


@lru_cache(4096)
def label_of(text: str) -> str:
    """The label that a text names: its parts without the empty ones; empty for the root. Raises OptionsError."""
    return _clean(text, "label")


@lru_cache(4096)
def field_of(text: str) -> str:
    """The field that a text names. Raises OptionsError: as for a label, or it is empty or holds a ``~``."""
    field = _clean(text, "field")
    if not field or MARK in field:
        raise OptionsError(f"field {text!r} cannot be used: it must have a part at least, and no {MARK}")
    return field


def _clean(text: str, what: str) -> str:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"a {what} must be a text, not {type(text).__name__}")
    if len(text) > LONGEST:
        raise OptionsError(f"{what} {text[:40]!r}... cannot be used: it has more than {LONGEST} characters")
    if any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise OptionsError(f"{what} {text!r} cannot be used: it holds control characters or half a surrogate pair")
    return "/".join(part for part in text.split("/") if part)


@lru_cache(4096)
def levels(label: str) -> tuple[str, ...]:
    """A normalised label and all that it is part of: ``a/b/c``, ``a/b``, ``a``. The root is part of nothing."""
    parts = label.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts), 0, -1))


@lru_cache(4096)
def groups(field: str) -> tuple[str, ...]:
    name, mark, bucket = field.partition(MARK)
    return tuple(level + mark + bucket for level in levels(field_of(name)))


# Below each: a task, a queue, a worker's host and pid.
TASKS = "jobs"
QUEUES = "queues"
WORKERS = "workers"
ALL = (TASKS, QUEUES, WORKERS)
# How a start ended: fields of tasks and of queues.
OUTCOMES = (
    "succeeded", "failed", "retried", "snoozed", "cancelled", "crashed", "interrupted", "quarantined", "skipped",
    "parked", "limited",
)  # fmt: skip
# How a start ended that gave its job no result.
WRONG = ("failed", "crashed", "quarantined")
UNITS = {"run": "seconds", "wait": "seconds", "busy": "microseconds", "memory": "bytes"}
# What is counted of a worker stays no longer, seconds: each start is another label.
WORKER_KEEP = 7 * DAY


def queue_label(queue: str) -> str:
    """Where the jobs of a queue are counted; what was broadcast to workers, each of which has a queue, is ``@``."""
    return f"{QUEUES}/{'@' if queue[0] == '@' else queue}"


def unit_of(label: str, field: str) -> str:
    """What a field of a label is counted in; empty for what is a mere number, and for labels of a program's own."""
    return UNITS.get(field, "") if label.partition("/")[0] in ALL else ""


def workers_layout(layout: Resolutions) -> Resolutions:
    """How long what is counted of workers is kept: the resolutions finer than a day, each a week at most."""
    fine = [level for level in layout.levels if 0 < level.cut.step < DAY] or layout.levels[:1]
    return Resolutions(tuple(Level(level.cut, min(level.keep, WORKER_KEEP)) for level in fine), layout.slot)


MOST_BYTES = 64 << 10


class Event(msgspec.Struct, frozen=True):
    """Something that happened.

    Attributes:
        label: normalised, prefix included.
        fields: what it counted.
        meta: what else was told of it.
    """

    id: str
    label: str
    at: datetime
    fields: Mapping[str, int]
    meta: Mapping[str, Any]


def pack(label: str, at: int, fields: Mapping[str, int], meta: Mapping[str, Any]) -> bytes:
    """An event as stored. Raises ArgumentError, PayloadTooLarge: ``meta`` cannot be stored, or exceeds 64 KiB."""
    return encode([label, at, dict(fields), dict(meta)], MOST_BYTES, f"event of {label}")


def unpack(id: str, body: bytes | None) -> Event | None:
    if body is None:
        return None
    try:
        label, at, fields, meta = msgspec.msgpack.decode(body, type=tuple[str, int, dict[str, int], dict[str, Any]])
        return Event(id, label, EPOCH + timedelta(seconds=at), fields, meta)
    except (msgspec.MsgspecError, OverflowError):
        return None


def check_id(id: str) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= 128 or not id.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"an event's id has 1 to 128 printable characters, not {id!r}")
    return id


# The most that a percentile is off, as a share of the value.
ERROR = 0.02
_GROWTH = (1 + ERROR) / (1 - ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_MIDDLE = 2 / (1 + _GROWTH)


def bucket_of(value: float) -> str:
    """The bucket of a value: its number, after an ``n`` for negative values, or ``z`` for zero. Raises OptionsError."""
    try:
        if value > 0:
            return str(math.ceil(math.log(value) * _PER_LOG))
        if value < 0:
            return f"n{math.ceil(math.log(-value) * _PER_LOG)}"
        if value == value:  # noqa: PLR0124 - only NaN is not itself
            return "z"
    except (TypeError, ValueError, OverflowError):
        pass
    raise OptionsError(f"{value!r} cannot be observed: give a finite number")


@lru_cache(4096)
def middle_of(bucket: str) -> float:
    if bucket == "z":
        return 0.0
    try:
        size = _GROWTH ** int(bucket.lstrip("n")) * _MIDDLE
    except OverflowError:
        # The last bucket reaches beyond what a float holds, and integers are observed that do.
        size = sys.float_info.max
    return -size if bucket.startswith("n") else size


class Histogram(msgspec.Struct, frozen=True):
    """How many values fell where: counts by the middle of the bucket, in ascending order."""

    counts: Mapping[float, int]

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Their mean, at most 2 % off when they have one sign; 0 when there is none."""
        count = self.count
        return sum(value * n for value, n in self.counts.items()) / count if count else 0.0

    def percentile(self, percent: float) -> float:
        """The value that ``percent`` of all do not exceed (nearest rank), at most 2 % off; 0 when there is none. Raises
        OptionsError: ``percent`` is not between 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise OptionsError(f"a percentile is between 0 and 100, not {percent!r}")
        rank = max(1, math.ceil(self.count * percent / 100))
        for value, n in self.counts.items():
            rank -= n
            if rank <= 0:
                return value
        return 0.0

    def __add__(self, other: Histogram) -> Histogram:
        return histogram_of(
            {value: self.counts.get(value, 0) + other.counts.get(value, 0) for value in {*self.counts, *other.counts}}
        )


def histogram_of(counts: Mapping[float, int]) -> Histogram:
    return Histogram({value: counts[value] for value in sorted(counts) if counts[value] > 0})
