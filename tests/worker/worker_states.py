"""What the parts of a dispatcher's core have in common, for tests of one part."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace.protocol.keys import keys_of
from headrace.settings import Settings
from headrace.worker.dispatcher.worker_state import WorkerState
from headrace.worker.worker_options import WorkerOptions


class Middling(Random):
    """Dice that always show one half."""

    def random(self) -> float:
        return 0.5


def worker_state(tasks: Any = None, options: WorkerOptions | None = None, **settings: Any) -> WorkerState:
    """A worker that nobody has registered."""
    return WorkerState(
        keys_of("hr"), Settings(**settings), tasks or {}, options or WorkerOptions(), "here:1", 2, Middling(),
        lambda handle: (handle.pid, 0),
    )  # fmt: skip
