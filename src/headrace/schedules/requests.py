"""What a program asks for when it declares a schedule: checked, and made a row for the store. Sends nothing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypedDict, get_args

import msgspec

from headrace.errors import CronError
from headrace.model.form import Form
from headrace.model.headers import SCHEDULE, added, packed, shown
from headrace.model.ids import check_name
from headrace.model.limit_rules import MOST_NUMBER, is_whole
from headrace.model.schedule_record import Policies
from headrace.protocol import ticks
from headrace.protocol.produce import head_of
from headrace.schedules.timetables import Cron, Every, Timetable, moment_of, span
from headrace.schedules.timing import Missed, Overlap, timing_of
from headrace.settings import Duration, Settings, microseconds
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.submission import UnsentJob
from headrace.workflows.definition import Workflow

Target: TypeAlias = BoundTask[..., Any] | Workflow[...] | UnsentJob[Any]

_pack = msgspec.msgpack.Encoder().encode


class ScheduleOptions(TypedDict, total=False):
    """The policies of a schedule.

    Attributes:
        overlap: what a tick does while a job of the schedule waits, runs or is retried. ``skip``: nothing (default).
            ``buffer_one``: its job waits, if none does. ``buffer_all``: its job waits, behind at most 1,000 others.
            ``cancel_other``: the others are cancelled, and its job follows. ``allow_all``: its job runs beside them.
        missed: what runs of ticks that no worker was there for. ``latest``: the newest (default). ``skip``: none.
            ``all``: all, at most 100.
        within: ticks that are older than this are not made up for; without it, there is no such limit.
        jitter: a job starts later than its tick by up to this, by a hash of name and tick.
        start, until: it ticks from and to these times only; with a time zone.
        most: it makes so many jobs, then it has ended.
        pause_after: so many jobs in a row that failed pause it.
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
    """What ``app.cron`` takes.

    Attributes:
        timezone: a name of the IANA database; ``UTC``.
        name: of the schedule; without one, that of the task.
    """

    timezone: str
    name: str | None


class EveryOptions(ScheduleOptions, total=False):
    """What ``app.every`` takes.

    Attributes:
        offset: how much later than the multiples of the interval since 1970; less than it.
        name: of the schedule; without one, that of the task.
    """

    offset: Duration
    name: str | None


class Request(msgspec.Struct, frozen=True):
    """A schedule that is asked for.

    Attributes:
        name: of the schedule.
        row: as the store takes it.
        fingerprint: of all that its definition says.
        timetable: when it ticks.
    """

    name: str
    row: ticks.Row
    fingerprint: str
    timetable: Timetable


def unsent(target: object, args: Sequence[Any]) -> UnsentJob[Any]:
    """The job that each tick makes; its arguments are checked here.

    Raises:
        CronError: ``target`` is nothing that a schedule can run.
        ArgumentError, PayloadTooLarge: as ``enqueue``.
    """
    found: Any = target.definition.task if isinstance(target, Workflow) else target
    if isinstance(target, (Workflow, BoundTask)):
        made: UnsentJob[Any] = found.job(*args)
        return made
    if not isinstance(target, UnsentJob):
        raise CronError(f"a schedule runs a task, task.options(...), task.job(...) or a workflow, not {target!r:.80}")
    if args:
        raise CronError(f"{found!r} has its arguments already: give the task itself, or no arguments")
    job: UnsentJob[Any] = found
    return job


def request(
    name: str | None,
    timetable: Timetable,
    job: UnsentJob[Any],
    settings: Settings,
    options: Mapping[str, Any],
    *,
    code: bool = False,
) -> Request:
    """Check what is asked for, by ``code`` or at run time.

    Raises:
        CronError: names what cannot be.
        OptionsError: the name cannot be used.
    """
    if not isinstance(timetable, (Cron, Every)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CronError(f"a schedule ticks by Cron(...) or Every(...), not {timetable!r:.80}")
    name = check_name("schedule", job.form.task if name is None else name)
    given = _checked(options)
    now = time.time_ns() // 1000
    timing = timing_of(timetable, name, given["jitter"], given["start"], given["until"], now, code=code)
    form = _form(name, job.form, given["overlap"], job.request_id)
    keep, about = microseconds(settings.failure_ttl), timing.packed()
    pause_after, most = given["pause_after"] or 0, given["most"]
    policies = Policies(given["missed"], given["within"], given["overlap"], keep, job.name or "", pause_after)
    whole = _pack([name, head_of(form), job.args, about, policies, most])
    fingerprint = hashlib.sha1(whole, usedforsecurity=False).hexdigest()[:16]
    row = ticks.row_of(name, fingerprint, form, job.args, about, policies, most)
    return Request(name, row, fingerprint, timetable)


def policy(name: str, value: Any, kind: Any) -> str:
    """The word of a policy.

    Raises:
        CronError: there is no such word.
    """
    if value not in get_args(kind):
        raise CronError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r:.80}")
    return str(value)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(options) - set(ScheduleOptions.__annotations__)
    if unknown:
        known = ", ".join(ScheduleOptions.__annotations__)
        raise CronError(
            f"a schedule has no option {min(unknown)!r}, its options are {known}; options of its jobs go to "
            f"task.options(...), and arguments by name to task.job(...)"
        )
    for name in ("most", "pause_after"):
        count = options.get(name)
        if count is not None and (not is_whole(count) or not 1 <= count <= MOST_NUMBER):
            raise CronError(f"{name} must be a whole number from 1 to {MOST_NUMBER:,}, not {count!r:.80}")
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
    """The form of its jobs, with a header that names the schedule."""
    wrong = {"delay": form.delay, "at": form.at, "request_id": request_id}
    for option, value in wrong.items():
        if value:
            raise CronError(f"a schedule says when its jobs start, so they take no {option}=")
    if (form.ordered or form.key) and overlap != "allow_all":
        raise CronError(
            f"jobs of a schedule wait for each other by its overlap policy, and key= would have them wait for others "
            f"too: give overlap='allow_all', or no key (schedule {name!r})"
        )
    if form.ordered:
        raise CronError(f"jobs of a schedule cannot be ordered by a key: leave ordered= out (schedule {name!r})")
    headers = added(((SCHEDULE, name),), shown(form.headers))
    return msgspec.structs.replace(form, headers=packed(headers))
