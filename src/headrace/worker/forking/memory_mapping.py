"""How the kernel maps the memory of a process that is forked often. Linux only; where it refuses, nothing is lost.

A fork copies a table with an entry for each page (4 kB), and the end of the child takes that table apart: both cost
more than most jobs do. Here entries become fewer.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_HUGE = Path("/sys/kernel/mm/transparent_hugepage")
_FIELDS = frozenset((b"Rss:", b"Shared_Clean:", b"Shared_Dirty:", b"AnonHugePages:"))
# Since Linux 6.1.
_COLLAPSE = 25
# Bytes of a mapping that are not in use: with more, somebody reserved what may never be needed.
_SPARE = 4 << 20
# Bytes that others have as well, in small pages: to join them is to copy them.
_SHARED = 24 << 20
# Where a huge page has more bytes (arm64 with pages of 64 kB: 512 MB), to take one apart is no trifle any more.
_MOST = 32 << 20


class Mapping(NamedTuple):
    """A piece of the address space.

    Attributes:
        start, end: addresses.
        mode: as in ``rw-p``.
        file: whether it shows a file.
        sizes: further fields of ``smaps``, in bytes.
    """

    start: int
    end: int
    mode: bytes
    file: bool
    sizes: dict[bytes, int]

    @property
    def resident(self) -> int:
        """Bytes that are in memory."""
        return self.sizes[b"Rss:"]

    @property
    def shared(self) -> int:
        """Bytes that another process has as well, but for those in huge pages."""
        return max(0, self.sizes[b"Shared_Clean:"] + self.sizes[b"Shared_Dirty:"] - self.sizes[b"AnonHugePages:"])

    @property
    def joinable(self) -> bool:
        """Whether it is memory that is in use."""
        return self.mode == b"rw-p" and not self.file and self.end - self.start - self.resident <= _SPARE


def join() -> None:
    """Map memory that is in use in huge pages (mostly 2 MB), of which a fork copies one entry each.

    Children share them as they share others: what a child writes to is copied in the size of a usual page.
    """
    size, room = _huge(), _SHARED
    for one in _mappings() if size else ():
        start, end = -(-one.start // size) * size, one.end // size * size
        if start < end and one.joinable and one.shared <= room:
            room -= one.shared
            with contextlib.suppress(OSError, AttributeError):
                _madvise()(start, end - start, _COLLAPSE)


def _mappings() -> Iterator[Mapping]:
    """Of this process; none where the system does not tell."""
    try:
        # The name of a file may be anything: bytes, and nothing but line feeds between lines.
        lines = Path("/proc/self/smaps").read_bytes().split(b"\n")
    except OSError:
        return
    head, sizes = list[bytes](), dict[bytes, int]()
    for words in map(bytes.split, lines):
        if words and words[0] in _FIELDS:
            sizes[words[0]] = int(words[1]) << 10
        elif words and not words[0].endswith(b":"):
            head, sizes = words, {}
        elif words and words[0] == b"VmFlags:":
            start, _, end = head[0].partition(b"-")
            yield Mapping(int(start, 16), int(end, 16), head[1], head[4] != b"0", sizes)


@cache
def _huge() -> int:
    """Bytes of a huge page; 0 where there are none, or none are wanted."""
    try:
        size = int((_HUGE / "hpage_pmd_size").read_text())
        return size if size <= _MOST and "[never]" not in (_HUGE / "enabled").read_text() else 0
    except (OSError, ValueError):
        return 0


@cache
def _madvise() -> Callable[[int, int, int], int]:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
