"""What people ask: overview, pages, pause, resume, purge, logs, and the store's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.model.job import moment, priority_of, ready_at
from headrace.model.job_record import Finder, Record
from headrace.model.server_facts import ServerFacts, server_facts
from headrace.protocol.keys import Keys
from headrace.protocol.produce import LISTED_ARGS, pairs, records_of
from headrace.protocol.script import Call, load


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue.

    Attributes:
        size: its ready jobs.
        oldest: since when its next job is ready, microseconds, whatever its priority; 0: it is empty, or all its jobs
            wait behind limits.
        until: when its pause ends by itself, microseconds; 0: it is not paused, or until somebody resumes it.
        note: why it is paused, as the person said who did it.
    """

    name: str
    size: int
    paused: bool
    oldest: int
    until: int
    note: str = ""

    def waited(self, now: int) -> float | None:
        """Seconds that its next job has waited; None: no job may be the next."""
        return max(0, now - self.oldest) / 1e6 if self.oldest else None


# Runners of one worker that its heartbeat tells of.
MOST_RUNNERS = 64


class RunnerFacts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One runner of a worker, as its dispatcher saw it at its last heartbeat.

    Attributes:
        kind, place, pid: place: its number among those of its kind; -1: it leaves, or runs a suspect alone.
        job, task, since: what it runs, or the oldest of several, and when that began (microseconds); empty: it is idle.
        holds: jobs that it runs or was sent ahead.
        waiting: jobs that wait for it in the worker.
        done: jobs that this process ended.
        memory: resident bytes, in whole MiB; 0: unknown on this system.
        replaced, reason: how often the process at its place was replaced, and why the last time.
    """

    kind: str
    place: int = 0
    pid: int = 0
    job: str = ""
    task: str = ""
    since: int = 0
    holds: int = 0
    waiting: int = 0
    done: int = 0
    memory: int = 0
    replaced: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A dispatcher incarnation: end of its lease (microseconds), running jobs, and what it says of itself."""

    owner: str
    lease: int
    running: int
    facts: dict[str, str]

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that it serves, those that it prefers first."""
        return tuple(filter(None, self.facts.get("queues", "").split(",")))

    @property
    def sizes(self) -> dict[str, int]:
        """Jobs that it runs at once, by kind of runner."""
        pairs = (part.partition(":") for part in self.facts.get("sizes", "").split())
        return {kind: int(count) for kind, _, count in pairs if count.isdecimal()}

    @property
    def runners(self) -> list[RunnerFacts]:
        """Its runners as of its last heartbeat; at most ``MOST_RUNNERS``."""
        try:
            return msgspec.json.decode(self.facts.get("runner_facts", "[]"), type=list[RunnerFacts])
        except msgspec.MsgspecError:
            return []


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts by state, queues, workers, parked jobs by task, bytes of kept results; ``now`` is server time."""

    now: int
    states: dict[str, int]
    queues: list[QueueFacts]
    workers: list[WorkerFacts]
    parked: dict[str, int]
    bytes: int

    @property
    def live(self) -> list[WorkerFacts]:
        """Workers whose lease holds."""
        return [worker for worker in self.workers if worker.lease > self.now]

    @property
    def served(self) -> Counter[str]:
        """How many live workers serve each queue, by its name."""
        return Counter(name for one in self.live for name in set(one.queues))

    @property
    def names(self) -> list[str]:
        """Every queue that holds work, held some lately, is paused, or is served by a live worker."""
        return sorted({queue.name for queue in self.queues} | set(self.served))


