"""Why a job waits: one read of its place in its queue and of the live workers that may run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.model.job import moment, number
from headrace.protocol.keys import Keys
from headrace.protocol.operations import WorkerFacts
from headrace.protocol.script import Call, load

# Workers that one read looks at.
MOST_WORKERS = 100


class Candidate(msgspec.Struct, frozen=True):
    """A live worker, as far as one job is concerned.

    Attributes:
        place: its ``host:pid``.
        queues: that it serves.
        kind: the job's task in this worker; empty: it does not know the task.
        size: jobs of this kind that it runs at once.
        held: jobs of this kind that it holds; where it has runners of several kinds, at its last heartbeat.
    """

    place: str
    queues: tuple[str, ...]
    kind: str = ""
    size: int = 0
    held: int = 0

    @property
    def busy(self) -> bool:
        """Whether none of its runners was free."""
        return self.held >= self.size


@dataclass(frozen=True, slots=True)
class Why:
    """What is known of a job that has not ended. Times in microseconds of server time, 0 where there is none.

    Attributes:
        now: server time.
        state: empty when no readable record is stored.
        place: the worker that runs it, empty when none does.
        token: when its last start was claimed.
        due: when a scheduled job becomes ready.
        ahead: jobs before it in its queue, if it is ready.
        paused, until: whether its queue is paused, and when that ends by itself.
        live: how many workers live.
        workers: the first ``MOST_WORKERS`` of them.
    """

    now: int
    state: str
    queue: str
    task: str
    place: str
    token: int
    due: int
    ahead: int
    paused: bool
    until: int
    live: int
    workers: tuple[Candidate, ...]


def _candidate(row: list[Any]) -> Candidate:
    place, queues, kind, sizes, crew = (value.decode("utf-8", "replace") for value in row[:5])
    worker = WorkerFacts(place, 0, row[5], {"queues": queues, "sizes": sizes, "crew": crew or "[]"})
    # A heartbeat may be some seconds old, the store's count is not, but tells nothing of kinds.
    told = sum(runner.holds for runner in worker.runners if runner.kind == kind)
    held = worker.running if len(worker.sizes) == 1 else told
    return Candidate(place, worker.queues, kind, worker.sizes.get(kind, 0), held)


def _why(reply: Any) -> Why:
    now, state, queue, task, place, token, due, ahead, paused, until, live, workers = reply
    words = [value.decode("utf-8", "replace") for value in (state, queue, task, place)]
    times = (number(token), moment(due), ahead, bool(paused), moment(until), live)
    return Why(now, words[0], words[1], words[2], words[3], *times, tuple(map(_candidate, workers)))


def why(keys: Keys, id: str, now: int = 0) -> Call[Why]:
    """What a job waits for. Changes nothing.

    Cost: one round trip, O(log n) and a few commands for each of at most ``MOST_WORKERS`` live workers.
    """
    return load("why").bind(keys, _why, now=now, id=id, limit=MOST_WORKERS)
