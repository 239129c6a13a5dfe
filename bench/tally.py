"""Counts the jobs that really ran, without asking the server: a drain that only moved jobs aside is no drain.

Cells of memory in a file that all processes of a worker share, one for each process: the first addition of a fresh
process takes a page fault, amid which others would add to the same number. One addition, about a tenth of a
microsecond, the same for every system. Standard library only: the peers import it too.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_CELLS = 4096
_SIZE = 8 * _CELLS
#: Threads may lose an addition to one another; more than this share missing means that jobs did not run.
_LOST = 0.01


def _open(path: str) -> memoryview[int]:
    with Path(path).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("Q")


_RAN = _open(os.environ["BENCH_TALLY"]) if "BENCH_TALLY" in os.environ else memoryview(bytearray(_SIZE)).cast("Q")


def tick() -> None:
    """Called by every no-op job."""
    _RAN[os.getpid() % _CELLS] += 1


def create(path: Path) -> None:
    path.write_bytes(bytes(_SIZE))


def ran(path: Path) -> int:
    """How many jobs have run."""
    return sum(_open(str(path)))


def miscount(path: Path, jobs: int) -> str | None:
    """What is wrong with the number of runs of ``jobs`` jobs, each of which should have run once; None if nothing."""
    count = ran(path)
    if count > jobs or count < jobs * (1 - _LOST):
        return f"{jobs} jobs left the queue, and there were {count} runs"
    return None
