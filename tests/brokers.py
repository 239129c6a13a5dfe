"""A private RabbitMQ for tests: Debian's packages, unpacked into a directory and run from there.

Owns: fetching and unpacking them once for this machine, and the life of one broker process. Nothing is installed, no
service is started: it listens on loopback, at ports of its own, keeps its files in a directory of its own, and dies
with the test run. Elsewhere than on Debian and its descendants there is none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.deadline import eventually
from tests.servers import free_port

PACKAGE = "rabbitmq-server"
_TREE = (
    "--recurse",
    "--no-recommends",
    "--no-suggests",
    "--no-conflicts",
    "--no-breaks",
    "--no-replaces",
    "--no-enhances",
)


class AbsentError(Exception):
    """This machine has no Debian packages."""


def is_debian() -> bool:
    return Path("/etc/debian_version").exists() and None not in (shutil.which("apt-get"), shutil.which("dpkg"))


def unpacked() -> Path:
    """The directory that holds the programs, fetched at first use and kept for the next run.

    Raises:
        AbsentError: this is not Debian.
    """
    if not is_debian():
        raise AbsentError("RabbitMQ is taken from Debian's packages, and this is not Debian")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Two runs beside each other fetch it once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        options: list[str] = []
        if not _apt("policy", PACKAGE).count("Candidate: ") or "Candidate: (none)" in _apt("policy", PACKAGE):
            options = _own_lists(cache)
        version = next(
            line.split()[1] for line in _apt("policy", PACKAGE, options=options).splitlines() if "Candidate" in line
        )
        root = cache / f"{PACKAGE}-{version.replace(':', '_')}"
        if not root.exists():
            _fetch(root, options)
    return root


def _apt(command: str, *words: str, options: list[str] | None = None) -> str:
    argv = ["apt-cache", *(options or ()), command, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env=_plain()).stdout


def _plain() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C.UTF-8"}


def _own_lists(cache: Path) -> list[str]:
    """A fresh machine has no package lists, and only root may fetch the system's: fetch our own."""
    for name in ("state/lists/partial", "apt/archives/partial"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    options = [
        "-o",
        f"Dir::State={cache / 'state'}",
        "-o",
        f"Dir::Cache={cache / 'apt'}",
        "-o",
        "Dir::State::status=/var/lib/dpkg/status",
    ]
    subprocess.run(["apt-get", "-q", *options, "update"], capture_output=True, timeout=120, check=True, env=_plain())
    return options


def _fetch(root: Path, options: list[str]) -> None:
    tree = _apt("depends", *_TREE, PACKAGE, options=options)
    erlang = {line for line in tree.splitlines() if line.startswith("erlang-") and "<" not in line}
    # Of what the package names, not everything is needed to run it: no documents, no examples, no old virtual names.
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        done = subprocess.run(
            ["apt-get", "-q", *options, "download", PACKAGE, *sorted(erlang)],
            cwd=scratch, capture_output=True, text=True, timeout=300, check=False, env=_plain(),
        )  # fmt: skip
        assert done.returncode == 0, f"RabbitMQ could not be fetched from Debian's servers: {done.stderr[-2000:]}"
        whole = Path(scratch, "root")
        for package in Path(scratch).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(whole)], timeout=120, check=True)
        whole.rename(root)


