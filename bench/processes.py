"""Starts and ends the processes of a benchmark, and reads what they cost.

Each is started as the leader of a session of its own. Runners that make their own process group still
belong to that session, so nothing survives a benchmark even when the leader was killed and its children
were left to init.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_TICK = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A benchmark could not be carried out; the text says which part and why."""


def wait_until(ready: Callable[[], object], what: str, seconds: float = 30.0, pause: float = 0.005) -> None:
    """Return when ``ready`` gives something true; polls every ``pause`` seconds.

    Raises:
        BenchError: it did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise BenchError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(pause)


def _pids() -> list[int]:
    if sys.platform == "linux":
        return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    listing = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    return [int(word) for word in listing.stdout.split()]


def _session_of(pid: int) -> int | None:
    try:
        return None if _dead(pid) else os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _dead(pid: int) -> bool:
    """Whether only the exit status is left: init takes an orphan's, which in a container may be never."""
    fields = _stat(pid)
    return bool(fields) and fields[0] == "Z"


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat from the state on; none when the process, or /proc, is not there."""
    try:
        # The program's name stands in parentheses and may hold spaces: count fields after it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


class Group:
    """A started program with everything that it forked.

    Attributes:
        pid: the leader, which is also the id of the session.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._leader = subprocess.Popen(
                argv,
                env={**os.environ, **env},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._leader.pid

    def members(self) -> list[int]:
        """Living processes of the session, the leader included."""
        return [pid for pid in _pids() if _session_of(pid) == self.pid]

    def check(self) -> None:
        """Raises BenchError, with what the program last said, when its leader has ended."""
        if self._leader.poll() is not None:
            raise BenchError(f"{self._leader.args!r} ended early ({self._leader.returncode}): {self.said()}")

    def answer(self) -> str:
        """The last line that the program wrote."""
        return (self._log.read_text(errors="replace").splitlines() or [""])[-1]

    def said(self) -> str:
        """The end of what the program wrote, short enough for an error's text."""
        return self._log.read_text(errors="replace")[-2000:]

    def cpu(self) -> float | None:
        """Seconds of processor time of all members and their ended children; None where /proc is missing."""
        if sys.platform != "linux":
            return None
        return sum(map(_ticks, self.members())) / _TICK

    def proportional_memory(self) -> int | None:
        """Bytes, shared pages divided among their sharers; None where the kernel does not say."""
        sizes = [_proportional(pid) for pid in self.members()]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def wait(self, seconds: float) -> int:
        """The leader's exit status, once it has ended by itself."""
        return self._leader.wait(timeout=seconds)

    @property
    def alive(self) -> bool:
        """Whether its leader has not ended."""
        return self._leader.poll() is None

    def kill_one(self, pid: int) -> None:
        """End one member."""
        _signal(pid, signal.SIGKILL)

    def kill(self) -> None:
        """End all members at once, as a power cut would, and reap the leader."""
        self._freeze()

        def gone() -> bool:
            members = self.members()
            for pid in members:
                _signal(pid, signal.SIGKILL)
            return not members

        wait_until(gone, f"the end of session {self.pid}", 10, pause=0.001)
        self._leader.wait(timeout=10)

    def _freeze(self) -> None:
        """Stop all members first: a survivor would hand its jobs back, or start another, while we kill the rest."""
        frozen: set[int] = set()
        while fresh := set(self.members()) - frozen:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            frozen |= fresh

    def stop(self, timeout: float = 5.0) -> None:
        """Ask the leader to end, then kill whatever is left of the session."""
        if self._leader.poll() is None:
            self._leader.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._leader.wait(timeout=timeout)
        self.kill()


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[11:15]))


def _proportional(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


@contextmanager
def running(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[Group]:
    """A program for the length of the block; all its processes have ended afterwards, come what may."""
    with tempfile.TemporaryDirectory(prefix="hb-") as directory:
        group = Group(argv, env, Path(directory) / "log")
        try:
            yield group
        finally:
            group.stop()


def answer(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
    """The last line that a program writes.

    Raises:
        BenchError: it failed, or took longer than ``seconds``; the text ends with what it said.
    """
    with running(argv, env) as group:
        try:
            status = group.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{argv!r} took longer than {seconds:g} s: {group.said()}") from None
        if status:
            raise BenchError(f"{argv!r} failed ({status}): {group.said()}")
        return group.answer()
