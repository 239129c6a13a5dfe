"""Limits as code declares them, as the store keeps them, and as operators override them. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeGuard, cast, get_args
from urllib.parse import unquote

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import number
from headrace.model.job_record import Page
from headrace.model.notation import changes_of, zone_of
from headrace.model.option_checks import YEAR, span
from headrace.settings import Duration, microseconds, seconds

Shape = Literal["even", "window", "clock"]
MOST_NUMBER = 1_000_000_000
_WEEK = 7 * 86400

# Periods of the clock, in seconds, as people call them.
_UNITS: dict[float, str] = {60: "a minute", 3600: "an hour", 86_400: "a day", 604_800: "a week"}


class Rate(msgspec.Struct, frozen=True):
    """At most ``n`` starts in each ``per``: ``Rate(500, per=60)`` starts one each 120 ms.

    With ``shape="even"`` starts are spread. One that comes late, by up to 1 % of ``per`` and at least 10 ms, is made
    good by an earlier next one. So while work waits, each ``per`` has at least 0.99 ``n`` starts, and no window that is
    shorter than ``per`` by that much has more than ``n`` and ``burst`` together.

    With ``"window"`` no window of the length ``per`` has more than ``n`` starts, wherever it begins, and while work
    waits it has at least 0.99 ``n``; they may start together. With ``"clock"`` this many may start until the clock
    begins the next minute, hour, day or week (which begins on Monday), in a time zone. A period of up to an hour lasts
    so long, also where clocks change; a day lasts 23 or 25 hours then.

    Attributes:
        n: starts, above 0; whole where they are not spread.
        per: seconds or a timedelta, from a millisecond to a year; by the clock a part of a day, a day or a week.
        burst: this many more may start together after a time without work; only where starts are spread.
        shape: ``even``, ``window`` or ``clock``.
        timezone: in which the clock is read, such as ``Europe/Berlin``.

    Raises:
        OptionsError: a number is out of range, or does not go with the shape; or this machine does not know the zone.
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
        per = seconds(self.per, "per")
        text = f"{self.n:,g} per {per:g} s"
        if self.shape == "clock":
            unit = _UNITS.get(per, f"per {per:g} s")
            return f"{self.n:,g} {unit}" + (f", {self.timezone}" if self.timezone != "UTC" else "")
        if self.shape == "window":
            return f"{text}, at any time"
        return f"{text}, {self.burst:,} more together" if self.burst else text

    def _check_quota(self) -> None:
        if self.n != int(self.n):
            raise OptionsError(f"Rate: with shape={self.shape!r} n must be a whole number, not {self.n!r}")
        if self.burst:
            raise OptionsError(f"Rate: burst goes with evenly spread starts, not with shape={self.shape!r}")


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def check_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_NUMBER:
        raise OptionsError(f"{name} must be a number above 0, at most {MOST_NUMBER:,}, not {value!r}")


def rate_fields(rate: Rate) -> dict[str, str]:
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
    """A limit's rate of its fields; None: it has none. Raises OptionsError, ValueError, KeyError: it cannot be read."""
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


# Limits that one job may have: its task's and its queue's together.
MOST_LIMITS = 4

_pack = msgspec.msgpack.Encoder().encode


class Concurrency(msgspec.Struct, frozen=True):
    """At most ``n`` jobs run at once, over all workers.

    A job counts from its claim until its outcome is stored. One that waits for its retry, or is snoozed, does not.

    Attributes:
        n: a whole number above 0.

    Raises:
        OptionsError: it is not such a number.
    """

    n: int

    def __post_init__(self) -> None:
        if not is_whole(self.n):
            raise OptionsError(f"Concurrency takes a whole number above 0, not {self.n!r}")
        check_number("Concurrency", self.n)


# What becomes of jobs that come while as many run as may: they wait; they are cancelled; the oldest of those that run
# is; of those that wait only the newest stays.
Full = Literal["wait", "cancel_new", "cancel_running", "keep_newest"]


