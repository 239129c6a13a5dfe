"""The dispatcher: the only one in a worker that talks to the store for claiming. Never runs user code.

This is its loop, which decides nothing: it waits for sockets and times, tells the core (core.py) what happened and does
what the core says. It never waits for anything else: every event is a readable descriptor or a time. A thread makes the
connections (store_links.py).
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from random import Random
from threading import Thread
from typing import Any, get_args

from headrace.admin.alarms import look_at_alarms
from headrace.app import Headrace
from headrace.errors import HeadraceError
from headrace.worker.channel import Channel
from headrace.worker.dispatcher import dispatcher_events as events
from headrace.worker.dispatcher.core import Core
from headrace.worker.dispatcher.endings import DispatcherLog, JobCounts
from headrace.worker.dispatcher.remote_control import probe
from headrace.worker.dispatcher.runner_links import ControlLink, RunnerLinks, Selectors
from headrace.worker.dispatcher.settlement import GATHER
from headrace.worker.dispatcher.store_links import REPLY_TIMEOUT
from headrace.worker.dispatcher.store_session import StoreSession
from headrace.worker.dispatcher.worker_state import Worker
from headrace.worker.health_stamps import DRAINING, STAMP_EVERY, STAMP_SHARE, WELL
from headrace.worker.messages import Begun, FromSupervisor, ToSupervisor
from headrace.worker.own_tasks import worker_tasks
from headrace.worker.standard_streams import STREAMS, log
from headrace.worker.worker_options import WorkerOptions

# While each busy runner holds more than this, what runners say may wait for a moment, so that a trip carries many ends.
PLENTY = 8
# Seconds that the last runners have to leave before the dispatcher stops listening: a little more than their hooks.
LAST_WORDS = 5.5


class DeskInbox:
    def __init__(self, inbox: list[events.Event], shard: int) -> None:
        self._inbox, self._shard = inbox, shard

    def append(self, event: Any, /) -> None:
        self._inbox.append(events.DeskEvent(self._shard, event))


def store_actions(session: StoreSession) -> dict[type, Callable[[Any], None]]:
    return {
        events.Send: lambda action: session.send(action.steps),
        events.SendFirst: lambda action: session.send_first(action.steps),
        events.Sleep: lambda action: session.arm(action.keys, action.claim),
        events.WakeUp: lambda _: session.disarm(),
        events.Subscribe: lambda action: session.subscribe(action.channel),
    }


class Dispatcher:
    def __init__(
        self,
        app: Headrace,
        options: WorkerOptions,
        control: Channel[FromSupervisor],
        place: str,
        stamp: Callable[[float, int, float, float], None],
        parent: int = 0,
    ) -> None:
        store, settings = app.client.store, app.settings
        self._app = app
        # Unstamped: something changed since, which probes are to be told.
        self._stamp, self._stamp_at, self._unstamped = stamp, 0.0, True
        self._stamp_every = min(STAMP_EVERY, settings.lease * STAMP_SHARE)
        self._watched = Selectors()
        # What happened and the core was not told.
        self._inbox: list[events.Event] = []
        self._job_counts = JobCounts(app.stats, app.stats.of_workers(), place) if settings.stats_jobs else None
        shards = store.shards
        core = self._core = Core(self._worker(options, place, parent), *(keys for _, keys in shards))
        self._assignment = core.runner_pool.assignment
        links = self._links = RunnerLinks(self._watched, self._inbox)
        self._log = DispatcherLog(fold=settings.log_jobs != "all")
        patience = max(0.1, min(REPLY_TIMEOUT, settings.lease / 3))
        self._sessions = [
            StoreSession(
                target, patience, self._watched,
                self._inbox if len(shards) == 1 else DeskInbox(self._inbox, keys.shard),
                hint=self._hint, revive=store.revive,
            )
            for target, keys in shards
        ]  # fmt: skip
        self._desks = [store_actions(session) for session in self._sessions]
        self._ask = ControlLink(control, self._watched, links, self._inbox).ask
        self._doing: dict[type, Callable[[Any], None]] = {
            events.Give: links.give,
            events.Notify: links.send,
            events.TakeBack: links.take_back,
            events.Capture: links.capture,
            **dict.fromkeys(get_args(ToSupervisor), self._ask) | {Begun: self._on_begun},
            **self._desks[0],
            events.DeskAction: self._at_desk,
            events.Log: lambda action: self._observe(lambda: self._log.write(action)),
        }

    def _worker(self, options: WorkerOptions, place: str, parent: int) -> Worker:
        app = self._app
        return Worker(
            settings=app.settings, tasks=worker_tasks(app), options=options, place=place, pid=os.getpid(),
            random=Random(), probe=probe, job_counts=self._job_counts, parent=parent,
            sample=self._job_counts.sampled if self._job_counts else None,
            schedules=[one.row for one in app.schedules.declared.values()], limits=app.limits.declared(),
            hooks=list(app.hooks.declared.values()),
            look_at_alarms=self._look_at_alarms if app.alarms.declared else None,
        )  # fmt: skip

    def _look_at_alarms(self) -> None:
        """Look in a thread: statistics may be on a server that the core does not know, and that may not answer."""
        app = self._app

        def look() -> None:
            try:
                look_at_alarms(app.client, app.stats, app.alarms.declared.values())
            except HeadraceError as error:
                log.warning("did not look at alarms: %s", error, code="alarms.unread")

        Thread(target=look, name="headrace alarms", daemon=True).start()

    def run(self, predecessors: Sequence[str]) -> None:
        core = self._core
        # Before the first runner is asked for: the supervisor must not take the last stamp of a dead one for ours.
        self._stamp(time.monotonic(), 0, 0.0, 0.0)
        self._perform(core.start(predecessors, time.monotonic()))
        while not core.left:
            self._round(min(core.next, time.monotonic() + 60.0))
        # No lease is left to keep: runners may take their time.
        self._stamp(time.monotonic(), DRAINING, 0.0, 0.0)
        if self._job_counts is not None:
            self._observe(self._pass_on)
            self._observe(self._app.stats.close)
        # Runners leave now, and what their exit hooks write to stderr goes through here.
        end = time.monotonic() + LAST_WORDS
        self._turn()
        while core.runner_pool.present and time.monotonic() < end:
            self._round(end)
        if core.runner_pool.present:
            log.warning("leaving runners that do not exit to the supervisor", code="shutdown.runners_stay")
        self._log.pass_on(float("inf"))

    def _pass_on(self) -> None:
        if self._job_counts is not None:
            core = self._core
            self._job_counts.pass_on(core.incarnation.desk.server_time(core.worker.now) / 1e6)

    def _observe(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:  # noqa: BLE001 - statistics, or a filter of the application's log, must not end the loop
            traceback.print_exc()

    def _turn(self) -> None:
        while True:
            actions = self._core.on(self._inbox, time.monotonic())
            self._inbox.clear()
            self._perform(actions)
            for session in self._sessions:
                session.send_next()
            if self._core.awoken:
                # The runner that got a job may wait for this processor, while all else is decided.
                os.sched_yield()
            if not self._inbox and not self._core.hasty:
                return

    def _at_desk(self, one: events.DeskAction) -> None:
        self._desks[one.shard][type(one.action)](one.action)

    def _hint(self) -> None:
        if runner := self._assignment.likely:
            self._links.hint(runner)

    def _perform(self, actions: Iterable[events.Action]) -> None:
        for action in actions:
            self._doing[type(action)](action)

    def _round(self, until: float) -> None:
        counts = self._job_counts
        sessions = [session.next for session in self._sessions]
        until = min(until, STREAMS.next, self._log.next, self._links.next, *sessions)
        if counts is not None:
            until = min(until, counts.next)
        if self._unstamped:
            until = min(until, self._stamp_at)
        pause = max(0.0, until - time.monotonic())
        gather = min(GATHER, pause) if self._assignment.least_held > PLENTY else 0.0
        for handler in self._watched.select(pause, gather):
            handler()
        if not self._inbox and time.monotonic() < until:
            # A part of a reply: the rest follows at once.
            return
        # First of all, so that a job that came starts: the rest takes as long again.
        self._turn()
        now = time.monotonic()
        if now >= STREAMS.next:
            STREAMS.pass_on()
        if counts is not None and now >= counts.next:
            self._observe(self._pass_on)
        if now >= self._log.next:
            self._observe(lambda: self._log.pass_on(now))
        self._links.pass_on(now)
        for session in self._sessions:
            session.keep(now)
        if self._inbox:
            self._turn()
        self._unstamped = now < self._stamp_at
        if not self._unstamped:
            flags, until, starving = self._core.check_vitals(now)
            self._stamp(now, flags, until, starving)
            # What makes a worker ready is told at once.
            self._stamp_at = now + self._stamp_every if flags == WELL else now

    def _on_begun(self, action: Begun) -> None:
        """A probe must find a worker ready that its supervisor calls ready."""
        now = time.monotonic()
        self._stamp(now, *self._core.check_vitals(now))
        self._ask(action)
