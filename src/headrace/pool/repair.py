"""Repairs what an exception raised asynchronously in a caller's thread left half done. Runs in the watch.

Callers' threads add and withdraw their own calls, and no more. So the lines and what is booked are true; what may be
wrong are the counts, and a member that was not told what is booked for it. To tell it again does no harm.
"""

from __future__ import annotations

from collections import Counter

from headrace.pool.scheduler import Scheduler


def repair(scheduler: Scheduler) -> None:
    """Cost: O(members and waiting calls), once for each exception that hit a verb."""
    with scheduler.lock:
        _recount(scheduler)
        members = [(m, None if m.away else m.running) for m in scheduler.members]
    for member, booked in members:
        scheduler.go_on(member, booked)
        if member.leaving and not (member.running or member.urgent):
            member.body.leave()


def _recount(scheduler: Scheduler) -> None:
    lines, members = scheduler.lines, scheduler.members
    waiting = [call for line in (lines.central, *(member.inbox for member in members)) for call in line]
    lines.waiting = len(waiting)
    running = (member.running for member in members)
    keys = Counter(call.key for call in (*waiting, *running) if call is not None and call.key is not None)
    for key, home in [*lines.homes.items()]:
        home.calls = keys[key]
        if not home.calls:
            del lines.homes[key]
    for member in members:
        scheduler.weigh_anew(member)
