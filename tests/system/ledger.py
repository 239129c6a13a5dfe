"""What jobs did, written down outside of Headrace: a line for every start and every end of a job's code.

Owns one file. The writing side runs inside jobs and must not depend on anything that a fault may take away: it opens
the file for each line, in append mode, so that lines of many processes never mix and none is lost by a kill.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from headrace import current_job

VARIABLE = "HR_LEDGER"


def write(mark: str) -> None:
    """Add a line for the job that runs here; one ``write`` call, so it is there whole or not at all."""
    job = current_job()
    line = f"{mark} {job.id} {job.token} {job.attempt} {os.getpid()} {time.monotonic_ns()}\n".encode()
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


@dataclass(frozen=True)
class Line:
    """One start (``S``), end (``E``) or a word of the job's own, at a time that all processes of the machine share."""

    mark: str
    id: str
    token: int
    attempt: int
    pid: int
    at: int


class Ledger:
    """The reading side, for tests."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, mark: str = "", id: str = "") -> list[Line]:
        """In the order of writing."""
        if not self.path.exists():
            return []
        found: list[Line] = []
        # A line across the border of a page may be seen when half of it is there: what has no end yet comes later.
        for text in self.path.read_text().rpartition("\n")[0].splitlines():
            written, whose, *numbers = text.split()
            if (not mark or written == mark) and (not id or whose == id):
                found.append(Line(written, whose, *map(int, numbers)))
        return found

    def starts(self, id: str = "") -> list[Line]:
        return self.lines("S", id)

    def ends(self, id: str = "") -> list[Line]:
        return self.lines("E", id)

    def counts(self, mark: str = "S") -> Counter[str]:
        """How many lines of a mark each job has."""
        return Counter(line.id for line in self.lines(mark))

    def tokens_grow(self) -> bool:
        """Whether each start of a job has a larger token than the one before."""
        last: dict[str, int] = {}
        for line in self.starts():
            if line.token <= last.get(line.id, 0):
                return False
            last[line.id] = line.token
        return True
