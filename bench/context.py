"""What a benchmark is given: which systems to measure, how large, and how to start their programs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from bench.processes import ROOT, BenchError, Group, answer, running
from bench.servers import Server
from bench.systems import HEADRACE, PEERS, URL, System

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """One run of the benchmarks.

    Attributes:
        peers: measure the peers too.
        quick: a tenth of the load: proves that all runs; the figures are rough.
        say: shows one line of progress.
        minutes: how long a trial goes on whose workers are killed.
        only: words, one of which a system's name must hold; empty for all systems.
        failures: what could not be measured and why; benchmarks append, the command prints them.
    """

    peers: bool
    quick: bool
    say: Callable[[str], None]
    minutes: float = 0.0
    only: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)
    peers_python: Path = field(default=ROOT / ".venv-peers" / "bin" / "python")

    def scaled(self, count: int) -> int:
        return max(50, count // 10) if self.quick else count

    def systems(self) -> list[System]:
        """Headrace where it is importable, then the peers where they were asked for."""
        systems = [HEADRACE] if headrace_is_here() else []
        systems += [peer for peer in PEERS if self.peers]
        return [s for s in systems if not self.only or any(word.lower() in s.name.lower() for word in self.only)]

    def each(self, systems: Iterable[System], what: str, measure: Callable[[Context, System], T]) -> dict[System, T]:
        """``measure`` of every system; one that fails is noted in ``failures`` and left out."""
        measured: dict[System, T] = {}
        for system in systems:
            self.say(f"{what}: {system.name}")
            try:
                measured[system] = measure(self, system)
            except BenchError as error:
                self.failures.append(f"{what}: {system.name}: {error}")
        return measured

    def _python(self, system: System) -> str:
        return str(self.peers_python) if system.peer else sys.executable

    def _env(self, system: System, server: Server, stamps: Path | None) -> dict[str, str]:
        env = {
            "BENCH_TALLY": str(server.tally),
            "BENCH_URL": server.url,
            "HEADRACE_URL": server.url,
            "PYTHONPATH": str(ROOT),
            **system.env,
        }
        return env if stamps is None else {**env, "BENCH_STAMPS": str(stamps)}

    def worker(self, system: System, server: Server, stamps: Path | None = None) -> AbstractContextManager[Group]:
        """A context manager: the system's worker, as a Group, for the length of the block."""
        argv = [self._python(system), *(server.url if word == URL else word for word in system.worker)]
        return running(argv, self._env(system, server, stamps))

    def produce(
        self, system: System, server: Server, verb: str, count: int, stamps: Path | None = None
    ) -> dict[str, Any]:
        """The answer of one producer's verb, run in a process of its own."""
        argv = [self._python(system), "-m", "bench.produce", system.module, verb, str(count)]
        line = answer(argv, self._env(system, server, stamps), 600)
        try:
            return dict(json.loads(line))
        except ValueError:
            raise BenchError(f"{argv!r} answered no JSON but {line[:200]!r}") from None


def headrace_is_here() -> bool:
    try:
        return find_spec("headrace.app") is not None and find_spec("headrace.__main__") is not None
    except ModuleNotFoundError:
        return False


@contextmanager
def stamps() -> Iterator[Path]:
    """A named pipe through which jobs tell when they started."""
    with tempfile.TemporaryDirectory(prefix="hb-") as directory:
        path = Path(directory) / "stamps"
        os.mkfifo(path, 0o600)
        yield path
