"""What the supervisor makes once for all of its children."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from headrace.worker.channel import decoder
from headrace.worker.forking.process_ties import prctl
from headrace.worker.messages import FromRunner, FromSupervisor, ToRunner, ToSupervisor

if TYPE_CHECKING:
    from headrace.app import Headrace


def make_once(app: Headrace) -> None:
    """What each child would make for itself otherwise."""
    for reads in (ToRunner, FromRunner, ToSupervisor, FromSupervisor):
        decoder(reads)
    prctl()
    for task in app.tasks.values():
        if task.kind == "fork":
            task.prepare()


def pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends of a pipe, for reading and for writing, which the stack closes."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends
