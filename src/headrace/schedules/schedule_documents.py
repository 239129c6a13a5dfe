"""Schedules and their ticks as documents for programs: of ``headrace cron --json``, and of ``.json`` pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model.notation import iso
from headrace.model.schedule_record import ScheduleRecord, TickRecord
from headrace.schedules.timing import read_timing


def times_of(record: ScheduleRecord) -> str:
    """When it ticks, for people."""
    timing = read_timing(record.about)
    return "cannot be read" if timing is None else timing.text


def schedule_document(record: ScheduleRecord, time: Callable[[int], str | None] = iso) -> dict[str, Any]:
    """A schedule, without its history; ``time`` writes its times."""
    return {
        "name": record.name,
        "state": record.state,
        "times": times_of(record),
        "task": record.task,
        "queue": record.queue,
        "source": record.source,
        "overlap": record.overlap,
        "missed": record.missed,
        "within": record.within / 1e6 if record.within else None,
        "left": record.left,
        "runs": record.runs,
        "ticks_missed": record.ticks_missed,
        "ticks_skipped": record.ticks_skipped,
        "ticks_twice": record.ticks_twice,
        "next": time(record.ticks[0][1]) if record.ticks and record.state == "active" else None,
        "note": record.paused,
        "paused_at": time(record.paused_at),
        "created": time(record.created),
        "changed": time(record.changed),
        "ended": time(record.ended),
        "orphaned": time(record.orphaned),
    }


def tick_document(one: TickRecord) -> dict[str, Any]:
    """What became of a tick."""
    job = one.text if one.what in ("ran", "skipped", "twice") else None
    return {
        "tick": iso(one.tick),
        "at": iso(one.at),
        "what": one.what,
        "job": job,
        "why": None if job else one.text,
        "count": one.count,
    }