def _overview(reply: Any) -> Overview:
    now, states, lines, workers, parked, size = reply
    queues = [
        QueueFacts(_text(name), count, bool(paused), _since(score, priority), moment(until), _text(note))
        for name, count, paused, score, priority, until, note in lines
    ]
    incarnations = [
        WorkerFacts(_text(owner), moment(lease), running, {name: _text(value) for name, value in pairs(facts).items()})
        for owner, lease, running, facts in workers
    ]
    return Overview(
        now,
        {_text(states[n]): states[n + 1] for n in range(0, len(states), 2)},
        sorted(queues, key=lambda queue: queue.name),
        incarnations,
        {_text(task): count for task, count in parked},
        size,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _since(score: bytes | int, priority: bytes | int) -> int:
    return ready_at(moment(score), priority_of(priority))


def overview(keys: Keys, now: int = 0, *, details: bool = True) -> Call[Overview]:
    """How much is where.

    Tells of each queue that holds ready jobs, is paused or is named by a worker, and of 500 others that held work
    once. A look at a store that knows more queues takes 10,000 of them, and forgets the idle ones.

    Args:
        details: with what workers say of their runners (up to 64 for each), and of their preloading.

    Cost: one round trip, O(live queues + workers + parked tasks), whatever the number of jobs and of past queues.
    """
    return load("overview").bind(keys, _overview, now=now, details=int(details))


@dataclass(frozen=True, slots=True)
class Page:
    """Part of an index: the size of all of it, ids with their scores, and what is stored of each, if that was asked."""

    count: int
    rows: list[tuple[str, int]]
    records: list[Record | None] = field(default_factory=list[Record | None])


def rows_of(flat: Sequence[bytes]) -> list[tuple[str, int]]:
    """A reply of ids and scores by turns, as pairs."""
    return [(flat[n].decode("utf-8", "replace"), moment(flat[n + 1])) for n in range(0, len(flat), 2)]


def slice_of(
    limit: int, after: tuple[int, str] | None, offset: int, desc: bool, since: int | None, until: int | None
) -> dict[str, Any]:
    """Which piece of an index is wanted, as the scripts that include ``slice`` take it."""
    return {
        "after": str(after[0]) if after else "",
        "member": after[1] if after else "",
        "offset": offset,
        "limit": limit,
        "desc": int(desc),
        "low": "-inf" if since is None else str(since),
        "high": "+inf" if until is None else str(until),
    }


def _most(values: bool | None) -> int:
    """How much a script tells of each job, as it takes that."""
    return -1 if values is None else 0 if values else LISTED_ARGS


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
    *,
    values: bool | None = None,
    finder: Finder | None = None,
) -> Call[Page]:
    """A piece of one structure, by score.

    Args:
        index: ``scheduled``, a final state, ``ready:<queue>``, ``parked:<task>``, ``chain:<key>``, ``claims:<owner>``.
        limit: at most 1000; 500 with records.
        after: score and id of the last row seen.
        since, until: inclusive bounds of the score, microseconds.
        values: with what is stored of each job; False: as lists show it, see :func:`headrace.protocol.produce.read`.
        finder: gives what reads its values; None: they are read plain.

    Cost: one round trip, O(log n + limit).
    """
    piece = slice_of(limit, after, offset, desc, since, until)

    def parsed(reply: Any) -> Page:
        return Page(reply[0], rows_of(reply[1]), records_of(reply[2], finder))

    return load("page").bind(keys, parsed, now=now, index=index, most=_most(values), **piece)


# Structures that one walk looks at.
WALK = 50


@dataclass(frozen=True, slots=True)
class WalkedPart:
    """Parts of several indexes: ids and scores of each that was looked at, and what is stored of each job, if asked.

    Behind each queue come the lanes in which its limited jobs wait, ``<queue>|...``, as indexes of their own.
    """

    rows: list[tuple[str, list[tuple[str, int]]]]
    records: list[Record | None]


def walk(
    keys: Keys,
    kind: str,
    names: Sequence[str],
    limit: int,
    after: tuple[int, str] | None = None,
    desc: bool = True,
    since: int | None = None,
    until: int | None = None,
    values: bool | None = None,
    finder: Finder | None = None,
) -> Call[WalkedPart]:
    """Jobs of several structures of one kind, one after the other, until there are ``limit``.

    Args:
        kind: ``ready``, ``parked`` or ``claims``.
        names: queues, tasks or owners, at most ``WALK``; the first may be a lane.
        limit: at most 1000; 500 with records.
        after: score and id of the last row seen of the first of them.
        since, until: inclusive bounds of the score, microseconds.
        values, finder: as of :func:`page`.

    Cost: one round trip, O(names log n + limit), and a command for each lane.
    """
    piece = slice_of(limit, after, 0, desc, since, until)
    del piece["offset"]

    def parsed(reply: Any) -> WalkedPart:
        parts = [(name.decode("utf-8", "surrogateescape"), rows_of(rows)) for name, rows in reply[0]]
        return WalkedPart(parts, records_of(reply[1], finder))

    return load("walk").bind(keys, parsed, kind=kind, names=list(names), most=_most(values), **piece)


def tell_stacks(keys: Keys, owner: str, text: str) -> Call[bytes]:
    """Keep for a minute what an incarnation's runners were doing. Cost: one round trip."""
    return load("stacks_tell").bind(keys, bytes, owner=owner, text=text)