class LimitRule(msgspec.Struct, frozen=True):
    """A limit as code declares it.

    Attributes:
        name: of the limit.
        rate: None: any.
        concurrency: None: any.
        by: the argument, or ``key``; each of its values has a limit of its own; empty: all jobs share one.
        queue: all jobs of this queue have the limit; empty: those of tasks that name it.
        backlog: the most jobs that may wait in a lane; 0: any number.
        full: what becomes of jobs that come while as many run as may run at once.
    """

    name: str
    rate: Rate | None = None
    concurrency: Concurrency | None = None
    by: str = ""
    queue: str = ""
    backlog: int = 0
    full: Full = "wait"

    @property
    def most_cost(self) -> float:
        return math.inf if self.rate is None or self.rate.shape == "even" else self.rate.n

    @property
    def fields(self) -> list[str]:
        """Field, value, ... of its hash."""
        found = {
            **(rate_fields(self.rate) if self.rate else {}),
            **(concurrency_fields(self.concurrency) if self.concurrency else {}),
            "by": self.by,
            "queue": self.queue,
            "backlog": str(self.backlog or ""),
            "full": self.full if self.full != "wait" else "",
        }
        return [word for pair in found.items() if pair[1] for word in pair]


def concurrency_fields(concurrency: Concurrency) -> dict[str, str]:
    return {"most": str(concurrency.n)}


class NamedLimit(Protocol):
    """What ``app.limit`` returns, where only its name matters."""

    @property
    def name(self) -> str: ...


# What a task may be given for its limits.
GivenLimits = Sequence[NamedLimit | str] | None


def limit_rule(
    name: str,
    numbers: Sequence[object],
    by: str | None,
    queue: str | None,
    backlog: int | None = None,
    full: Full = "wait",
) -> LimitRule:
    if ":" in check_name("limit", name):
        raise OptionsError(f"limit name {name!r} cannot be used: leave out the colon")
    found: dict[type, Any] = {}
    for given in numbers:
        if not isinstance(given, (Rate, Concurrency)):
            raise OptionsError(f"limit {name}: give Rate(...) or Concurrency(...), not {given!r:.80}")
        if type(given) in found:
            raise OptionsError(f"limit {name}: one {type(given).__name__} at most")
        found[type(given)] = given
    if not numbers and not by and not backlog:
        raise OptionsError(f"limit {name}: without a number it has values take turns, so it needs by=")
    if by is not None and (not isinstance(by, str) or not by.isidentifier()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"limit {name}: by must be the name of an argument, or 'key', not {by!r:.80}")
    if queue is not None:
        check_name("queue", queue)
    if backlog is not None and (not is_whole(backlog) or not 1 <= backlog <= MOST_NUMBER):
        raise OptionsError(f"limit {name}: backlog must be a whole number above 0, not {backlog!r}")
    if full not in get_args(Full):
        raise OptionsError(f"limit {name}: full must be one of {', '.join(get_args(Full))}, not {full!r:.80}")
    if full != "wait" and Concurrency not in found:
        what = f"full={full!r} says what to do while as many run as may"
        raise OptionsError(f"limit {name}: {what}: give Concurrency(...)")
    return LimitRule(name, found.get(Rate), found.get(Concurrency), by or "", queue or "", backlog or 0, full)


