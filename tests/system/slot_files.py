"""How many jobs of a limit run at once, as the kernel counts it: each holds a lock on one of so many files while it runs.

A lock ends with its process, however that dies, so no record of ours decides what runs. A process that is being killed
still has its locks for a moment after its sockets are closed, from which its worker learns of the end; it does not count.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

# In the ninth field of /proc/<pid>/stat: the process is on its way out.
_EXITING = 0x4


def _lives(pid: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & _EXITING


def take(directory: Path, gate: str, most: int) -> int | None:
    """A descriptor that holds one of the slots; None: all are held by processes that live."""
    files = [os.open(directory / f"{gate}.{n}", os.O_RDWR | os.O_CREAT, 0o600) for n in range(most)]
    # A holder that is gone has let go by the next look.
    while True:
        for file in files:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
            for other in files:
                if other != file:
                    os.close(other)
            return file
        holders = [os.pread(file, 20, 0).decode() for file in files]
        if all(pid and _lives(pid) for pid in holders):
            for file in files:
                os.close(file)
            return None