def read_stacks(keys: Keys, owner: str) -> Call[bytes]:
    """What an incarnation told last of its runners' stacks, as JSON; empty: nothing of late. Cost: one round trip."""
    return load("stacks_read").bind(keys, bytes, owner=owner)


def pause(keys: Keys, queue: str, duration: int = 0, now: int = 0, note: str = "") -> Call[bool]:
    """Stop claims of a queue; False when it was paused already.

    Args:
        duration: microseconds after which it ends by itself, whatever end it had; 0: only ``resume`` ends it.
        note: why, for people.

    Cost: one round trip, O(workers) when it has an end.
    """
    return load("pause").bind(keys, bool, now=now, queue=queue, duration=duration, note=note)


def resume(keys: Keys, queue: str) -> Call[bool]:
    """Allow claims of a queue again; False when it was not paused. Cost: one round trip."""
    return load("resume").bind(keys, bool, queue=queue)


def resume_due(keys: Keys, limit: int, now: int = 0) -> Call[tuple[int, int, int]]:
    """Resume queues whose pause has come to its own end.

    Args:
        limit: at most 1000.

    Returns:
        how many, server time, and when the next pause ends (0: none does by itself); microseconds.

    Cost: one round trip, O(limit log n).
    """
    call = load("resume_due")
    return call.bind(keys, lambda reply: (reply[0], reply[1], moment(reply[2])), now=now, limit=limit)


def paused(keys: Keys) -> Call[list[str]]:
    """Names of the queues that are paused, in order. Cost: one round trip."""
    return load("paused").bind(keys, lambda reply: sorted(name.decode("utf-8", "replace") for name in reply))


def purge(keys: Keys, queue: str, limit: int = 1000, now: int = 0) -> Call[tuple[int, int]]:
    """Delete up to ``limit`` ready jobs of a queue; returns how many, and how many are left. Cost: one round trip."""
    return load("purge").bind(keys, lambda reply: (reply[0], reply[1]), now=now, queue=queue, limit=limit)


def command(keys: Keys, owner: str, word: str, now: int = 0) -> Call[str]:
    """Say a word to a live incarnation, which hears it at once.

    Returns:
        ``told``, ``silent`` (it lives, and is not connected just now) or ``gone``.

    Cost: one round trip.
    """
    return load("command").bind(keys, bytes.decode, now=now, owner=owner, word=word)


def logs(keys: Keys, id: str, limit: int = 1000) -> Call[list[str]]:
    """The last lines that a job logged. Cost: one round trip."""
    return load("logs").bind(
        keys, lambda reply: [line.decode("utf-8", "replace") for line in reply], id=id, limit=limit
    )


def server_info(keys: Keys) -> Call[ServerFacts | None]:
    """What the server says of itself; None where it does not tell us. Cost: one round trip."""
    return load("server_info").bind(keys, lambda reply: server_facts(reply) if reply else None)


@dataclass(frozen=True, slots=True)
class Greeting:
    """A store's layout, and whether it is on its way to another: between two, no program may touch it."""

    version: int
    moving: bool


def greet(keys: Keys, version: int) -> Call[Greeting]:
    """Compare layouts: the version that the store has; an empty store takes ours. Cost: one round trip."""
    return load("greet").bind(keys, lambda reply: Greeting(reply[0], bool(reply[1])), version=version)


# What was learned is kept so long (seconds), and so many lines of it.
KEPT, LINES = 30 * 86400, 500
# Lines of one call, and characters of each.
_AT_ONCE, _LONGEST = 200, 500


def learn(keys: Keys, lines: Sequence[str], now: int = 0) -> Call[None]:
    """Remember what jobs did again in each runner; see :mod:`headrace.worker.preload.apply`.

    Args:
        lines: those first that are to be tried first; the first 200 count, and 500 characters of each.

    Cost: one round trip, O(lines log n).
    """
    names = [line[:_LONGEST] for line in lines[:_AT_ONCE]]
    return load("learn").bind(keys, lambda _: None, now=now, names=names, keep=KEPT * 1_000_000, most=LINES)


def learned(keys: Keys, now: int = 0) -> Call[list[str]]:
    """What jobs did again in each runner, as it was given to :func:`learn`; at most 500 lines. Cost: one round trip."""
    return load("learned").bind(
        keys, lambda reply: [line.decode("utf-8", "replace") for line in reply], now=now, keep=KEPT * 1_000_000
    )
