"""Schedules as programs declare, read and operate them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack, get_args

import msgspec

from headrace.errors import NotFound, OptionsError
from headrace.model.activity import pause_note
from headrace.model.form import Form
from headrace.model.headers import SCHEDULE, added, packed, shown
from headrace.model.ids import check_name
from headrace.model.limit_rules import MOST_NUMBER, is_whole
from headrace.model.notation import iso
from headrace.model.option_checks import text
from headrace.protocol import ticks
from headrace.protocol.produce import head_of
from headrace.protocol.script import Call
from headrace.protocol.ticks import MOST_TICKS, Policies, SchedulePage, ScheduleRecord, TickRecord
from headrace.schedules.timetables import (
    Cron,
    Every,
    Missed,
    Overlap,
    Timetable,
    Timing,
    moment_of,
    read_timing,
    span,
    time_of,
    timing_of,
)
from headrace.settings import Duration, microseconds
from headrace.store.client import Client, Steps, single, then, twin, verb
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.submission import UnsentJob
from headrace.workflows.definition import Workflow

if TYPE_CHECKING:
    from headrace.tasks.job_handle import Job

Target: TypeAlias = BoundTask[..., Any] | Workflow[...] | UnsentJob[Any]

_pack = msgspec.msgpack.Encoder().encode


class ScheduleOptions(TypedDict, total=False):
    """The policies of a schedule.

    Attributes:
        overlap: what a tick does while a job of the schedule waits, runs or is retried. ``skip``: nothing (default).
            ``buffer_one``: its job waits, if none does. ``buffer_all``: its job waits, behind at most 1,000 others.
            ``cancel_other``: the others are cancelled, and its job follows. ``allow_all``: its job runs beside them.
        missed: what runs of ticks without a worker. ``latest``: the newest (default). ``skip``: none. ``all``: 100.
        within: ticks that are older than this are not made up for; without it, there is no such limit.
        jitter: a job starts later than its tick by up to this, by a hash of name and tick.
        start, until: it ticks from and to these times only; with a time zone.
        most: it makes this many jobs, then it has ended.
        pause_after: this many jobs in a row that failed pause it.
    """

    overlap: Overlap
    missed: Missed
    within: Duration | None
    jitter: Duration
    start: datetime | None
    until: datetime | None
    most: int | None
    pause_after: int | None


class CronOptions(ScheduleOptions, total=False):
    """What ``app.cron`` takes. ``timezone``: of the IANA database; ``UTC``. ``name``: without one, that of the task."""

    timezone: str
    name: str | None


class EveryOptions(ScheduleOptions, total=False):
    """What ``app.every`` takes. ``offset``: how much later than the multiples of the interval since 1970; less than it.
    ``name``: without one, that of the task.
    """

    offset: Duration
    name: str | None


class Request(msgspec.Struct, frozen=True):
    """A schedule that is asked for.

    Attributes:
        row: as the store takes it.
        fingerprint: of all that its definition says.
    """

    name: str
    row: ticks.Row
    fingerprint: str
    timetable: Timetable


def unsent(target: object, args: Sequence[Any]) -> UnsentJob[Any]:
    """The job that each tick makes; checks its arguments. Raises OptionsError: a schedule cannot run ``target``."""
    found: Any = target.definition.task if isinstance(target, Workflow) else target
    if isinstance(target, (Workflow, BoundTask)):
        made: UnsentJob[Any] = found.job(*args)
        return made
    if not isinstance(target, UnsentJob):
        kinds = "a task, task.options(...), task.job(...) or a workflow"
        raise OptionsError(f"a schedule runs {kinds}, not {target!r:.80}")
    if args:
        raise OptionsError(f"{found!r} has its arguments already: give the task itself, or no arguments")
    job: UnsentJob[Any] = found
    return job


def request(
    name: str | None,
    timetable: Timetable,
    job: UnsentJob[Any],
    client: Client,
    options: Mapping[str, Any],
    *,
    code: bool = False,
) -> Request:
    """Check what is asked for, by ``code`` or at run time. Raises OptionsError: names what cannot be used."""
    if not isinstance(timetable, (Cron, Every)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"a schedule ticks by Cron(...) or Every(...), not {timetable!r:.80}")
    name = check_name("schedule", job.form.task if name is None else name)
    given = _checked(options)
    now = time.time_ns() // 1000
    timing = timing_of(timetable, name, given["jitter"], given["start"], given["until"], now, code=code)
    form = _form(name, job.form, given["overlap"], job.request_id)
    if job.name and client.shard_for(job.name):
        raise OptionsError(
            f"of several shards, schedules live on the first, and the unique name {job.name!r} on another: let the "
            f"schedule run a task that enqueues the job (schedule {name!r})"
        )
    keep, about = microseconds(client.settings.failure_ttl), timing.packed()
    pause_after, most = given["pause_after"] or 0, given["most"]
    policies = Policies(given["missed"], given["within"], given["overlap"], keep, job.name or "", pause_after)
    args = job.args if client.keys.seal is None else client.keys.seal.arguments(form, "", job.args)
    whole = _pack([name, head_of(form), args, about, policies, most])
    fingerprint = hashlib.sha1(whole, usedforsecurity=False).hexdigest()[:16]
    row = ticks.row_of(name, fingerprint, form, args, about, policies, most)
    return Request(name, row, fingerprint, timetable)


def policy(name: str, value: Any, kind: Any) -> str:
    if value not in get_args(kind):
        raise OptionsError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r:.80}")
    return str(value)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(options) - set(ScheduleOptions.__annotations__)
    if unknown:
        known = ", ".join(ScheduleOptions.__annotations__)
        raise OptionsError(
            f"a schedule has no option {min(unknown)!r}, its options are {known}; options of its jobs go to "
            f"task.options(...), and arguments by name to task.job(...)"
        )
    for name in ("most", "pause_after"):
        count = options.get(name)
        if count is not None and (not is_whole(count) or not 1 <= count <= MOST_NUMBER):
            raise OptionsError(f"{name} must be a whole number from 1 to {MOST_NUMBER:,}, not {count!r:.80}")
    within = options.get("within")
    return {
        "overlap": policy("overlap", options.get("overlap", "skip"), Overlap),
        "missed": policy("missed", options.get("missed", "latest"), Missed),
        "within": 0 if within is None else max(1, span("within", within)),
        "jitter": span("jitter", options.get("jitter", 0)),
        "start": moment_of("start", options.get("start")),
        "until": moment_of("until", options.get("until")),
        "most": options.get("most"),
        "pause_after": options.get("pause_after"),
    }


def _form(name: str, form: Form, overlap: str, request_id: str) -> Form:
    wrong = {"delay": form.delay, "at": form.at, "after": form.after, "request_id": request_id}
    for option, value in wrong.items():
        if value:
            raise OptionsError(f"a schedule says when its jobs start, so they take no {option}=")
    if (form.ordered or form.key) and overlap != "allow_all":
        raise OptionsError(
            f"jobs of a schedule wait for each other by its overlap policy, and key= would have them wait for others "
            f"too: give overlap='allow_all', or no key (schedule {name!r})"
        )
    if form.ordered:
        raise OptionsError(f"jobs of a schedule cannot be ordered by a key: leave ordered= out (schedule {name!r})")
    headers = added(((SCHEDULE, name),), shown(form.headers))
    return msgspec.structs.replace(form, headers=packed(headers))


class Schedule:
    def __init__(self, client: Client, name: str, handle: Callable[[str], Job[Any]]) -> None:
        """Use ``app.schedules[name]``."""
        self.name = check_name("schedule", name)
        self._client = client
        self._handle = handle

    @verb
    def read(self) -> Steps[ScheduleRecord]:
        """What is stored of it. Raises NotFound: nothing is. Cost: one round trip."""
        return then(self._read(), self._one)

    @verb
    def next(self, count: int = 1) -> Steps[list[datetime]]:
        """When its next jobs are due, jitter included, in UTC; fewer where it ends before. Raises NotFound: nothing is
        stored of it. Raises OptionsError: ``count`` is not from 1 to 1,000, or the stored times cannot be read. Raises
        MissingExtra: this machine cannot reckon them. Cost: one round trip.
        """
        return then(self._read(), lambda page: upcoming(self._one(page), page.now, count))

    @verb
    def ticks(self, count: int = 20) -> Steps[list[TickRecord]]:
        """Its last ticks, newest first: at most 100. Raises NotFound: nothing is stored of it. Cost: one round trip."""
        return then(self._read(_shown(count)), lambda found: self._one(found).last[::-1])

    @verb
    def pause(self, note: str = "") -> Steps[bool]:
        """Let its ticks make no jobs until :meth:`resume`; they are not missed ones. False: it was paused before.
        ``note``: why, for people, 500 characters; it replaces an earlier one. Raises NotFound: nothing is stored of it.
        Cost: one round trip.
        """
        call = ticks.pause_schedule(self._client.keys, self.name, pause_note(note))
        return then(call, lambda word: self._word(word) == "paused")

    @verb
    def resume(self) -> Steps[bool]:
        """Let its ticks make jobs again, from the next one on. False: it was not paused. Raises NotFound: nothing is
        stored of it. Cost: one round trip.
        """
        return then(ticks.resume_schedule(self._client.keys, self.name), lambda found: self._word(found) == "resumed")

    @verb
    def run(self, overlap: Overlap | None = None, *, request_id: str | None = None) -> Steps[Job[Any] | None]:
        """Make a job now, whose tick is this moment. None: the overlap policy, or ``overlap`` instead of it, does not
        let it. ``request_id``: asked for again by the same id within ten minutes, it is still one job. Raises NotFound:
        nothing is stored of it. Raises StoreFull: the server refused to store the job. Cost: one round trip.
        """
        rows: list[tuple[str, str]] | None
        rows = yield self._run((), overlap, again=False, request_id=request_id)
        if rows is None:
            raise self._missing()
        ((word, id),) = rows
        return self._handle(id) if word == "ran" else None

    @verb
    def backfill(
        self,
        start: datetime,
        end: datetime,
        *,
        overlap: Overlap | None = None,
        most: int = MOST_TICKS,
        again: bool = False,
    ) -> Steps[list[Job[Any]]]:
        """Make the jobs of its ticks after ``start`` until ``end``, each with its own tick, oldest first; returns
        handles.

        A schedule with ``start=`` or ``until=`` has no ticks before or after these. Ticks that ran are left out unless
        ``again``: those of the last 100 that :meth:`ticks` has, and those whose jobs are stored. With
        ``overlap="buffer_all"`` the jobs run one after another. Raises OptionsError: there are more than ``most``
        ticks, or the times cannot be used. Raises NotFound: nothing is stored of it. Cost: one round trip, and one per
        500 ticks.
        """
        page: SchedulePage = yield self._read()
        moments = between(self._one(page), moment_of("start", start), moment_of("end", end), most)
        made: list[Job[Any]] = []
        for first in range(0, len(moments), MOST_TICKS):
            rows: list[tuple[str, str]] | None
            rows = yield self._run(moments[first : first + MOST_TICKS], overlap, again=again)
            if rows is None:
                raise self._missing()
            made += [self._handle(id) for word, id in rows if word == "ran"]
        return made

    @verb
    def delete(self) -> Call[bool]:
        """Delete it with its history; jobs that it made stay. False: there was none. One that code declares comes to be
        again when a worker with that code starts. Cost: one round trip.
        """
        return ticks.delete_schedule(self._client.keys, self.name)

    def _read(self, count: int = 0) -> Call[SchedulePage]:
        return ticks.read_schedules(self._client.keys, [self.name], ticks=count)

    def _one(self, page: SchedulePage) -> ScheduleRecord:
        if not page.rows:
            raise self._missing()
        return page.rows[0]

    def _word(self, word: str) -> str:
        if word == "missing":
            raise self._missing()
        return word

    def _missing(self) -> NotFound:
        return NotFound(f"there is no schedule {self.name!r}: `headrace cron list` shows those that are stored")

    def _run(
        self, moments: Sequence[int], overlap: Overlap | None, *, again: bool, request_id: str | None = None
    ) -> Any:
        word = policy("overlap", overlap, Overlap) if overlap is not None else ""
        # The name keeps one request id for two schedules apart, and both apart from other senders.
        sender = os.urandom(8).hex() if request_id is None else f"{self.name}:{text('request_id', request_id)}"
        return ticks.run_schedule(self._client.keys, sender, self.name, moments, word, again=again)

    def __repr__(self) -> str:
        return f"<Schedule {self.name}>"

    aread = twin(read)
    anext = twin(next)  # noqa: A003 - the verb above
    aticks = twin(ticks)
    apause = twin(pause)
    aresume = twin(resume)
    arun = twin(run)
    abackfill = twin(backfill)
    adelete = twin(delete)


def _timing_of(record: ScheduleRecord) -> Timing:
    timing = read_timing(record.about)
    if timing is None:
        raise OptionsError(f"the stored times of schedule {record.name!r} cannot be read: declare or put it anew")
    return timing


def _shown(count: int) -> int:
    if not is_whole(count):
        raise OptionsError(f"count must be a whole number of ticks, not {count!r:.80}")
    return min(max(1, count), 1000)


def upcoming(record: ScheduleRecord, now: int, count: int) -> list[datetime]:
    """When the next jobs of a schedule are due. Raises OptionsError: ``count`` is not from 1 to 1,000."""
    if not is_whole(count) or not 1 <= count <= 1000:
        raise OptionsError(f"a preview has 1 to 1,000 ticks, not {count!r}")
    if record.ended:
        return []
    if record.left is not None:
        count = min(count, record.left)
    timing = _timing_of(record)
    # Those that are due and late are no preview, but the next may be due later than their nominal time.
    due = (timing.due(record.name, tick) for tick in timing.after(now - timing.jitter - 1))
    return [time_of(time) for time in islice((time for time in due if time > now), count)]


def between(record: ScheduleRecord, start: int, end: int, most: int) -> list[int]:
    """Nominal times of a schedule after ``start`` until ``end``. Raises OptionsError: these are more than ``most``."""
    if not is_whole(most) or not 1 <= most <= 100_000:
        raise OptionsError(f"most must be a whole number from 1 to 100,000, not {most!r}")
    if not start or not end or end < start:
        raise OptionsError("a backfill goes from start to end, and end is not before start")
    moments = takewhile(lambda tick: tick <= end, _timing_of(record).after(start))
    found = list(islice(moments, most + 1))
    if len(found) > most:
        raise OptionsError(
            f"there are more than {most} ticks between start and end: give a higher most (--most), or nearer times"
        )
    return found


def times_of(record: ScheduleRecord) -> str:
    timing = read_timing(record.about)
    return "cannot be read" if timing is None else timing.text


def schedule_document(record: ScheduleRecord, time: Callable[[int], str | None] = iso) -> dict[str, Any]:
    return {
        "name": record.name, "state": record.state, "times": times_of(record), "task": record.task,
        "queue": record.queue, "source": record.source, "overlap": record.overlap, "missed": record.missed,
        "within": record.within / 1e6 if record.within else None, "left": record.left, "runs": record.runs,
        **{name: getattr(record, name) for name in ("ticks_missed", "ticks_skipped", "ticks_twice")},
        "next": time(record.ticks[0][1]) if record.ticks and record.state == "active" else None,
        "note": record.paused,
        **{name: time(getattr(record, name)) for name in ("paused_at", "created", "changed", "ended", "orphaned")},
    }  # fmt: skip


def tick_document(one: TickRecord) -> dict[str, Any]:
    job = one.text if one.what in ("ran", "skipped", "twice") else None
    return {
        "tick": iso(one.tick), "at": iso(one.at), "what": one.what, "job": job, "why": None if job else one.text,
        "count": one.count,
    }  # fmt: skip


class Schedules:
    """``app.schedules``: by name, all that are stored, and those that this program's code declares (``declared``)."""

    def __init__(self, client: Client, handle: Callable[[str], Job[Any]]) -> None:
        self._client = client
        self._handle = handle
        self.declared: dict[str, Request] = {}

    def cron(self, expression: str, target: Target, *args: Any, **options: Unpack[CronOptions]) -> Schedule:
        """Run a task or workflow at the times of a cron expression: ``app.cron("0 9 * * MON-FRI", report, "sales")``.

        Each worker of this code stores the schedule when it starts. From then on any worker fires it, each tick once,
        whichever workers die or start. Earlier declarations stay as they are; a change counts from now on. One whose
        ``until`` has passed has ended, and may stay in the code. Raises OptionsError: another one that this program
        declares has this name. Raises OptionsError, MissingExtra: times, policies or options of the job cannot be used.
        Raises ArgumentError, PayloadTooLarge: its arguments cannot be. Cost: none.

        Args:
            expression: see :class:`headrace.Cron`.
            target: a task, ``task.options(...)``, ``task.job(...)`` or a workflow.
            args: of the task or workflow, unless it is ``task.job(...)``.
            options: see :class:`headrace.schedules.schedule_handle.CronOptions`.
        """
        zone, name = options.pop("timezone", "UTC"), options.pop("name", None)
        return self._declare(name, Cron(expression, zone), target, args, options)

    def every(self, interval: Duration, target: Target, *args: Any, **options: Unpack[EveryOptions]) -> Schedule:
        """Run a task or workflow at even intervals, counted from 1970: ``app.every(300, refresh)``; as :meth:`cron`.
        See :class:`headrace.Every` and :class:`headrace.schedules.schedule_handle.EveryOptions`.
        """
        offset, name = options.pop("offset", 0), options.pop("name", None)
        return self._declare(name, Every(interval, offset), target, args, options)

    def _declare(
        self, name: str | None, timetable: Timetable, target: Target, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Schedule:
        found = request(name, timetable, unsent(target, args), self._client, options, code=True)
        known = self.declared.setdefault(found.name, found)
        if known.fingerprint != found.fingerprint:
            raise OptionsError(
                f"there is a schedule {found.name!r} already: give one of the two another name with name=..."
            )
        return self[found.name]

    @verb
    def put(
        self, name: str, timetable: Timetable, target: Target, *args: Any, **options: Unpack[ScheduleOptions]
    ) -> Steps[Schedule]:
        """Store a schedule, or change it: new times count from now; its pause, counts and history stay. ``target`` and
        ``args`` are as of :meth:`cron`, ``options`` of :class:`ScheduleOptions`. Raises OptionsError: code declares a
        schedule of this name. Raises OptionsError, ArgumentError, PayloadTooLarge: something cannot be used. Raises
        NotConfirmed: it is stored, and not as safe as the setting ``durability`` asks for. Cost: one round trip.
        """
        found = request(name, timetable, unsent(target, args), self._client, options)
        call = ticks.declare(self._client.keys, "", [found.row])
        words: list[str] = yield from self._client.kept(single(call), f"schedule {found.name}")
        if words == ["taken"]:
            raise OptionsError(
                f"code declares a schedule {found.name!r}: give this one another name, or change the code"
            )
        return self[found.name]

    @verb
    def page(self, after: str | None = None, limit: int = 100) -> Call[SchedulePage]:
        """Stored schedules by name, those behind ``after``; at most 500. Cost: one round trip."""
        return ticks.read_schedules(self._client.keys, (), after or "", min(limit, MOST_TICKS))

    def __getitem__(self, name: str) -> Schedule:
        """The schedule of this name, whether one is stored or not. Raises OptionsError. Cost: none."""
        return Schedule(self._client, name, self._handle)

    def __iter__(self) -> Iterator[Schedule]:
        """Cost: one round trip per 500."""
        after = ""
        while rows := self.page(after, MOST_TICKS).rows:
            for row in rows:
                yield self[row.name]
            after = rows[-1].name

    async def __aiter__(self) -> AsyncIterator[Schedule]:
        """Cost: one round trip per 500."""
        after = ""
        while rows := (await self.apage(after, MOST_TICKS)).rows:
            for row in rows:
                yield self[row.name]
            after = rows[-1].name

    aput = twin(put)
    apage = twin(page)
