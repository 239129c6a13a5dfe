"""Who the processes of a worker are and what each runs now, for people who ask: see ``headrace profile``.

Pure: a dispatcher's seats in, text out, and back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from headrace.worker.seat import Seat
from headrace.worker.status import Probe

# What a mail to a dispatcher begins with that asks for this; all other mail is the id of a job to cancel.
ASKED = "roster "


class Runner(msgspec.Struct, frozen=True):
    """A runner: its number with the dispatcher, kind, process, and the jobs whose code runs."""

    number: int
    kind: str
    pid: int
    jobs: list[str]


class Roster(msgspec.Struct, frozen=True):
    """A worker's processes at one moment.

    Attributes:
        word: what the one who asked gave, to know the answer by.
        dispatcher: its process.
    """

    word: str
    dispatcher: int
    runners: list[Runner]


def taken(word: str, seats: Iterable[Seat], look: Probe) -> Roster:
    """The roster of this dispatcher."""
    runners = [Runner(seat.number, seat.kind, look(seat)[0], _running(seat)) for seat in seats if not seat.gone]
    return Roster(word, os.getpid(), sorted(runners, key=lambda runner: runner.number))


def _running(seat: Seat) -> list[str]:
    ids = [start.claim.id for start in seat.starts.values()]
    # What was sent ahead waits behind the first.
    return ids[:1] if seat.counted else ids


def write(roster: Roster) -> str:
    return msgspec.json.encode(roster).decode()


def read(text: str) -> Roster | None:
    """What a worker told; None for nothing, or another version's."""
    try:
        return msgspec.json.decode(text, type=Roster)
    except msgspec.MsgspecError:
        return None
