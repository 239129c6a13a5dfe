"""Counts a pool: what it and each member does at one moment. Reads; disturbs nobody."""

from __future__ import annotations

from time import monotonic
from typing import Literal

from headrace.pool.pool_options import PoolOptions
from headrace.pool.pool_stats import MemberStats, PoolStats, memory
from headrace.pool.scheduler import Scheduler
from headrace.pool.state import Member


def census(name: str, options: PoolOptions, scheduler: Scheduler) -> PoolStats:
    """The statistics of a pool. Cost: O(members), and for processes one small file read each."""
    now = monotonic()
    with scheduler.lock:
        members = list(scheduler.members)
        size, waiting, central = scheduler.snapshot.size, scheduler.lines.waiting, len(scheduler.lines.central)
        done = scheduler.retired + sum(member.done for member in members)
        oldest = now - next(iter(scheduler.lines.central)).born if scheduler.lines.central else 0.0
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
        memory=memory(pid) if kind == "process" else None,
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
