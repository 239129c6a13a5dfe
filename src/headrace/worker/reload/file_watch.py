"""``headrace worker --reload``: new code replaces the old as soon as it is saved.

Owns the watch over files. It asks the file system for the times of all of them again and again, which needs no
library and works on every mount; its pause grows with what that costs, so that it never takes more than a twentieth
of a core.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Container, Iterable, Iterator

from headrace.worker.forking.standard_streams import log
from headrace.worker.reload.handover import Succession

PAUSE = 0.25
# Editors write a file in several steps, and people save several files: what changed must rest for this long.
REST = 0.1
SHARE = 20
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

Stamp = tuple[int, int]


class Sources:
    """The files of an application, and when they changed.

    Attributes:
        files: watched wherever they are; those below ``directory`` that end in ``.py`` are watched as well, since a
            module that could not be imported yet is in nobody's list.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files: set[str] = set()
        self.cost = 0.0
        self._seen = self._scan()

    def add(self, files: Iterable[str]) -> None:
        """Watch these too, from what they are now."""
        new = set(files) - self.files
        self.files |= new
        self._seen |= {path: stamp for path in new - self._seen.keys() if (stamp := _stamp(path))}

    def changes(self) -> list[str]:
        """Files that changed, came or went since this was last asked."""
        now, old = self._scan(), self._seen
        self._seen = now
        return sorted(path for path in now.keys() | old.keys() if now.get(path) != old.get(path))

    def _scan(self) -> dict[str, Stamp]:
        began = time.perf_counter()
        found = {path: stamp for path in self.files if (stamp := _stamp(path))}
        found.update(_below(self.directory))
        self.cost = time.perf_counter() - began
        return found


class Reload:
    """What the anchor of a worker in development does beside its duties.

    Attributes:
        final: exit codes of an image that no change of the code would help.
    """

    def __init__(self, succession: Succession, final: Container[int] = ()) -> None:
        self.final = final
        self._succession = succession
        self._sources = Sources(succession.launch.directory)
        succession.heard = self._sources.add
        self._changed: set[str] = set()
        self.next = 0.0
        succession.asked()

    @property
    def waits(self) -> bool:
        """Whether to go on although no image lives: the next change may bring one."""
        state = self._succession
        return not (state.stopping or state.over or state.code in self.final)

    def tick(self, now: float) -> None:
        """Look for changes, and start an image when the last of them has rested."""
        if now < self.next:
            return
        changes = self._sources.changes()
        self._changed.update(changes)
        if self._changed and not changes:
            log.info("%s changed", _few(sorted(self._changed), self._sources.directory), code="reload.changed")
            self._changed.clear()
            self._succession.supersede()
        pause = REST if self._changed else PAUSE
        self.next = now + max(pause, SHARE * self._sources.cost)


def _stamp(path: str) -> Stamp | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 - thousands of these four times a second
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _below(directory: str) -> Iterator[tuple[str, Stamp]]:
    waiting = [directory]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _SKIPPED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    # An environment of installed packages, whatever its name.
                    if not os.path.exists(f"{entry.path}/pyvenv.cfg"):  # noqa: PTH110
                        waiting.append(entry.path)
                elif entry.name.endswith(".py") and (stamp := _stamp(entry.path)):
                    yield entry.path, stamp


def _few(files: list[str], directory: str) -> str:
    names = [os.path.relpath(file, directory) if file.startswith(directory) else file for file in files]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