def _free_ports(count: int) -> list[int]:
    """Different ones."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return list(found)


class Rabbit:
    """One private broker.

    1. Starts, and returns when it greets a client.
    2. Dies on demand (``kill``), comes back on the same files and port (``start``).
    3. Leaves nothing behind (``stop``).

    Attributes:
        url: for clients; the password of the guest, who may come from this machine only, is nobody's secret.
    """

    def __init__(self) -> None:
        root = unpacked()
        self.directory = Path(tempfile.mkdtemp(prefix="hr-rabbit-"))
        self._erlang = root / "usr/lib/erlang"
        (self._home,) = (root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")
        (self._bin,) = self._erlang.glob("erts-*/bin")
        self.port, self._names, self._peers = _free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        self._processes: list[subprocess.Popen[bytes]] = []
        (self.directory / "plugins").write_text("[].\n")
        self.start()

    def start(self) -> None:
        """Start it unless it runs."""
        if self._processes:
            return
        try:
            # Erlang would start this by itself, as a daemon that nobody ends.
            self._run(self._bin / "epmd")
            eventually(self._names_are_served, timeout=60, what="epmd, without which no node starts")
            self._run(
                self._bin / "erlexec", "-noinput", "-start_epmd", "false", "-s", "rabbit", "boot", "-boot", "start_sasl",
                # One scheduler, and none that turns while it waits: both take processors from other tests.
                "+S", "1:1", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
                "+W", "w", "-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false",
                "-kernel", "inet_dist_use_interface", "{127,0,0,1}",
            )  # fmt: skip
            eventually(self._greets, timeout=120, what=f"RabbitMQ greets; its log ends {self.log()}")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, as a crash would. What it confirmed of durable queues comes back with it."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGKILL)
            process.wait(20)
        self._processes.clear()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections, and answers nobody."""
        process = self._processes[-1]
        process.send_signal(signal.SIGSTOP)
        # Its threads go on until one of them has taken the signal, which takes a while on a busy machine.
        threads = [psutil.Process(thread.id) for thread in psutil.Process(process.pid).threads()]
        eventually(lambda: all(thread.status() == psutil.STATUS_STOPPED for thread in threads), what="it is stopped")

    def resume(self) -> None:
        """Let a paused one go on; one that runs does not notice."""
        if self._processes:
            self._processes[-1].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, and remove its files. Stopping twice is fine."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stores(self, name: str) -> bool:
        """Whether this name is in the log of declarations that the broker reads after a crash."""
        return any(name.encode() in file.read_bytes() for file in self.directory.glob("data/*/LATEST.LOG"))

    def log(self) -> str:
        text = (self.directory / "log").read_text(errors="replace") if (self.directory / "log").exists() else ""
        return "\n".join(text.splitlines()[-20:])

    def _run(self, program: Path, *words: str) -> None:
        mine = {
            "HOME": self.directory, "ROOTDIR": self._erlang, "BINDIR": self._bin, "EMU": "beam", "PROGNAME": "erl",
            "ERL_LIBS": self._home / "plugins", "ERL_EPMD_PORT": self._names, "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": 0, "LC_ALL": "C.UTF-8",
            "RABBITMQ_NODENAME": f"hr{self.port}@localhost", "RABBITMQ_HOME": self._home,
            "RABBITMQ_MNESIA_BASE": self.directory / "data", "RABBITMQ_LOG_BASE": self.directory / "logs",
            "RABBITMQ_CONFIG_FILE": self.directory / "none", "RABBITMQ_CONF_ENV_FILE": self.directory / "none.conf",
            "RABBITMQ_PLUGINS_DIR": self._home / "plugins", "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "plugins",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_NODE_PORT": self.port, "RABBITMQ_DIST_PORT": self._peers,
        }  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, *words], env=os.environ | {name: str(value) for name, value in mine.items()},
                    cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def _names_are_served(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._names), 5):
                return True
        except OSError:
            return False

    def _greets(self) -> bool:
        assert self._processes[-1].poll() is None, f"RabbitMQ ended while starting: {self.log()}"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as client:
                client.sendall(b"AMQP\x00\x00\x09\x01")
                # A frame; the protocol's name again would mean that it does not like ours.
                return client.recv(1) == b"\x01"
        except OSError:
            return False


@contextlib.contextmanager
def rabbit() -> Iterator[Rabbit]:
    """A broker for a block."""
    broker = Rabbit()
    try:
        yield broker
    finally:
        broker.stop()


def note(*args: Any, **kwargs: Any) -> None:
    """Only sent."""


def make_celery(url: str) -> tuple[Any, Any]:
    """An application of Celery with the broker of a URL, and its task ``shop.note``."""
    import celery

    app = celery.Celery("shop", broker=url.replace("unix://", "redis+socket://"), set_as_current=False)
    return app, app.task(name="shop.note", shared=False)(note)
