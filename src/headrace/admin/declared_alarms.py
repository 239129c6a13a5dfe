"""Alarms of an application: declares them, and tells where they stand. The watcher of a worker looks at the figures."""

from __future__ import annotations

import msgspec

from headrace.errors import OptionsError
from headrace.model.activity import AlarmRule, AlarmState, alarm_rule, state_of
from headrace.model.job_record import Page
from headrace.protocol.operations import StoredWatch, stored_watches, watch_name
from headrace.protocol.script import Call
from headrace.settings import Duration
from headrace.store.client import Client

# Alarms of one application.
MOST = 100


class AlarmRecord(msgspec.Struct, frozen=True):
    """Where an alarm stands.

    Attributes:
        name: of the alarm.
        state: when it was raised, and the figure then.
        looked_us: when a watcher looked at it last, microseconds.
    """

    name: str
    state: AlarmState
    looked_us: int


class Alarms:
    """``app.alarms``: those that the code declares, and where the store says that they stand.

    Attributes:
        declared: by name.
    """

    def __init__(self, client: Client) -> None:
        self.declared: dict[str, AlarmRule] = {}
        self._client = client

    def declare(
        self,
        name: str,
        *,
        queue: str | None = None,
        task: str | None = None,
        delay: Duration | None = None,
        ready: int | None = None,
        workers: int | None = None,
        failed: float | None = None,
        for_: Duration = 60,
    ) -> None:
        """Raise an alarm when a figure crosses a bound: ``app.alarm("mail is slow", queue="mail", delay=60)``.

        One worker of all that declare it looks every ten seconds. When the figure has been beyond the bound for
        ``for_`` seconds, the event ``alarm_raised`` is told, once; when it has been within the bound for as long, and
        for a minute at least, ``alarm_cleared``. Hooks of these kinds (:meth:`EventHooks.on`) tell people. Nothing
        looks while no worker runs: see that from outside, with Prometheus or ``headrace health``.

        Args:
            name: a text of at most 100 characters.
            queue: that ``delay``, ``ready`` or ``workers`` is about; without it the worst of all queues that are not
                paused, and all live workers.
            task: that ``failed`` is about; without it all tasks together.
            delay: the next job of the queue waits for longer than this.
            ready: more jobs than this are ready.
            workers: fewer live workers than this serve the queue.
            failed: a greater share of the starts of the last ten minutes failed or crashed, and ten of them at least.
            for_: so long, in seconds.

        Raises:
            OptionsError: not exactly one of the four figures is given; a value cannot be used; the name is taken.

        Cost: none; the watcher takes one round trip every ten seconds for all alarms.
        """
        bounds = {"delay": delay, "ready": ready, "workers": workers, "failed": failed}
        rule = alarm_rule(name, bounds, queue, task, for_)
        if name in self.declared:
            raise OptionsError(f"there is an alarm {name!r} already: give it another name")
        if len(self.declared) >= MOST:
            raise OptionsError(f"an application has at most {MOST} alarms: leave the queue out, for the worst of all")
        self.declared[name] = rule

    def page(self) -> Page[AlarmRecord]:
        """All alarms that a worker looked at within a week, the raised ones first, then by name.

        Cost: one round trip.
        """
        return _alarms(self._client.run(self._stored()))

    async def apage(self) -> Page[AlarmRecord]:
        """See :meth:`page`."""
        return _alarms(await self._client.arun(self._stored()))

    def _stored(self) -> Call[list[StoredWatch]]:
        return stored_watches(self._client.keys)


def _alarms(found: list[StoredWatch]) -> Page[AlarmRecord]:
    start = watch_name("alarm", "")
    rows = [
        AlarmRecord(one.name.removeprefix(start), state_of(one.fields), one.held_us)
        for one in found
        if one.name.startswith(start)
    ]
    return Page(sorted(rows, key=lambda row: (row.state.raised_us == 0, row.name)), len(rows), None)
