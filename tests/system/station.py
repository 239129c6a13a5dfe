"""Start one worker of the fault suite: ``python -m tests.system.station``, its options as JSON in HR_OPTIONS."""

from __future__ import annotations

import json
import logging
import os
import sys

from headrace.worker import supervisor
from headrace.worker.options import WorkerOptions, parse_queues
from headrace.worker.supervisor import Supervisor
from tests.system.chores import app


def main() -> int:
    """Be the supervisor; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(message)s")
    supervisor.SAME_SIGNAL = float(os.environ.get("HR_SAME_SIGNAL", supervisor.SAME_SIGNAL))
    given = json.loads(os.environ.get("HR_OPTIONS", "{}"))
    given["queues"] = parse_queues(given.pop("queues", "default"))
    return Supervisor(app, WorkerOptions(**given)).run()


if __name__ == "__main__":
    sys.exit(main())
