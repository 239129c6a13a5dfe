"""How the kernel maps the memory of a process that is forked often. Linux only; where it refuses, nothing is lost.

A fork copies a table with an entry for each page (4 kB), and the end of the child takes that table apart: both cost
more than most jobs do. Here entries become fewer, or are made before they are missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_HUGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
# Since Linux 6.1.
_COLLAPSE = 25
# A file's mapping with fewer resident pages (bytes) is not worth a copy of its table.
_LARGE = 200 << 10
# Memory of which a smaller part is in use was reserved by somebody who may never need it.
_USED = 0.75


class Mapping(NamedTuple):
    """A piece of the address space.

    Attributes:
        start, end: addresses.
        mode: as in ``rw-p``.
        file: whether it shows a file.
        resident: bytes that are in memory.
    """

    start: int
    end: int
    mode: str
    file: bool
    resident: int


def join() -> None:
    """Map memory that is in use in huge pages (mostly 2 MB), of which a fork copies one entry each.

    Children share them as they share others: what a child writes to is copied in the size of a usual page.
    """
    size = _huge()
    for one in _mappings():
        start, end = -(-one.start // size) * size, one.end // size * size
        written = one.mode == "rw-p" and not one.file
        if written and start < end and one.resident >= _USED * (one.end - one.start):
            _madvise()(start, end - start, _COLLAPSE)


def share_code() -> None:
    """Let children find the interpreter's code in their page tables, instead of faulting for each piece of it.

    Linux copies the table of a file's mapping at a fork only if a page of it was written to. So one byte of each large
    mapping is written over by itself, which a process may do to its own code by this file, as debuggers do.
    """
    with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 - no path
        for one in _mappings():
            if one.file and one.mode in ("r--p", "r-xp") and one.resident >= _LARGE:
                os.pwrite(memory.fileno(), os.pread(memory.fileno(), 1, one.start), one.start)


def _mappings() -> Iterator[Mapping]:
    """Of this process; none where the system does not tell."""
    head: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                head = words
            elif words[0] == "Rss:":
                start, _, end = head[0].partition("-")
                yield Mapping(int(start, 16), int(end, 16), head[1], head[4] != "0", int(words[1]) << 10)


@cache
def _huge() -> int:
    """Bytes of a huge page; where there are none, more than any mapping has."""
    try:
        return int(_HUGE.read_text())
    except (OSError, ValueError):
        return 1 << 62


@cache
def _madvise() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
