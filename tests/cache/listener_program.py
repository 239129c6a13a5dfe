"""A program that a nursery forks, and that is told by lines what to do: a test tells it, and reads what it answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.nursery import nursery_of


class Told:
    """Runs the ``main`` of a module, whose first argument is the path of what it is told.

    Attributes:
        process: it.
    """

    def __init__(self, module: str, path: Path, *arguments: object) -> None:
        os.mkfifo(path)
        # Open at both ends: to open one waits for the other, which a program that fails never opens.
        self._told = os.fdopen(os.open(path, os.O_RDWR), "w", encoding="utf-8")
        self.process = nursery_of(os.environ).start(
            module, os.environ, str(path), *map(str, arguments), stdout=subprocess.PIPE, stderr=2
        )

    def tell(self, word: str) -> None:
        self._told.write(f"{word}\n")
        self._told.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended early"
        return line.strip()

    def end(self, *, kill: bool = False) -> None:
        """It has no more to hear of, and ends; with ``kill``, whatever it does."""
        self._told.close()
        if kill:
            self.process.kill()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()
