"""A worker whose parent is the test: ``headrace worker --reload`` in a process that a nursery forked."""

from __future__ import annotations

import os
import socket

from headrace.worker.reload_parent import VARIABLE
from tests import forked_worker

PARENT = "HR_PARENT"
"""Names the Unix socket at which the test listens."""


def main() -> int:
    """Be the worker, with its link to the test; the exit code."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ.pop(PARENT))
    os.environ[VARIABLE] = f"{link.detach()}:{os.getppid()}-0:1"
    return forked_worker.main()
