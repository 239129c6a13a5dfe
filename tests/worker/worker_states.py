"""What the parts of a dispatcher's core have in common, for tests of one part."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace.protocol.keys import keys_of
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.worker.dispatcher.worker_state import Desk, Worker
from headrace.worker.worker_options import WorkerOptions


class Middling(Random):
    """Random numbers that are always one half."""

    def random(self) -> float:
        return 0.5


def worker_state(tasks: Any = None, options: WorkerOptions | None = None, **settings: Any) -> Worker:
    """A worker that is not registered anywhere."""
    return Worker(
        settings=Settings(**settings), tasks=tasks or {}, options=options or WorkerOptions(), place="here:1", pid=2,
        random=Middling(), probe=lambda handle: (handle.pid, 0),
    )  # fmt: skip


def desk_of(worker: Worker) -> Desk:
    return Desk(worker, keys_of("hr"), {})


def arguments(call: Call[Any]) -> dict[str, Any]:
    """What a call sends, by the names of the script's header."""
    names = [one.name for one in call.script.header.args]
    return dict(zip(names, call.args[-len(names) :], strict=True))
