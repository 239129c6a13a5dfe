"""What people ask: overview, pages, pause, resume, purge, logs, and the store's schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.keys import Keys
from headrace.protocol.produce import pairs
from headrace.script import Call, load


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue: its ready jobs, whether it is paused, and since when its next job is ready (microseconds, 0: empty)."""

    name: str
    size: int
    paused: bool
    oldest: int


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A dispatcher incarnation: end of its lease (microseconds), running jobs, and what it says of itself."""

    owner: str
    lease: int
    running: int
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts by state, queues, workers, parked jobs by task, bytes of kept results; ``now`` is server time."""

    now: int
    states: dict[str, int]
    queues: list[QueueFacts]
    workers: list[WorkerFacts]
    parked: dict[str, int]
    bytes: int


def _overview(reply: Any) -> Overview:
    now, states, lines, workers, parked, size = reply
    return Overview(
        now,
        {states[n].decode(): states[n + 1] for n in range(0, len(states), 2)},
        sorted(
            (
                QueueFacts(name.decode(), count, bool(paused), int(float(oldest)))
                for name, count, paused, oldest in lines
            ),
            key=lambda queue: queue.name,
        ),
        [
            WorkerFacts(
                owner.decode(),
                int(float(lease)),
                running,
                {field: value.decode("utf-8", "replace") for field, value in pairs(facts).items()},
            )
            for owner, lease, running, facts in workers
        ],
        {task.decode(): count for task, count in parked},
        size,
    )


def overview(keys: Keys, now: int = 0) -> Call[Overview]:
    """How much is where.

    Cost: one round trip, O(queues + workers + parked tasks), whatever the number of jobs.
    """
    return load("overview").bind(keys, _overview, now=now)


@dataclass(frozen=True, slots=True)
class Page:
    """Part of an index: ids with their scores, and the size of the whole index."""

    count: int
    rows: list[tuple[str, int]]


def _page(reply: Any) -> Page:
    count, flat = reply
    return Page(count, [(flat[n].decode(), int(float(flat[n + 1]))) for n in range(0, len(flat), 2)])


def page(
    keys: Keys,
    index: str,
    limit: int = 100,
    after: tuple[int, str] | None = None,
    offset: int = 0,
    desc: bool = True,
    since: int | None = None,
    until: int | None = None,
    now: int = 0,
) -> Call[Page]:
    """A piece of one structure, by score.

    Args:
        index: ``scheduled``, a final state, ``ready:<queue>``, ``parked:<task>`` or ``claims:<owner>``.
        limit: at most 1000.
        after: score and id of the last row seen.
        since, until: inclusive bounds of the score, microseconds.

    Cost: one round trip, O(log n + offset + limit).
    """
    return load("page").bind(
        keys,
        _page,
        now=now,
        index=index,
        after=str(after[0]) if after else "",
        member=after[1] if after else "",
        offset=offset,
        limit=limit,
        desc=int(desc),
        low="-inf" if since is None else str(since),
        high="+inf" if until is None else str(until),
    )


def pause(keys: Keys, queue: str) -> Call[bool]:
    """Stop claims of a queue; False when it was paused already. Cost: one round trip."""
    return load("pause").bind(keys, bool, queue=queue)


def resume(keys: Keys, queue: str) -> Call[bool]:
    """Allow claims of a queue again; False when it was not paused. Cost: one round trip."""
    return load("resume").bind(keys, bool, queue=queue)


def purge(keys: Keys, queue: str, limit: int = 1000, now: int = 0) -> Call[tuple[int, int]]:
    """Delete up to ``limit`` ready jobs of a queue; returns how many, and how many are left. Cost: one round trip."""
    return load("purge").bind(keys, lambda reply: (reply[0], reply[1]), now=now, queue=queue, limit=limit)


def logs(keys: Keys, id: str, limit: int = 1000) -> Call[list[str]]:
    """The last lines that a job logged. Cost: one round trip."""
    return load("logs").bind(
        keys, lambda reply: [line.decode("utf-8", "replace") for line in reply], id=id, limit=limit
    )


def greet(keys: Keys, version: int) -> Call[int]:
    """Compare layouts: the version that the store has; an empty store takes ours. Cost: one round trip."""
    return load("greet").bind(keys, int, version=version)
