"""What a worker says of its runners with its heartbeat: what each runs, since when, what it holds, and how it fares.

Owns the form of that text, which the store keeps in the incarnation's record: bounded, and made a few times a minute,
so that a job pays nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headrace.protocol.overviews import MOST_RUNNERS, RunnerFacts
from headrace.worker.dispatcher.runner_handle import Probe, RunnerHandle

_PAGE = os.sysconf("SC_PAGE_SIZE")


def probe(handle: RunnerHandle) -> tuple[int, int]:
    """The process that runs a runner's jobs, and its resident bytes; 0 where they are unknown.

    The process is the runner's own, or the child that a fork server has now. The bytes are whole MiB, so that a runner
    that idles says nothing new.
    """
    pid = handle.pid
    try:
        if handle.is_fork_server:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()
            pid = int(children[0]) if children else pid
        return pid, int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE >> 20 << 20
    except (OSError, ValueError, IndexError):
        return pid, 0


def status(handles: Iterable[RunnerHandle], ahead_of_us: float, look: Probe = probe, shown: str = "") -> str:
    """The runners as JSON, at most ``MOST_RUNNERS``.

    Args:
        ahead_of_us: microseconds that the server's clock is ahead of our monotonic one.
        look: finds out what is not known here.
        shown: a job that is shown even if its runner began others before it.
    """
    rows = [_row(handle, ahead_of_us, look, shown) for handle in sorted(handles, key=_place)[:MOST_RUNNERS]]
    return msgspec.json.encode(rows).decode()


def _place(handle: RunnerHandle) -> tuple[str, int, int]:
    return handle.kind, handle.place.id if handle.place else MOST_RUNNERS, handle.number


def _row(handle: RunnerHandle, ahead_of_us: float, look: Probe, shown: str) -> RunnerFacts:
    place, (pid, memory) = handle.place, look(handle)
    first = next(iter(handle.starts.values()), None)
    if shown and not handle.serial:
        first = next((start for start in handle.starts.values() if start.claim.id == shown), first)
    # What runs one at a time began the first when it ended the one before; the others began theirs when they got them.
    began = ahead_of_us + handle.progress * 1e6 if handle.serial else float(first.claim.token if first else 0)
    stopped = first if first and (first.limited or first.told) else None
    return RunnerFacts(
        kind=handle.kind,
        place=place.id if place else -1,
        pid=pid,
        job=first.claim.id if first else "",
        task=first.claim.task if first else "",
        since=round(began) if first else 0,
        soft=round(ahead_of_us + stopped.limited_at * 1e6) if stopped and stopped.limited else 0,
        kill=round(ahead_of_us + stopped.kill_at * 1e6) if stopped and stopped.kill_at else 0,
        holds=len(handle.starts),
        waiting=len(place.line) if place else 0,
        done=handle.done,
        memory=memory,
        replaced=place.replaced if place else 0,
        reason=place.reason if place else "",
    )
