"""The loop of the watcher: it waits for the next look, the end of a call, or the signal to stop."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import time

from headrace.app import Headrace
from headrace.errors import HeadraceError, StoreUnavailable
from headrace.worker.forking import signals
from headrace.worker.watcher.alarm_rounds import AlarmRounds
from headrace.worker.watcher.hook_rounds import HookRounds

log = logging.getLogger("headrace.worker")

# Seconds until a store that did not answer is asked again; a call has waited for it before.
AGAIN = 5.0
# Seconds until one that refuses is asked again.
REFUSED = 60.0
# Seconds that calls have to end when the watcher is told to stop; the supervisor ends it soon after.
PATIENCE = 4.0


def watch(app: Headrace) -> None:
    """Be the watcher of a worker, until TERM."""
    gc.enable()
    wake = signals.listen((signal.SIGTERM, signal.SIGCHLD))
    holder = os.urandom(9).hex()
    hooks, alarms = HookRounds(app, holder), AlarmRounds(app, holder)
    while True:
        now = time.monotonic()
        stops = signal.SIGTERM in signals.heard()
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
        log.warning("hooks and alarms are not looked after: %s", error)
        part.next = time.monotonic() + REFUSED


def _finish(hooks: HookRounds, wake: int) -> None:
    """Tell of what happened last, such as the end of the last jobs, and let the calls end."""
    end = time.monotonic() + PATIENCE
    if hooks.next < float("inf"):
        _look(hooks, time.monotonic())
    while hooks.busy and time.monotonic() < end:
        _wait(wake, end)
        signals.heard()
        hooks.check_calls(time.monotonic())
    hooks.kill()


def _wait(wake: int, until: float) -> None:
    """Wait for a signal, or until then."""
    select.select([wake], [], [], max(0.0, min(until - time.monotonic(), 3600.0)))
