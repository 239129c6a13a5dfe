"""The watcher of a worker: it calls the hooks of the application and checks its alarms.

1. :class:`HookCall`: one call of a hook: a forked process of its own, so a hook may hang, raise, fork or die, and harms
   no other process.
2. :class:`HookRounds`: which hooks this watcher holds, which events each has dealt with, and its calls. The store knows
   the position of each hook, so another watcher goes on where this one ends. A list of events is on record before the
   call: a hook that takes its machine down is not called with that list for ever.
3. :class:`AlarmRounds`: one look at all figures every ten seconds, by the watcher that holds them.
4. :func:`watch`: the loop: it waits for the next look, the end of a call, or the signal to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.admin.event_log import EventHook
from headrace.app import Headrace
from headrace.errors import HeadraceError, StoreUnavailable
from headrace.model.activity import (
    FEWEST,
    SHARE_WINDOW,
    AlarmRule,
    AlarmState,
    EventRecord,
    event_of,
    fields_of,
    next_state,
    state_of,
)
from headrace.model.job import number
from headrace.protocol import operations, overviews
from headrace.protocol.operations import Fields, HeldWatches, StreamPiece, hold_watches, note_watch, watch_name
from headrace.protocol.overviews import Overview
from headrace.protocol.script import Call
from headrace.stats.reading import Bucket
from headrace.stats.resolutions import TASKS, WRONG
from headrace.store.client import Steps, single, together
from headrace.worker.forking import child_process
from headrace.worker.forking.child_process import fork_child, how, kill_group
from headrace.worker.forking.lifecycle_hooks import Hook, run_each
from headrace.worker.forking.standard_streams import log
from headrace.worker.preload import warmup

# Seconds that a call may take, and that the application's exit hooks may take after it.
LONGEST = 30.0
EXIT_HOOKS = 5.0


class HookCall:
    """A call that was begun.

    Attributes:
        pid: of its process, and of its process group.
        until: when it is ended by force (monotonic seconds).
    """

    def __init__(self, app: Headrace, hook: EventHook, events: list[EventRecord]) -> None:
        """Begin it. Raises OSError: the system has no room for a process."""
        self.until = time.monotonic() + LONGEST
        self._late = False
        self.pid = fork_child(lambda: _call(app, hook, events), ())

    def kill(self) -> None:
        kill_group(self.pid)

    def cut(self, now: float) -> None:
        if now >= self.until and not self._late:
            self._late = True
            self.kill()

    def ended(self) -> str | None:
        """What went wrong with it, empty when nothing did; None: it goes on."""
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        # Before it is reaped: its number is its own until then.
        self.kill()
        _, status = os.waitpid(self.pid, 0)
        if self._late:
            return f"it took more than {LONGEST:g} s"
        return how(status) if status else ""


def _call(app: Headrace, hook: EventHook, events: list[EventRecord]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warmup.reseed()
    gc.enable()
    code = 1
    try:
        for prepare in app.after_fork_child_hooks:
            prepare()
        found: Any = hook.function(events)
        if asyncio.iscoroutine(found):
            asyncio.run(found)
        code = 0
    except BaseException as error:
        log.error("the event hook %s raised", hook.name, exc_info=error, code="watcher.hook_raised")
    run_each([*app.exit_hooks, *app.closers, logging.shutdown], EXIT_HOOKS, _failed)
    return code


def _failed(hook: Hook, error: BaseException, seconds: float) -> None:  # noqa: ARG001 - as run_each calls it
    log.error("the exit hook %r failed after a call of an event hook", hook, exc_info=error, code="watcher.exit_hook")


# Seconds between two looks of a watcher that holds a hook, and of one that waits for another watcher's to become free.
HOOK_INTERVAL = 1.0
WAITING = 10.0
# Microseconds after which the hooks of a watcher that died are another's.
LEASE_US = 30_000_000
# Events that one call is given; calls with the same events; seconds before the second of these, and before the third.
BATCH = 100
TRIES = 3
PAUSES = (5.0, 30.0)


class _HookProgress:
    """How far one hook is.

    Attributes:
        held: whether this watcher holds it.
        at: the last event that is dealt with.
        end: the last event of the list that was given last; empty: that is dealt with.
        tries: how often that was given.
        unsaved: the store does not know yet that it is dealt with.
        next: when its next call may begin (monotonic seconds).
        call: what runs.
    """

    def __init__(self, hook: EventHook) -> None:
        self.hook = hook
        self.name = watch_name("hook", hook.name)
        self.held = self.unsaved = False
        self.at = ""
        self.end = ""
        self.tries = 0
        self.next = 0.0
        self.call: HookCall | None = None

    def learn(self, fields: Fields | None) -> bool:
        """Learn whether it is held, and where the watcher before this one left it; whether that is new."""
        if fields is None:
            if self.call is not None:
                self.call.kill()
            self.held = False
            return False
        if self.held:
            return False
        self.held, self.unsaved = True, False
        self.at = fields.get("at", "")
        self.end = fields.get("end", "")
        self.tries = number(fields.get("tries"))
        return True

    def dealt_with(self) -> None:
        self.at = self.end
        self.end = ""
        self.tries = 0
        self.unsaved = True

    def fields(self) -> dict[str, str | int]:
        return {"at": self.at, "end": self.end, "tries": self.tries}


class HookRounds:
    """The hooks of an application.

    Attributes:
        next: when the next look is due (monotonic seconds).
    """

    def __init__(self, app: Headrace, holder: str) -> None:
        """Make one; ``holder`` names this watcher."""
        self.next = 0.0 if app.hooks.declared else float("inf")
        self._app, self._holder = app, holder
        self._all = [_HookProgress(hook) for hook in app.hooks.declared.values()]
        self._names = [one.name for one in self._all]

    @property
    def busy(self) -> bool:
        return any(one.call for one in self._all)

    @property
    def wake_at(self) -> float:
        """When something is due: a look, or the end of a call's time."""
        return min([self.next, *(one.call.until for one in self._all if one.call)])

    def look(self, now: float) -> None:
        """Read what happened, and begin calls.

        Raises:
            HeadraceError: the store does not answer.

        Cost: one round trip, and one for each call that begins.
        """
        ready = [one for one in self._all if one.held and not one.call and now >= one.next]
        unsaved = [one for one in self._all if one.unsaved]
        calls: list[Call[Any]] = [hold_watches(self._app.client.keys, self._holder, self._names, LEASE_US)]
        calls += [self._note(one) for one in unsaved]
        calls += [self._told(one) for one in ready]
        held, *replies = self._app.client.store.run_all(calls)
        # Each learns, whatever the others have.
        new = [one.learn(fields) for one, fields in zip(self._all, held.fields, strict=True)]
        for one in unsaved:
            one.unsaved = False
        self.next = now if any(new) else now + (HOOK_INTERVAL if any(one.held for one in self._all) else WAITING)
        for one, piece in zip(ready, replies[len(unsaved) :], strict=True):
            if one.held:
                self._take(one, piece, now)

    def check_calls(self, now: float) -> None:
        """Learn of calls that have ended, and end those that take too long."""
        for one in self._all:
            if one.call is None:
                continue
            one.call.cut(now)
            trouble = one.call.ended()
            if trouble is None:
                continue
            one.call = None
            if one.held:
                self._ended(one, trouble, now)

    def kill(self) -> None:
        """End all calls; their events are given again."""
        for one in self._all:
            if one.call is not None:
                one.call.kill()

    def release(self) -> Sequence[Call[Any]]:
        unsaved = [self._note(one) for one in self._all if one.unsaved]
        return [*unsaved, hold_watches(self._app.client.keys, self._holder, self._names, 0)] if self._all else []

    def _note(self, one: _HookProgress) -> Call[bool]:
        return note_watch(self._app.client.keys, one.name, self._holder, one.fields())

    def _told(self, one: _HookProgress) -> Call[StreamPiece]:
        return operations.told(self._app.client.keys, "events", BATCH, one.at, desc=False, kinds=one.hook.kinds)

    def _take(self, one: _HookProgress, piece: StreamPiece, now: float) -> None:
        # Events that were given before are given again, and no others with them.
        rows = [row for row in piece.rows if not one.end or _order(row[0]) <= _order(one.end)]
        events = [event for row in rows if one.hook.wants(event := event_of(*row))]
        if not events:
            one.at = one.end or piece.last or (rows[-1][0] if rows else one.at)
            self.next = now if one.end or piece.last else self.next
            one.end, one.tries = "", 0
            return
        # Not the end on record: code that wants other kinds may be given less of the list at once.
        one.end = rows[-1][0]
        if one.tries >= TRIES:
            self._give_up(one)
            return
        keys, tried = self._app.client.keys, one.fields() | {"tries": one.tries + 1}
        if self._app.client.run(note_watch(keys, one.name, self._holder, tried)):
            try:
                one.call = HookCall(self._app, one.hook, events)
                # Not before: what was not called would lose its events to a store that is away, or to a full machine.
                one.tries += 1
            except OSError as error:
                one.next = now + PAUSES[0]
                log.warning(
                    "no process for the event hook %s (%s): again in %g s",
                    one.hook.name,
                    error,
                    PAUSES[0],
                    code="watcher.no_process",
                )

    def _ended(self, one: _HookProgress, trouble: str, now: float) -> None:
        if not trouble:
            one.dealt_with()
            one.next, self.next = now + HOOK_INTERVAL, now
        elif one.tries >= TRIES:
            self._give_up(one)
        else:
            pause = PAUSES[one.tries - 1]
            log.warning(
                "the event hook %s failed (%s); it is called again in %g s",
                one.hook.name,
                trouble,
                pause,
                code="watcher.hook_failed",
            )
            one.next = now + pause

    def _give_up(self, one: _HookProgress) -> None:
        log.error(
            "the event hook %s failed %d times, and goes past these events: headrace events --order asc --after %s",
            one.hook.name, TRIES, one.at,
            code="watcher.hook_given_up",
        )  # fmt: skip
        one.dealt_with()


def _order(id: str) -> tuple[int, int]:
    at, _, sequence = id.partition("-")
    return number(at), number(sequence)


ALARM_INTERVAL = 10.0
# Microseconds after which the alarms of a watcher that died are another's.


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
        self.next = now + ALARM_INTERVAL
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
        if stats.client is way:
            held, seen, *_ = way.drive(together([*calls, *counts]))
        else:
            held, seen = way.drive(together(calls))
            stats.client.drive(together(counts))
        # Read with the others.
        return held, seen, {label: reading.total() for label, reading in readings.items()}

    def _judged(self, rule: AlarmRule, name: str, state: AlarmState, found: FoundFigure, now: int) -> list[Call[bool]]:
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
    end = time.monotonic() + PATIENCE
    if hooks.next < float("inf"):
        _look(hooks, time.monotonic())
    while hooks.busy and time.monotonic() < end:
        _wait(wake, end)
        child_process.heard()
        hooks.check_calls(time.monotonic())
    hooks.kill()


def _wait(wake: int, until: float) -> None:
    select.select([wake], [], [], max(0.0, min(until - time.monotonic(), 3600.0)))
