"""The files of an application, and which of them have changed: what ``headrace worker --reload`` watches. It reads the
times of all files again and again, which needs no library and works on every mount.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Seconds between two scans, and for how long changes must rest: editors write a file in several steps.
PAUSE, REST = 0.25, 0.1
# A scan takes one part in this many of a core at most.
SHARE = 20
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceFiles:
    """The files of an application: those that a worker named, and each ``.py`` below the directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._named = set[str]()
        self._seen = self._scan()
        self._changed = set[str]()
        self.next = 0.0

    def add(self, files: Iterable[str]) -> None:
        new = set(files) - self._named
        self._named |= new
        self._seen |= {path: stamp for path in new - self._seen.keys() if (stamp := _stamp(path))}

    def changes(self) -> list[str]:
        """Files that were written, made or removed since the last call."""
        now, old = self._scan(), self._seen
        self._seen = now
        return sorted(path for path in now.keys() | old.keys() if now.get(path) != old.get(path))

    def rested(self, now: float) -> str:
        """The names of changed files, once none changes any more; empty: there are none yet."""
        if now < self.next:
            return ""
        began = time.perf_counter()
        changes = self.changes()
        names = [os.path.relpath(path, self._directory) for path in sorted(self._changed)]
        self._changed = {*self._changed, *changes} if changes else set[str]()
        pause = REST if self._changed else PAUSE
        self.next = now + max(pause, SHARE * (time.perf_counter() - began))
        return "" if changes else ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _scan(self) -> dict[str, tuple[int, int]]:
        paths = (*self._named, *_python_files(self._directory))
        return {path: stamp for path in paths if (stamp := _stamp(path))}


def _stamp(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        facts = os.stat(path)  # noqa: PTH116 - thousands of these four times a second
        return facts.st_mtime_ns, facts.st_size
    return None


def _python_files(directory: str) -> Iterator[str]:
    for place, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not _is_skipped(place, name)]
        yield from (f"{place}/{name}" for name in files if name.endswith(".py"))


def _is_skipped(place: str, name: str) -> bool:
    # The last one is an environment of installed packages, whatever its name.
    return name.startswith(".") or name in _SKIPPED or Path(place, name, "pyvenv.cfg").exists()


def application_files(modules: Iterable[Any]) -> list[str]:
    installed = {"site-packages", "dist-packages", "lib-dynload"}
    library = Path(os.__file__).parent
    files = {Path(module.__file__) for module in modules if isinstance(getattr(module, "__file__", None), str)}
    return sorted(str(path) for path in files if not installed & {*path.parts} and library not in path.parents)
