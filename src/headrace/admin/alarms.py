"""``app.alarms``: figures of the store, and the bounds that raise an alarm.

1. :class:`Alarms`: declares alarms, and reports where they stand.
2. :func:`look_at_alarms`: one look at the figures of all alarms. A duty of the dispatcher begins it every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.errors import OptionsError
from headrace.model import activity
from headrace.model.job_record import Page
from headrace.protocol import overviews
from headrace.protocol.operations import AlarmNote, StoredWatch, note_alarms, stored_watches, watch_name
from headrace.protocol.overviews import Overview
from headrace.settings import Duration
from headrace.store.client import Client, Steps, single, then, together, twin, verb

if TYPE_CHECKING:
    from headrace.stats import Stats
    from headrace.stats.reading import Bucket

MAX_ALARMS = 100  # alarms of one application


class AlarmRecord(msgspec.Struct, frozen=True):
    """Where an alarm stands.

    Attributes:
        name: of the alarm.
        state: when it was raised, and the figure then.
        looked_us: when a worker looked at it last, microseconds.
    """

    name: str
    state: activity.AlarmState
    looked_us: int


class Alarms:
    """``app.alarms``: those that the code declares, and where the store says that they stand.

    Attributes:
        declared: by name.
    """

    def __init__(self, client: Client) -> None:
        self.declared: dict[str, activity.AlarmRule] = {}
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

        One worker looks every ten seconds. When the figure has been beyond the bound for ``for_`` seconds, the event
        ``alarm_raised`` is told, once; when it has been within the bound for as long, and for a minute at least,
        ``alarm_cleared``. Hooks of these kinds (:meth:`EventHooks.on`) tell people. Nothing
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

        Cost: none; a look takes two round trips every ten seconds for all alarms.
        """
        bounds = {"delay": delay, "ready": ready, "workers": workers, "failed": failed}
        rule = activity.alarm_rule(name, bounds, queue, task, for_)
        if name in self.declared:
            raise OptionsError(f"there is an alarm {name!r} already: give it another name")
        if len(self.declared) >= MAX_ALARMS:
            raise OptionsError(
                f"an application has at most {MAX_ALARMS} alarms: leave the queue out, for the worst of all"
            )
        self.declared[name] = rule

    @verb
    def page(self) -> Steps[Page[AlarmRecord]]:
        """All alarms that a worker looked at within a week, the raised ones first. Cost: one round trip."""
        return then(stored_watches(self._client.keys), _alarms)

    apage = twin(page)


def _alarms(found: list[StoredWatch]) -> Page[AlarmRecord]:
    start = watch_name("alarm", "")
    rows = [
        AlarmRecord(one.name.removeprefix(start), activity.state_of(one.fields), one.held_us)
        for one in found
        if one.name.startswith(start)
    ]
    return Page(sorted(rows, key=lambda row: (row.state.raised_us == 0, row.name)), len(rows), None)


def look_at_alarms(client: Client, stats: Stats, rules: Collection[activity.AlarmRule]) -> None:
    """Read all figures, and record where the alarms stand; an event tells of each that is raised or cleared. Cost: two
    round trips, one more where statistics have a server of their own. Raises HeadraceError: the store does not answer.
    """
    every, start = stats.layout.levels[0].cut.name, time.time() - activity.SHARE_WINDOW
    labels = {_starts_label(rule) for rule in rules if rule.figure == "failed"}
    readings = {label: stats.find(label, start, every=every) for label in labels}
    calls = [single(stored_watches(client.keys)), single(overviews.overview(client.keys, details=False))]
    counts: list[Steps[Any]] = [reading.learn_total() for reading in readings.values()]
    if stats.client is not client:
        stats.client.drive(together(counts))
        counts = []
    # Before and after: a shard that was left out may be one to ask by the time of the answer.
    left_out = client.left_out
    stored, seen, *_ = client.drive(together([*calls, *counts]))
    left_out = left_out or client.left_out
    # Read with the others.
    counted = {label: reading.total() for label, reading in readings.items()}
    states = {one.name: activity.state_of(one.fields) for one in stored}
    figures = [(rule, _figure_of(rule, seen, counted)) for rule in rules]
    notes = [
        _judged(rule, states.get(watch_name("alarm", rule.name), NO_STATE), found, seen.now)
        for rule, found in figures
        # The jobs of a shard that does not answer are not in figures of queues, which clear no alarm then.
        if not (left_out and rule.figure in ("delay", "ready") and not rule.beyond(found.value))
    ]
    client.run(note_alarms(client.keys, notes))


NO_STATE = activity.state_of({})


def _judged(rule: activity.AlarmRule, state: activity.AlarmState, found: FoundFigure, now: int) -> AlarmNote:
    new = activity.next_state(rule, state, found.value, now)
    kind, facts = "", dict[str, str | int]()
    if bool(new.raised_us) != bool(state.raised_us):
        kind = "alarm_raised" if new.raised_us else "alarm_cleared"
        about = {"queue": found.queue, "task": found.task}
        facts = {"alarm": rule.name, "rule": rule.words, "value": f"{found.value:.6g}"}
        facts |= {word: text for word, text in about.items() if text}
    return AlarmNote(watch_name("alarm", rule.name), state.raised_us, activity.fields_of(new), kind, facts)


class FoundFigure(NamedTuple):
    value: float
    queue: str = ""
    task: str = ""


def _starts_label(rule: activity.AlarmRule) -> str:
    from headrace.stats.resolutions import TASKS  # at first use: a producer must not pay for statistics

    return f"{TASKS}/{rule.task}" if rule.task else TASKS


def _figure_of(rule: activity.AlarmRule, seen: Overview, counted_lately: Mapping[str, Bucket]) -> FoundFigure:
    if rule.figure == "failed":
        return FoundFigure(_share(counted_lately[_starts_label(rule)]), task=rule.task)
    if rule.figure == "workers":
        return FoundFigure(seen.served[rule.queue] if rule.queue else len(seen.live), rule.queue)
    values = [
        FoundFigure((queue.waited(seen.now) or 0.0) if rule.figure == "delay" else queue.size, queue.name)
        for queue in seen.queues
        if not queue.paused and rule.queue in ("", queue.name)
    ]
    return max(values, default=FoundFigure(0.0, rule.queue))


def _share(bucket: Bucket) -> float:
    from headrace.stats.resolutions import WRONG

    wrong, started = sum(bucket[field] for field in WRONG), bucket["started"]
    return wrong / started if wrong >= activity.FEWEST and started else 0.0
