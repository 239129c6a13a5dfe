"""Schedules and their ticks as the store keeps them; declare, fire, refill, read, pause, resume, run, delete."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import isfinite
from struct import Struct
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from headrace.model.form import Form
from headrace.model.ids import digits_of
from headrace.model.job import moment, number
from headrace.model.job_record import Page
from headrace.protocol.keys import Keys
from headrace.protocol.produce import head_of
from headrace.protocol.script import Call, blob, done_and_next, load, pairs, text_of, texts_of

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

    policies = Policies()
    with suppress(msgspec.MsgspecError):
        policies = Policies(*_rules.decode(fields.get("rules", b""))[1:])
    return ScheduleRecord(
        name=name, about=fields.get("about", b""), task=text("task"), queue=text("queue"), source=text("source"),
        missed=policies.missed, within=policies.within, overlap=policies.overlap,
        left=number(fields["left"]) if "left" in fields else None,
        paused=text("paused") if "paused" in fields else None, ticks=_ticks(fields.get("ticks", b"")),
        last=[one for row in rows if (one := _told(row)) is not None],
        **{field: number(fields.get(field)) for field in _NUMBERS},
    )  # fmt: skip


# Fields of a schedule's record that are numbers, called as here.
_NUMBERS = (
    "paused_at", "created", "changed", "ended", "orphaned", "runs", "ticks_missed", "ticks_skipped", "ticks_twice",
    "known",
)  # fmt: skip


def packed_rules(head: msgspec.Raw, policies: Policies) -> bytes:
    """What each tick needs and does not change, as scripts keep it: the head of its jobs, the policies."""
    return _encode([head, *msgspec.structs.astuple(policies)])


def packed_ticks(ticks: Iterable[tuple[int, int]]) -> bytes:
    """Ticks that are known ahead as scripts keep them: nominal and due time of each, two doubles."""
    return b"".join(_tick.pack(*tick) for tick in ticks)


def _ticks(data: bytes) -> list[tuple[int, int]]:
    times = _tick.iter_unpack(data[: len(data) // _tick.size * _tick.size])
    return [(int(tick), int(due)) for tick, due in times if isfinite(tick + due)]


def _told(row: bytes) -> TickRecord | None:
    try:
        return msgspec.msgpack.decode(row, type=TickRecord, strict=False)
    except msgspec.MsgspecError:
        return None


# Ticks that one call runs at most; rows of one call of the other verbs.
MOST_TICKS = 500
# Rows of a schedule's history.
HISTORY = 100

Row: TypeAlias = tuple[str, str, list[Any]]


class Wanting(msgspec.Struct, frozen=True):
    """A schedule that needs more ticks.

    Attributes:
        name, version: which definition of it.
        about: its times, packed.
        known: the last tick that is known, microseconds.
        missed: how many missed ticks are to be looked at again.
    """

    name: str
    version: int
    about: bytes
    known: int
    missed: int


class Fired(msgspec.Struct, frozen=True):
    """What a look at due ticks brought.

    Attributes:
        ran: jobs that were made.
        due: when the next tick is due, 0: there is none.
        broken: names of schedules whose records cannot be read.
    """

    ran: int
    now: int
    due: int
    wanting: list[Wanting]
    broken: list[str]


class Refill(msgspec.Struct, frozen=True):
    """More ticks for a schedule.

    Attributes:
        ticks: nominal and due time each, in order; ``final``: these are the last.
        passed: missed ticks that are left out; ``more``: there were others, which are not counted.
    """

    wanting: Wanting
    ticks: Sequence[tuple[int, int]]
    passed: int = 0
    more: bool = False
    final: bool = False


def row_of(
    name: str, fingerprint: str, form: Form, args: bytes, about: bytes, policies: Policies, most: int | None = None
) -> Row:
    fields: list[Any] = ["task", form.task, "queue", form.queue, "about", blob(about), "digits", digits_of(name)]
    fields += ["rules", blob(packed_rules(head_of(form), policies)), "args", blob(args)]
    if most is not None:
        fields += ["left", most]
    return name, fingerprint, fields


def declare(keys: Keys, owner: str, rows: Sequence[Row]) -> Call[list[str]]:
    """Store at most ``MOST_TICKS`` schedules, or leave them as they are; an empty ``owner`` stores them at run time.

    Returns of each: ``created``, ``changed``, ``same``, ``superseded`` (a live worker declares a newer one), ``taken``
    (by code, or by a schedule that was stored at run time), ``gone`` (the incarnation is).
    """
    return load("schedule_declare").bind(
        keys, lambda reply: [word.decode() for word in reply], owner=owner, rows=list(rows)
    )


def _fired(reply: Any) -> Fired:
    ran, now, due, flat, broken = reply
    wanting = [
        Wanting(name.decode(), number(version), about, number(known), missed)
        for name, version, about, known, missed in zip(*[iter(flat)] * 5, strict=True)
    ]
    return Fired(ran, now, moment(due), wanting, texts_of(broken))


def fire(keys: Keys, limit: int = MOST_TICKS) -> Call[Fired]:
    """Have due ticks make their jobs, each once, by any number of calls. O(limit log n)."""
    return load("fire").bind(keys, _fired, limit=limit)


def refill(keys: Keys, refills: Sequence[Refill]) -> Call[tuple[int, int, int]]:
    """Keep further ticks of schedules that have not changed. Returns how many, server time, and the next due one."""
    rows: list[Any] = []
    for one in refills:
        name, version, known = one.wanting.name, one.wanting.version, one.wanting.known
        rows.append((name, version, known, blob(packed_ticks(one.ticks)), one.passed, int(one.more), int(one.final)))
    return load("refill").bind(keys, done_and_next, rows=rows)


class SchedulePage(Page[ScheduleRecord], frozen=True):
    now: int


def read_schedules(
    keys: Keys, names: Sequence[str] = (), after: str = "", limit: int = MOST_TICKS, ticks: int = 0
) -> Call[SchedulePage]:
    """Schedules of these names or, without names, those behind one, each with ``ticks`` rows of its history."""

    def parsed(reply: Any) -> SchedulePage:
        now, count, flat = reply
        rows = [(flat[n].decode(), pairs(flat[n + 1]), flat[n + 2]) for n in range(0, len(flat), 3)]
        following = rows[-1][0] if not names and len(rows) == limit < count else None
        return SchedulePage([schedule_record(*row) for row in rows if row[1]], count, following, now)

    return load("schedule_read").bind(keys, parsed, names=list(names), after=after, limit=limit, ticks=ticks)


def count_ticks(keys: Keys, limit: int = MOST_TICKS) -> Call[dict[str, dict[TickWord, int]]]:
    """What became of the ticks of the first schedules by name; jobs that were made by hand count as ``ran``."""

    def parsed(reply: Any) -> dict[str, dict[TickWord, int]]:
        rows = zip(reply[::2], reply[1::2], strict=True)
        return {text_of(name): dict(zip(TICK_WORDS, map(number, counts), strict=True)) for name, counts in rows}

    return load("schedule_counts").bind(keys, parsed, limit=limit)


class Walked(msgspec.Struct, frozen=True):
    """What a walk over schedules found.

    Attributes:
        after: the name to go on behind; empty: it is done.
        due: when the next tick is due, 0: there is none.
        rewound: schedules whose ticks are reckoned anew, since the clock was set back by more than an hour.
    """

    after: str
    now: int
    due: int
    rewound: list[str]


def walk_schedules(keys: Keys, after: str = "", limit: int = MOST_TICKS) -> Call[Walked]:
    """Look after schedules: those that no live worker declares, those that fell silent, clocks that were set back."""

    def parsed(reply: Any) -> Walked:
        return Walked(reply[0].decode(), reply[1], moment(reply[2]), [name.decode() for name in reply[3]])

    return load("schedule_walk").bind(keys, parsed, after=after, limit=limit)


def pause_schedule(keys: Keys, name: str, note: str) -> Call[str]:
    """Let no tick of a schedule make a job: ``paused``, ``was`` or ``missing``."""
    return load("schedule_pause").bind(keys, bytes.decode, name=name, note=note)


def resume_schedule(keys: Keys, name: str) -> Call[str]:
    """Let ticks make jobs again, from the next one on: ``resumed``, ``was`` or ``missing``."""
    return load("schedule_resume").bind(keys, bytes.decode, name=name)


def run_schedule(
    keys: Keys, sender: str, name: str, ticks: Sequence[int] = (), overlap: str = "", *, again: bool = False
) -> Call[list[tuple[str, str]] | None]:
    """Make jobs of a schedule for given ticks, or for this moment; the same ``sender`` again makes nothing twice.
    Returns of each tick what became of it (ran, skipped, ran before) and the id of the job; None: no such schedule.
    """

    def parsed(reply: Any) -> list[tuple[str, str]] | None:
        if reply[0] == b"missing":
            return None
        words = [word.decode() for word in reply[1:]]
        return list(zip(words[::2], words[1::2], strict=True))

    return load("schedule_run").bind(
        keys, parsed, sender=sender, name=name, ticks=list(ticks), overlap=overlap, again=int(again)
    )


def delete_schedule(keys: Keys, name: str) -> Call[bool]:
    return load("schedule_delete").bind(keys, bool, name=name)
