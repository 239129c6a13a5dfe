"""What a worker says of its runners with its heartbeat: what each runs, since when, what it holds, and how it fares.

Owns the form of that text, which the store keeps in the incarnation's record: bounded, and made a few times a minute,
so that a job pays nothing for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from headrace.protocol.admin import MOST_RUNNERS, RunnerFacts
from headrace.worker.seat import Seat

_PAGE = os.sysconf("SC_PAGE_SIZE")


def status(seats: Iterable[Seat], ahead_of_us: float) -> str:
    """The runners as JSON, at most ``MOST_RUNNERS``.

    Args:
        ahead_of_us: microseconds that the server's clock is ahead of our monotonic one.
    """
    rows = [_row(seat, ahead_of_us) for seat in sorted(seats, key=_place)[:MOST_RUNNERS]]
    return msgspec.json.encode(rows).decode()


def _place(seat: Seat) -> tuple[str, int, int]:
    return seat.kind, seat.place.id if seat.place else MOST_RUNNERS, seat.number


def _row(seat: Seat, ahead_of_us: float) -> RunnerFacts:
    place, pid = seat.place, seat.process
    first = next(iter(seat.starts.values()), None)
    # What runs one at a time began the first when it ended the one before; the others began theirs when they got them.
    began = ahead_of_us + seat.progress * 1e6 if seat.counted else float(first.claim.token if first else 0)
    return RunnerFacts(
        kind=seat.kind,
        place=place.id if place else -1,
        pid=pid,
        job=first.claim.id if first else "",
        task=first.claim.task if first else "",
        since=round(began) if first else 0,
        holds=len(seat.starts),
        waiting=len(place.line) if place else 0,
        done=seat.done,
        memory=_memory(pid),
        replaced=place.replaced if place else 0,
        reason=place.reason if place else "",
    )


def _memory(pid: int) -> int:
    """Resident bytes of a process in whole MiB, so that a runner that idles says nothing new; 0: unknown here."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE >> 20 << 20
    except (OSError, ValueError, IndexError):
        return 0
