"""``app.schedules``: the schedules that are stored, and those that a program's code declares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from headrace.errors import DuplicateName
from headrace.protocol import ticks
from headrace.protocol.ticks import MOST_TICKS, SchedulePage
from headrace.schedules.schedule_handle import (
    CronOptions,
    EveryOptions,
    Request,
    Schedule,
    ScheduleOptions,
    Target,
    request,
    unsent,
)
from headrace.schedules.timetables import Cron, Every, Timetable
from headrace.settings import Duration
from headrace.store.client import Client, Steps, single

if TYPE_CHECKING:
    from headrace.tasks.job_handle import Job


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
        ``until`` has passed has ended, and may stay in the code. Raises DuplicateName: another one that this program
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
            raise DuplicateName(
                f"there is a schedule {found.name!r} already: give one of the two another name with name=..."
            )
        return self[found.name]

    def put(
        self, name: str, timetable: Timetable, target: Target, *args: Any, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Store a schedule, or change it: new times count from now; its pause, counts and history stay. ``target`` and
        ``args`` are as of :meth:`cron`, ``options`` of :class:`ScheduleOptions`. Raises DuplicateName: code declares a
        schedule of this name. Raises OptionsError, ArgumentError, PayloadTooLarge: something cannot be used. Raises
        NotConfirmed: it is stored, and not as safe as the setting ``durability`` asks for. Cost: one round trip.
        """
        found = request(name, timetable, unsent(target, args), self._client, options)
        return self._stored(found, self._client.drive(self._put(found)))

    async def aput(
        self, name: str, timetable: Timetable, target: Target, *args: Any, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """See :meth:`put`."""
        found = request(name, timetable, unsent(target, args), self._client, options)
        return self._stored(found, await self._client.adrive(self._put(found)))

    def _put(self, found: Request) -> Steps[list[str]]:
        call = ticks.declare(self._client.keys, "", [found.row])
        return self._client.kept(single(call), f"schedule {found.name}")

    def page(self, after: str | None = None, limit: int = 100) -> SchedulePage:
        """Stored schedules by name, those behind ``after``; at most 500. Cost: one round trip."""
        return self._client.run(ticks.read_schedules(self._client.keys, (), after or "", min(limit, MOST_TICKS)))

    async def apage(self, after: str | None = None, limit: int = 100) -> SchedulePage:
        """See :meth:`page`."""
        return await self._client.arun(ticks.read_schedules(self._client.keys, (), after or "", min(limit, MOST_TICKS)))

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

    def _stored(self, found: Request, words: list[str]) -> Schedule:
        if words == ["taken"]:
            raise DuplicateName(
                f"code declares a schedule {found.name!r}: give this one another name, or change the code"
            )
        return self[found.name]
