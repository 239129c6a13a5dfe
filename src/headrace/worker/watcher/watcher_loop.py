"""The loop of the watcher: it waits for the next look, the end of a call, or the signal to stop.

Alarms: one look at all figures every ten seconds, by the watcher that holds them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.app import Headrace
from headrace.errors import HeadraceError, StoreUnavailable
from headrace.model.activity import (
    FEWEST,
    SHARE_WINDOW,
    AlarmRule,
    AlarmState,
    fields_of,
    next_state,
    state_of,
)
from headrace.protocol import overviews
from headrace.protocol.operations import HeldWatches, hold_watches, note_watch, watch_name
from headrace.protocol.overviews import Overview
from headrace.protocol.script import Call
from headrace.stats.labels import TASKS, WRONG
from headrace.stats.reading import Bucket
from headrace.store.client import Steps, single, together
from headrace.worker.forking import child_process
from headrace.worker.forking.standard_streams import log
from headrace.worker.watcher.hook_rounds import HookRounds

EVERY = 10.0
# Microseconds after which the alarms of a watcher that died are another's.
LEASE_US = 30_000_000


class AlarmRounds:
    """The alarms of an application. What is known of them is in the store alone.

    Attributes:
        next: when the next look is due (monotonic seconds).
    """

    def __init__(self, app: Headrace, holder: str) -> None:
        """Make one; ``holder`` names this watcher."""
        self._app, self._holder = app, holder
        self._rules = list(app.alarms.declared.values())
        self._names = [watch_name("alarm", rule.name) for rule in self._rules]
        self._holds = False
        self.next = 0.0 if self._rules else float("inf")

    def look(self, now: float) -> None:
        """Look at all figures, and tell of alarms that are raised or cleared by them.

        Raises:
            HeadraceError: the store does not answer.

        Cost: one round trip, and one where an alarm changes; one more where statistics have a server of their own.
        """
        self.next = now + EVERY
        if not self._holds:
            # Others' figures need not be read.
            self._holds = any(fields for fields in self._app.client.run(self._hold(LEASE_US)).fields)
            self.next = now if self._holds else self.next
            return
        held, seen, counted = self._read()
        self._holds = any(held.fields)
        notes: list[Call[bool]] = []
        for rule, name, fields in zip(self._rules, self._names, held.fields, strict=True):
            if fields is not None:
                notes += self._judged(rule, name, state_of(fields), _figure_of(rule, seen, counted), held.now)
        if notes:
            self._app.client.store.run_all(notes)

    def release(self) -> Sequence[Call[Any]]:
        """What gives the alarms to another watcher at once."""
        return [self._hold(0)] if self._rules else []

    def _hold(self, lease: int) -> Call[HeldWatches]:
        return hold_watches(self._app.client.keys, self._holder, self._names, lease)

    def _read(self) -> tuple[HeldWatches, Overview, dict[str, Bucket]]:
        stats, way = self._app.stats, self._app.client
        every, start = stats.layout.levels[0].cut.name, time.time() - SHARE_WINDOW
        labels = {_label_of(rule) for rule in self._rules if rule.figure == "failed"}
        readings = {label: stats.find(label, start, every=every) for label in labels}
        calls = [single(self._hold(LEASE_US)), single(overviews.overview(way.keys, details=False))]
        counts: list[Steps[Any]] = [reading.learn_total() for reading in readings.values()]
        if stats.way is way:
            held, seen, *_ = way.drive(together([*calls, *counts]))
        else:
            held, seen = way.drive(together(calls))
            stats.way.drive(together(counts))
        # Read with the others.
        return held, seen, {label: reading.total() for label, reading in readings.items()}

    def _judged(self, rule: AlarmRule, name: str, state: AlarmState, found: FoundFigure, now: int) -> list[Call[bool]]:
        """What records where an alarm stands now; nothing if it stands as it did."""
        new = next_state(rule, state, found.value, now)
        if new == state:
            return []
        kind, facts = "", dict[str, str | int]()
        if bool(new.raised_us) != bool(state.raised_us):
            kind = "alarm_raised" if new.raised_us else "alarm_cleared"
            about = {"queue": found.queue, "task": found.task}
            facts = {"alarm": rule.name, "rule": rule.words, "value": f"{found.value:.6g}"}
            facts |= {word: text for word, text in about.items() if text}
        return [
            note_watch(
                self._app.client.keys, name, self._holder, fields_of(new),
                change="raised" if kind else "", kind=kind, facts=facts,
            )
        ]  # fmt: skip


class FoundFigure(NamedTuple):
    """A figure, and the queue or task that has it; empty for all of them."""

    value: float
    queue: str = ""
    task: str = ""


def _label_of(rule: AlarmRule) -> str:
    """Where the starts that a share is of are counted."""
    return f"{TASKS}/{rule.task}" if rule.task else TASKS


def _figure_of(rule: AlarmRule, seen: Overview, counted: Mapping[str, Bucket]) -> FoundFigure:
    """The figure of an alarm; ``counted``: of the last ten minutes, by label."""
    if rule.figure == "failed":
        return FoundFigure(_share(counted[_label_of(rule)]), task=rule.task)
    if rule.figure == "workers":
        return FoundFigure(seen.served[rule.queue] if rule.queue else len(seen.live), rule.queue)
    values = [
        FoundFigure((queue.waited(seen.now) or 0.0) if rule.figure == "delay" else queue.size, queue.name)
        for queue in seen.queues
        if not queue.paused and rule.queue in ("", queue.name)
    ]
    return max(values, default=FoundFigure(0.0, rule.queue))


def _share(bucket: Bucket) -> float:
    wrong, started = sum(bucket[field] for field in WRONG), bucket["started"]
    return wrong / started if wrong >= FEWEST and started else 0.0


# Seconds until a store that did not answer is asked again; a call has waited for it before.
AGAIN = 5.0
# Seconds until one that refuses is asked again.
REFUSED = 60.0
# Seconds that calls have to end when the watcher is told to stop; the supervisor ends it soon after.
PATIENCE = 4.0


def watch(app: Headrace) -> None:
    """Be the watcher of a worker, until TERM."""
    gc.enable()
    wake = child_process.listen((signal.SIGTERM, signal.SIGCHLD))
    holder = os.urandom(9).hex()
    hooks, alarms = HookRounds(app, holder), AlarmRounds(app, holder)
    while True:
        now = time.monotonic()
        stops = signal.SIGTERM in child_process.heard()
        hooks.check_calls(now)
        if stops:
            break
        for part in (hooks, alarms):
            if now >= part.next:
                _look(part, now)
        _wait(wake, min(hooks.wake_at, alarms.next))
    _finish(hooks, wake)
    with contextlib.suppress(HeadraceError):
        app.client.store.run_all([*hooks.release(), *alarms.release()])


def _look(part: HookRounds | AlarmRounds, now: float) -> None:
    try:
        part.look(now)
    except StoreUnavailable:
        # The dispatcher tells of it.
        part.next = time.monotonic() + AGAIN
    except HeadraceError as error:
        log.warning("hooks and alarms are not looked after: %s", error, code="watcher.refused")
        part.next = time.monotonic() + REFUSED


def _finish(hooks: HookRounds, wake: int) -> None:
    """Tell of what happened last, such as the end of the last jobs, and let the calls end."""
    end = time.monotonic() + PATIENCE
    if hooks.next < float("inf"):
        _look(hooks, time.monotonic())
    while hooks.busy and time.monotonic() < end:
        _wait(wake, end)
        child_process.heard()
        hooks.check_calls(time.monotonic())
    hooks.kill()


def _wait(wake: int, until: float) -> None:
    """Wait for a signal, or until then."""
    select.select([wake], [], [], max(0.0, min(until - time.monotonic(), 3600.0)))
