"""What the store says of limits and of their values, and what operators put over what code declares. Pure records.

What the values of limits, and the gates that jobs pass, are called in keys and lists. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from headrace.errors import OptionsError
from headrace.model.job import number
from headrace.model.job_record import Page
from headrace.model.limit_rules import Concurrency, Rate, concurrency_fields, numbers_of, rate_fields

_MOST_VALUE = 100
_OUTSIDE = re.compile(rb"[^A-Za-z0-9_.:/@+-]")


def value_name(packed: bytes) -> str:
    """What a value is called in keys and lists, of its MessagePack; argument_values.lua says the same.

    Texts and integers are called what they are, with ``%`` and two digits for each byte outside of
    ``A-Za-z0-9_.:/@+-``; long ones, and values of other types, by their SHA-1.
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
    """The gates of a lane, or of a class, that go by no value."""
    return [f"{word}:" for word in lane.split("|")[1].split(",") if not word.endswith("=")]


def own_gates(lane: str) -> list[str]:
    """The gates of a lane's values."""
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
_pack = msgspec.msgpack.Encoder().encode


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
        limited: tasks and queues, as ``task:NAME`` and ``queue:NAME``, and the names of their limits; only where one
            limit is looked at.
    """

    now: int
    limited: Mapping[str, tuple[str, ...]]


def part_of(given: object) -> tuple[Part, list[str]]:
    """What an operator sets: a :class:`Rate` or :class:`Concurrency`, or a weight, as a part and its fields.

    Raises:
        OptionsError: it is none of these.
    """
    if isinstance(given, Rate):
        return "rate", [word for pair in rate_fields(given).items() for word in pair]
    if isinstance(given, Concurrency):
        return "concurrency", [word for pair in concurrency_fields(given).items() for word in pair]
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 / MOST_WEIGHT <= given <= MOST_WEIGHT:
        raise OptionsError(f"weight must be a number from 0.001 to {MOST_WEIGHT:,}, not {given!r:.80}")
    return "weight", ["weight", repr(given)]


def name_of(value: object) -> str:
    """What a value is called in the store: a text, a number or what else a job may be limited by.

    Raises:
        OptionsError: no argument of a job has such a value.
    """
    try:
        return value_name(_pack(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionsError(f"no limit goes by the value {value!r:.80}: {error}") from None


def overrides_of(packed: bytes) -> tuple[Override, ...]:
    """What the store has of an operator's."""
    if not packed:
        return ()
    found: list[Override] = []
    for part, (until, flat, _) in sorted(_unpack(packed).items()):
        fields = dict(zip(map(str, flat[::2]), map(str, flat[1::2]), strict=True))
        found.append(Override(str(part), number(until), fields))
    return tuple(found)


def state_of(row: list[Any], now: int) -> LimitState:
    """One limit of a reply, see limit_read.lua."""
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
    rate, concurrency = numbers_of(fields)
    opens = number(opens)
    return LimitState(
        name.decode("utf-8", "replace"),
        None if value == ALL else unquote(value),
        fields.get("by", ""),
        fields.get("queue", ""),
        rate,
        concurrency,
        float(fields.get("weight") or 1),
        "paused" in fields,
        0 if until == 1 << 53 else until,
        own if value != ALL else overrides_of(for_all),
        None if held < 0 else held,
        waiting,
        None if opens < 0 else opens,
        number(fields.get("backlog")),
        fields.get("full", "wait"),
    )
