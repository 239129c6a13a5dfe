"""Labels, fields and events of statistics. Pure.

1. :func:`label_of` and :func:`field_of`: which names are valid. A label is normalised once, here, for writing and for
   reading alike, so that counts stored as ``/about`` are found as ``about``.
2. :func:`levels` and :func:`groups`: ``/`` groups: an amount for ``views/product/44`` is also added to
   ``views/product`` and ``views``, and a field ``count/chrome/11`` to ``count/chrome`` and ``count``.
3. :data:`TASKS` to :func:`workers_layout`: the labels under which workers count: their fields, units and retention.
   Jobs are counted twice, by task and by queue, under labels without a common parent: a sum over both would count each
   job twice.
4. :class:`Event`: a single thing that happened, with its facts beside the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from headrace.errors import OptionsError
from headrace.model.codec import encode
from headrace.model.notation import EPOCH
from headrace.stats.resolutions import DAY, Level, Resolutions

LONGEST = 512
# Between a field and the number of a histogram's bucket.
MARK = "~"


@lru_cache(4096)
def label_of(text: str) -> str:
    """The label that a text names: its parts without the empty ones; empty for the root. Raises OptionsError: it is not
    a text, too long, or holds control characters.
    """
    return _clean(text, "label")


@lru_cache(4096)
def field_of(text: str) -> str:
    """The field that a text names. Raises OptionsError: as for a label, and when nothing is left of it, or it holds a
    ``~``.
    """
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
        id: given, or made when it was stored.
        label: normalised, prefix included.
        at: when it happened, UTC.
        fields: what it counted.
        meta: whatever else was told of it.
    """

    id: str
    label: str
    at: datetime
    fields: Mapping[str, int]
    meta: Mapping[str, Any]


def pack(label: str, at: int, fields: Mapping[str, int], meta: Mapping[str, Any]) -> bytes:
    """An event as stored. Raises ArgumentError, PayloadTooLarge: what is told of it cannot be stored, or is larger than
    64 KiB.
    """
    return encode([label, at, dict(fields), dict(meta)], MOST_BYTES, f"event of {label}")


def unpack(id: str, body: bytes | None) -> Event | None:
    """A stored event; None where nothing, or something else, is stored."""
    if body is None:
        return None
    try:
        label, at, fields, meta = msgspec.msgpack.decode(body, type=tuple[str, int, dict[str, int], dict[str, Any]])
        return Event(id, label, EPOCH + timedelta(seconds=at), fields, meta)
    except (msgspec.MsgspecError, OverflowError):
        return None


def check_id(id: str) -> str:
    """An id that can name an event. Raises OptionsError: it cannot."""
    if not isinstance(id, str) or not 0 < len(id) <= 128 or not id.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"an event's id has 1 to 128 printable characters, not {id!r}")
    return id
