"""One call of a hook: a forked process of its own, so a hook may hang, raise, fork or die, and harms nothing else."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from typing import Any

from headrace.admin.event_hooks import EventHook
from headrace.app import Headrace
from headrace.model.activity import EventRecord
from headrace.worker.forking.child_process import fork_child, how, kill_group
from headrace.worker.forking.lifecycle_hooks import Hook, run_each
from headrace.worker.preload import warmup

log = logging.getLogger("headrace.worker")

# Seconds that a call may take, and that the application's exit hooks may take after it.
LONGEST, EXIT_HOOKS = 30.0, 5.0


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
        """End it if its time is over."""
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
    """Be the process; the exit code."""
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
        log.error("the event hook %s raised", hook.name, exc_info=error)
    run_each([*app.exit_hooks, *app.closers, logging.shutdown], EXIT_HOOKS, _failed)
    return code


def _failed(hook: Hook, error: BaseException, seconds: float) -> None:  # noqa: ARG001 - as run_each calls it
    log.error("the exit hook %r failed after a call of an event hook", hook, exc_info=error)
