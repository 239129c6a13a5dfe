"""What a pool says of itself: frozen records. Counts and clocks are read at one moment; nobody is disturbed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

from headrace.clock import monotonic
from headrace.pool.pool_options import PoolOptions
from headrace.pool.scheduler import Scheduler
from headrace.pool.state import Member


class MemberStats(msgspec.Struct, frozen=True):
    """One member.

    Attributes:
        id: its number; it keeps it over restarts.
        state: ``idle``, ``busy``, ``away`` (starting, or waiting to be restarted) or ``leaving`` (being removed).
        waiting: calls that wait for this member.
        done: calls that it ended.
        restarts: how often it was replaced.
        pid: its process; that of the pool for threads.
        memory: resident bytes of its process; None for threads, and where the system does not tell.
        call: the function that it runs, or empty.
        where: file, line and function that a thread is at; empty for processes and idle members.
        seconds: how long the call has run.
        reason: what ended it last, or empty.
    """

    id: int
    state: Literal["idle", "busy", "away", "leaving"]
    waiting: int
    done: int
    restarts: int
    pid: int
    memory: int | None
    call: str
    where: str
    seconds: float
    reason: str


class PoolStats(msgspec.Struct, frozen=True):
    """A pool.

    Attributes:
        name, kind, strategy, queue: as it was made.
        size: members that it should have.
        waiting: calls that wait, at members and centrally; expired and cancelled ones are not among them.
        central: those of them that wait for whoever is free.
        backlog: how many may wait; None without a bound.
        oldest: seconds that the oldest central call has waited; 0 when none waits.
        done: calls that ended.
        broken: why calls are refused at the moment, or empty.
        members: one record each; removed ones that still work are included.
    """

    name: str
    kind: str
    strategy: str
    queue: str
    size: int
    waiting: int
    central: int
    backlog: int | None
    oldest: float
    done: int
    broken: str
    members: tuple[MemberStats, ...]


def census(name: str, options: PoolOptions, scheduler: Scheduler) -> PoolStats:
    """The statistics of a pool. Cost: O(members), and for processes one small file read each."""
    now = monotonic()
    with scheduler.lock:
        members = list(scheduler.members)
        size, waiting, central = scheduler.snapshot.size, scheduler.lines.waiting, len(scheduler.lines.central)
        done = scheduler.retired + sum(member.done for member in members)
        oldest = max(0.0, now - next(iter(scheduler.lines.central)).born) if scheduler.lines.central else 0.0
    chosen = options.strategy if isinstance(options.strategy, str) else getattr(options.strategy, "__name__", "")
    return PoolStats(
        name=name,
        kind=options.kind,
        strategy=chosen,
        queue=options.queue,
        size=size,
        waiting=waiting,
        central=central,
        backlog=options.backlog,
        oldest=oldest,
        done=done,
        broken=scheduler.broken,
        members=tuple(_member(member, options.kind, now) for member in members),
    )


def _member(member: Member, kind: str, now: float) -> MemberStats:
    # One reference: what runs may end between two looks at it.
    call, pid = member.running, member.body.pid
    busy = call is not None
    return MemberStats(
        id=member.id,
        state=_state(member, busy=busy),
        waiting=len(member.inbox) + len(member.urgent),
        done=member.done,
        restarts=member.restarts,
        pid=pid,
        memory=_memory(pid) if kind == "process" else None,
        call=call.title if call is not None else "",
        where=member.body.where() if busy else "",
        seconds=max(0.0, now - member.since) if busy else 0.0,
        reason=member.reason,
    )


def _state(member: Member, *, busy: bool) -> Literal["idle", "busy", "away", "leaving"]:
    if member.leaving:
        return "leaving"
    if member.away:
        return "away"
    return "busy" if busy else "idle"


def _memory(pid: int) -> int | None:
    """Resident bytes of a process."""
    if not sys.platform.startswith("linux") or not pid:
        return None
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        # It has just died: the statistics of the others are wanted all the same.
        return None
