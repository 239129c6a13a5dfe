"""Reads what the jobs of ``bench.app`` wrote down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True, slots=True)
class Entry:
    """One start of one job.

    Attributes:
        kind: what the job called itself.
        pid: the process that ran it.
        started: nanoseconds, on the machine's monotonic clock.
        ended: likewise; equal to ``started`` where the job only told its start.
    """

    kind: str
    pid: int
    started: int
    ended: int


@contextmanager
def ledger() -> Iterator[Path]:
    """An empty ledger for the length of the block."""
    with TemporaryDirectory(prefix="hb-") as directory:
        path = Path(directory) / "ledger"
        path.touch()
        yield path


def entries(path: Path) -> list[Entry]:
    """All lines so far, in the order in which they were written."""
    found: list[Entry] = []
    for line in path.read_text().splitlines():
        kind, pid, started, *ended = line.split()
        found.append(Entry(kind, int(pid), int(started), int(ended[0]) if ended else int(started)))
    return found
