"""Facts about a schedule that is stored, and about its ticks; how the store keeps them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from struct import Struct
from typing import Literal, TypeAlias, get_args

import msgspec

from headrace.model.job import number

TickWord: TypeAlias = Literal["ran", "missed", "skipped", "twice"]
TICK_WORDS: tuple[TickWord, ...] = get_args(TickWord)
# Of a tick that is known ahead: its nominal and its due time, microseconds.
_tick = Struct("<dd")
_encode = msgspec.msgpack.Encoder().encode
_rules = msgspec.msgpack.Decoder(tuple[msgspec.Raw, str, int, str, int, str, int])


class Policies(msgspec.Struct, frozen=True):
    """How the ticks of a schedule go by.

    Attributes:
        missed, overlap: words of policies.
        within: missed ticks that are older do not run, microseconds; 0: without end.
        keep: microseconds for which a job that a policy cancels is kept.
        unique: the name that its jobs hold, or empty.
        pause_after: this many jobs that fail in a row pause it; 0: none do.
    """

    missed: str = ""
    within: int = 0
    overlap: str = ""
    keep: int = 0
    unique: str = ""
    pause_after: int = 0


class TickRecord(msgspec.Struct, frozen=True, array_like=True):
    """What became of a tick of a schedule.

    Attributes:
        tick: its nominal time; of several ticks, of the oldest. Microseconds.
        at: when that was noted, microseconds of server time.
        what: ran; missed; skipped (another job of the schedule was at work); twice (it had run before).
        text: id of the job that ran, or of the one that was at work, or why it was missed.
        count: how many ticks this tells of.
    """

    tick: int
    at: int
    what: str
    text: str = ""
    count: int = 1


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A schedule as it is stored. Times are microseconds of server time; 0: none.

    Attributes:
        name: of the schedule.
        about: its times, as :class:`headrace.schedules.timetables.Timing` packs them.
        task: name of the task that it runs.
        queue: where its jobs go.
        source: ``code``, declared by workers; ``stored`` at run time.
        missed, within, overlap: its policies; ``within`` in microseconds, 0: without end.
        left: jobs that it may still make; None: without end.
        paused: the note of the pause; None: it is not paused.
        created: when it was declared or put first.
        paused_at, changed, ended, orphaned: when that was.
        runs: jobs that it made.
        ticks_missed, ticks_skipped, ticks_twice: ticks that made none, by what became of them.
        known: nominal time up to which its ticks are known.
        ticks: the next ones, nominal and due time each.
        last: what became of its last ticks, oldest first.
    """

    name: str
    about: bytes
    task: str
    queue: str
    source: str
    missed: str
    within: int
    overlap: str
    left: int | None
    paused: str | None
    paused_at: int
    created: int
    changed: int
    ended: int
    orphaned: int
    runs: int
    ticks_missed: int
    ticks_skipped: int
    ticks_twice: int
    known: int
    ticks: list[tuple[int, int]]
    last: list[TickRecord]

    @property
    def state(self) -> Literal["active", "paused", "ended", "orphaned"]:
        if self.ended:
            return "ended"
        if self.orphaned:
            return "orphaned"
        return "active" if self.paused is None else "paused"


def schedule_record(name: str, fields: dict[str, bytes], rows: Sequence[bytes]) -> ScheduleRecord:
    """A stored schedule: the fields of its record, and the rows of its history. What cannot be read is left out."""

    def text(field: str) -> str:
        return fields.get(field, b"").decode("utf-8", "replace")

    policies = _policies(fields.get("rules", b""))
    return ScheduleRecord(
        name=name,
        about=fields.get("about", b""),
        task=text("task"),
        queue=text("queue"),
        source=text("source"),
        missed=policies.missed,
        within=policies.within,
        overlap=policies.overlap,
        left=number(fields["left"]) if "left" in fields else None,
        paused=text("paused") if "paused" in fields else None,
        paused_at=number(fields.get("paused_at")),
        created=number(fields.get("created")),
        changed=number(fields.get("changed")),
        ended=number(fields.get("ended")),
        orphaned=number(fields.get("orphaned")),
        runs=number(fields.get("runs")),
        ticks_missed=number(fields.get("ticks_missed")),
        ticks_skipped=number(fields.get("ticks_skipped")),
        ticks_twice=number(fields.get("ticks_twice")),
        known=number(fields.get("known")),
        ticks=_ticks(fields.get("ticks", b"")),
        last=[one for row in rows if (one := _told(row)) is not None],
    )


def packed_rules(head: msgspec.Raw, policies: Policies) -> bytes:
    """What each tick needs and does not change, as scripts keep it: the head of its jobs, the policies."""
    return _encode([head, *msgspec.structs.astuple(policies)])


def packed_ticks(ticks: Iterable[tuple[int, int]]) -> bytes:
    """Ticks that are known ahead as scripts keep them: nominal and due time of each, two doubles."""
    return b"".join(_tick.pack(*tick) for tick in ticks)


def _policies(data: bytes) -> Policies:
    try:
        return Policies(*_rules.decode(data)[1:])
    except msgspec.MsgspecError:
        return Policies()


def _ticks(data: bytes) -> list[tuple[int, int]]:
    times = _tick.iter_unpack(data[: len(data) // _tick.size * _tick.size])
    return [(int(tick), int(due)) for tick, due in times if isfinite(tick + due)]


def _told(row: bytes) -> TickRecord | None:
    try:
        return msgspec.msgpack.decode(row, type=TickRecord, strict=False)
    except msgspec.MsgspecError:
        return None
