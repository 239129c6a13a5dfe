"""One worker of the fault suite, in a process that ``processes.py`` forks; its options are JSON in HR_OPTIONS.

While the file HR_FULL exists, it cannot be forked.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

from headrace.worker import supervisor
from headrace.worker.child_process import Terminal
from headrace.worker.dispatcher import core, job_stops, remote_control
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.supervisor import Supervisor
from headrace.worker.worker_options import WorkerOptions, parse_queues
from tests.system.chores import app


def refuse_forks(full: Path) -> None:
    """As a system without room for another process does, while this file exists."""
    real = os.fork

    def fork() -> int:
        if full.exists():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real()

    os.fork = fork


def main() -> int:
    """Be the supervisor; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    supervisor.SAME_SIGNAL = float(os.environ.get("HR_SAME_SIGNAL", supervisor.SAME_SIGNAL))
    supervisor.LAST_SILENCE = float(os.environ.get("HR_LAST_SILENCE", supervisor.LAST_SILENCE))
    job_stops.SHOW = float(os.environ.get("HR_SHOW", job_stops.SHOW))
    remote_control.WAIT = float(os.environ.get("HR_STACKS_WAIT", remote_control.WAIT))
    core.CLEAN_UP = float(os.environ.get("HR_CLEAN_UP", core.CLEAN_UP))
    given = json.loads(os.environ.get("HR_OPTIONS", "{}"))
    refuse_forks(Path(os.environ.get("HR_FULL", os.devnull + "/none")))
    given["queues"] = parse_queues(given.pop("queues", "default"))
    terminal = Terminal(present=False, ignored=False)
    return Supervisor(app, WorkerOptions(**given), None, None, HealthStamps(), terminal).run()
