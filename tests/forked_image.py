"""A later image of a worker whose predecessor is the test: ``headrace worker`` in a process that a nursery forked."""

from __future__ import annotations

import os
import socket

from headrace.worker.reload.image_launch import VARIABLE
from tests import forked_worker

PREDECESSOR = "HR_PREDECESSOR"
"""Names the Unix socket at which the test listens."""


def main() -> int:
    """Be the image, with its link to the test; the exit code."""
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ.pop(PREDECESSOR))
    os.environ[VARIABLE] = str(link.detach())
    return forked_worker.main()
