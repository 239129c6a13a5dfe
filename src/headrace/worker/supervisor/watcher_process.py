"""The process that calls hooks and looks at alarms, where the application declares any."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from headrace.worker.supervisor.side_processes import SideProcess

if TYPE_CHECKING:
    from headrace.app import Headrace


def watchers(app: Headrace) -> list[SideProcess]:
    """The process, or none."""
    if not app.hooks.declared and not app.alarms.declared:
        return []
    return [SideProcess("watcher", _main, stop_by=signal.SIGTERM)]


def _main(app: Headrace) -> None:
    from headrace.worker.watcher.watcher_loop import watch

    watch(app)