def limit_names(option: str, value: object) -> tuple[str, ...]:
    """The names of a task's limits, given by name or as limits. Raises OptionsError: these are none, or too many."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionsError(f"{option} must be a list of limits, or of their names, not {value!r:.80}")
    names: list[str] = []
    for one in cast(Sequence[object], value):
        name = one if isinstance(one, str) else getattr(one, "name", None)
        if not isinstance(name, str):
            raise OptionsError(f"{option} must be a list of limits, or of their names: {one!r:.80} is none")
        names.append(check_name("limit", name))
    if len(set(names)) != len(names):
        raise OptionsError(f"{option} names one limit twice: {', '.join(names)}")
    if len(names) > MOST_LIMITS:
        raise OptionsError(f"a job has at most {MOST_LIMITS} limits, not {len(names)}")
    return tuple(names)


def name_of_any(_: object, limit: object) -> str:
    return str(getattr(limit, "name", limit))


def check_units(units: object) -> int:
    if not is_whole(units) or abs(units) > MOST_NUMBER:
        raise OptionsError(f"units must be a whole number of at most {MOST_NUMBER:,}, not {units!r:.80}")
    return units


def pause_of(after: Duration | None) -> int:
    """Microseconds for which a refused call closes a limit; 0: as is usual. Raises OptionsError: more than a year."""
    pause = 0.0 if after is None else seconds(after, "RateLimited: after")
    if pause > 366 * 86400:
        raise OptionsError(f"RateLimited: after must be at most a year, not {after!r}")
    return microseconds(pause)


class DeclaredLimits(msgspec.Struct, frozen=True):
    """What a worker tells the store when it begins.

    Attributes:
        limits: name, and field, value, ... of its hash.
        rows: field, row, ... of the tasks and queues that have limits.
    """

    limits: Sequence[tuple[str, Sequence[str]]] = ()
    rows: Sequence[str | bytes] = ()


NO_LIMITS = DeclaredLimits()


def task_row(rules: Sequence[LimitRule], positions: Sequence[str], defaults: Mapping[str, str]) -> bytes:
    """What a script reads of the limits of a task or queue: name, by, position of the argument, its default's name.
    ``positions``: names of the arguments that may be given by position. ``defaults``: what those that may be left out
    are called then.
    """
    rows = [
        (rule.name, rule.by, positions.index(rule.by) + 1 if rule.by in positions else 0, defaults.get(rule.by, ""))
        for rule in rules
    ]
    return _pack(rows)


_MOST_VALUE = 100
_OUTSIDE = re.compile(rb"[^A-Za-z0-9_.:/@+-]")


def value_name(packed: bytes) -> str:
    """What a value is called in keys and lists, of its MessagePack; argument_values.lua says the same. Texts and
    integers are called what they are, with ``%`` and two digits for each byte outside of ``A-Za-z0-9_.:/@+-``; long
    ones, and values of other types, by their SHA-1.
    """
    try:
        value = msgspec.msgpack.decode(packed)
    except msgspec.MsgspecError:
        value = packed
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 1 << 53:
        return str(value)
    if not isinstance(value, str):
        return hashlib.sha1(packed, usedforsecurity=False).hexdigest()
    text = _OUTSIDE.sub(lambda found: b"%%%02X" % found[0][0], value.encode("utf-8", "surrogatepass")).decode()
    return text if len(text) <= _MOST_VALUE else hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def shared_gates(lane: str) -> list[str]:
    return [f"{word}:" for word in lane.split("|")[1].split(",") if not word.endswith("=")]


def own_gates(lane: str) -> list[str]:
    _, limits, *values = lane.split("|")
    names = [word[:-1] for word in limits.split(",") if word.endswith("=")]
    return [f"{name}:{value}" for name, value in zip(names, values, strict=False)]


def gates_of(lane: str) -> list[str]:
    """The gates that a job passes, each ``<limit>:<value>``, of the name of its lane; none of an empty name."""
    return [*shared_gates(lane), *own_gates(lane)] if lane else []


Part = Literal["rate", "concurrency", "weight", "paused"]
# What stands for all values of a limit; no value is called so.
ALL = "*"
# The largest weight.
MOST_WEIGHT = 1000

_unpack = msgspec.msgpack.Decoder().decode


class Override(msgspec.Struct, frozen=True):
    """What an operator put over what code declares.

    Attributes:
        part: which.
        until: microseconds of server time, when it ends by itself; 0: it does not.
        fields: the numbers; empty ones are taken away.
    """

    part: str
    until: int
    fields: Mapping[str, str]


class LimitState(msgspec.Struct, frozen=True):
    """A limit, or one of its values, as it counts now.

    Attributes:
        name: of the limit.
        value: which of its values; None: all of it.
        by: the argument, or ``key``, whose values have a limit each; empty: all jobs share one.
        queue: all jobs of this queue have the limit; empty: those of tasks that name it.
        rate, concurrency: the numbers that count; None: any.
        weight: how many turns it has while values of weight 1 have one.
        paused: no job starts.
        until: microseconds of server time, when the pause ends by itself; 0: it does not.
        overrides: what an operator said of this value or, without a value, of the limit.
        held: jobs that run, and programs that hold it. None: they are counted by value.
        waiting: jobs that wait, whatever for; of jobs with values of several limits those in the first thousand lanes.
        opens: microseconds of server time, when the next may start; 0: now. None: when a job ends, or the pause. Of a
            limit that goes by a value, while jobs wait: when the first of their values opens, of the 20 whose turn
            comes first.
        backlog: the most jobs that may wait in a lane; 0: any number.
        full: what becomes of jobs that come while as many run as may.
    """

    name: str
    value: str | None
    by: str
    queue: str
    rate: Rate | None
    concurrency: Concurrency | None
    weight: float
    paused: bool
    until: int
    overrides: tuple[Override, ...]
    held: int | None
    waiting: int
    opens: int | None
    backlog: int = 0
    full: str = "wait"

    @property
    def free(self) -> int | None:
        """How many more may run at once; None: any number, or it is counted by value. 0 while it is closed."""
        if self.opens != 0:
            return 0
        return None if self.concurrency is None or self.held is None else max(0, self.concurrency.n - self.held)


class LimitPage(Page[LimitState], frozen=True):
    """Limits by name, or one of them and its values.

    Attributes:
        now: server time, microseconds.
        limited: the names of the limits of ``task:NAME`` and ``queue:NAME``; only where one limit is looked at.
    """

    now: int
    limited: Mapping[str, tuple[str, ...]]


def part_of(given: object) -> tuple[Part, list[str]]:
    """What an operator sets (a rate, a concurrency or a weight) as a part and its fields. Raises OptionsError."""
    if isinstance(given, Rate):
        return "rate", [word for pair in rate_fields(given).items() for word in pair]
    if isinstance(given, Concurrency):
        return "concurrency", [word for pair in concurrency_fields(given).items() for word in pair]
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 / MOST_WEIGHT <= given <= MOST_WEIGHT:
        raise OptionsError(f"weight must be a number from 0.001 to {MOST_WEIGHT:,}, not {given!r:.80}")
    return "weight", ["weight", repr(given)]


def name_of(value: object) -> str:
    """What a value is called in the store. Raises OptionsError: no argument of a job has such a value."""
    try:
        return value_name(_pack(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionsError(f"no limit goes by the value {value!r:.80}: {error}") from None


def overrides_of(packed: bytes) -> tuple[Override, ...]:
    if not packed:
        return ()
    found: list[Override] = []
    for part, (until, flat, _) in sorted(_unpack(packed).items()):
        fields = dict(zip(map(str, flat[::2]), map(str, flat[1::2]), strict=True))
        found.append(Override(str(part), number(until), fields))
    return tuple(found)


def state_of(row: list[Any], now: int) -> LimitState:
    name, value, flat, for_all, own, held, opens, waiting = row
    words = [word.decode("utf-8", "replace") for word in flat]
    fields = dict(zip(words[::2], words[1::2], strict=True))
    value = value.decode("utf-8", "replace")
    own = overrides_of(own)
    counting = (*overrides_of(for_all), *own)
    until = 0
    for one in counting:
        if not 0 < one.until <= now:
            fields.update(one.fields)
            until = max(until, one.until or 1 << 53) if one.part == "paused" else until
    concurrency = Concurrency(int(fields["most"])) if fields.get("most") else None
    opens = number(opens)
    return LimitState(
        name.decode("utf-8", "replace"), None if value == ALL else unquote(value), fields.get("by", ""),
        fields.get("queue", ""), rate_of(fields), concurrency, float(fields.get("weight") or 1), "paused" in fields,
        0 if until == 1 << 53 else until, own if value != ALL else overrides_of(for_all), None if held < 0 else held,
        waiting, None if opens < 0 else opens, number(fields.get("backlog")), fields.get("full", "wait"),
    )  # fmt: skip
