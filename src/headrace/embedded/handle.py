"""A program's use of its project's private server, and what the command line does with that: start, stop, describe.

A handle owns one lock. It holds no connection and no thread, so that a program may fork at any time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from headrace.clock import monotonic
from headrace.embedded import paths
from headrace.errors import ServerError

if TYPE_CHECKING:
    from headrace.embedded.paths import DataFiles
    from headrace.settings import Settings

    Directory = str | os.PathLike[str] | None

log = logging.getLogger("headrace.embedded")

# Stands in for the package's own __init__, which imports all of Headrace and its dependencies: a fifth of a second that
# the first command of a directory would wait, and megabytes that the guard would keep.
_BOOT = (
    "import sys, types; package = types.ModuleType('headrace'); package.__path__ = [sys.argv[1]];"
    " sys.modules['headrace'] = package; from headrace.embedded import guard; guard.main(*sys.argv[2:])"
)

_LATE = {
    "loading": "is still loading its data: try again, or give more time",
    "silent": "does not answer: it is stopped, or busy with a long command",
}

# One thread at a time: all those that lost the server come at once, and would close each other's holds.
_reviving = threading.Lock()


def _begin_anew() -> None:
    global _reviving
    _reviving = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


class Embedded:
    """This process's hold on a private server: while it is open, the server stays.

    Forked children share the hold and count as users until they end; programs that this one runs do not. A handle that
    is dropped without `close` holds until its process ends, so no server vanishes under a forgotten one.
    """

    def __init__(self, spot: DataFiles, hold: int, idle_timeout: float) -> None:
        self._spot = spot
        self._hold: int | None = hold
        self._idle_timeout = idle_timeout
        # Made at random with the data directory: another one means other data.
        self._secret = spot.password()

    @property
    def directory(self) -> Path:
        """The data directory, absolute."""
        return self._spot.directory

    @property
    def url(self) -> str:
        """Where to connect: ``unix://:password@/path/valkey.sock?db=0``. Holds the password: not for logs."""
        socket, password = self._spot.socket(), self._spot.password()
        if socket is None or password is None:
            raise ServerError(f"the files of {self.directory} were removed under its server: call revive()")
        return f"unix://:{password}@{quote(os.fsencode(socket))}?db=0"

    def revive(self, *, timeout: float = 30.0) -> str:
        """Make sure that the server serves, and return its URL: for a client that lost its connection.

        Starts a server that crashed, or whose guard was killed, on its data. If the data directory was removed, this
        joins the server of the directory that is in its place now, or makes both, and logs a warning. The URL is
        another one then. Raises ServerError: it was stopped by command, it cannot be started, or the directory above
        the data directory is gone too. Cost: one round trip when it serves.
        """
        with _reviving, paths.usable(self._spot):
            if self._hold is None:
                raise ServerError(f"this handle on {self.directory} is closed: attach again")
            if self._spot.stopped.exists():
                raise ServerError(
                    f"the private server of {self.directory} was stopped by command: `headrace server start` starts it"
                )
            deadline = monotonic() + timeout
            removed = not paths.names(self._spot.users, self._hold)
            if removed:
                paths.prepare(self._spot, parents=False)
                stale, self._hold = self._hold, _enter(self._spot, deadline)
                os.close(stale)
            _ensure(self._spot, self._idle_timeout, deadline)
            # Of a directory whose locks alone were removed, the password and the data are the same.
            known, self._secret = self._secret, self._spot.password()
            if removed and self._secret != known:
                log.warning(
                    "%s was removed or moved while programs used it, and its server has ended: the jobs in it went"
                    " with it. This program continues with the new private server that is in its place",
                    self.directory,
                )
            return self.url

    def close(self) -> None:
        """Stop using the server, which ends some seconds after its last user has left. Closing twice is fine."""
        if self._hold is not None:
            # Closed, never unlocked: unlocking would end the hold of forked children too.
            os.close(self._hold)
            self._hold = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attach(directory: Directory = None, *, idle_timeout: float | None = None, timeout: float = 30.0) -> Embedded:
    """Start the private server of a directory, or attach to the one that runs.

    Whatever the order of events, two callers never get two servers, and the server is not ending when this returns. It
    outlives this process while others use it. A user that loses it calls `Embedded.revive`.

    Args:
        directory: None is HEADRACE_DIR, else ``.headrace`` of this project; made, for this user alone, if absent.
        idle_timeout: seconds that a server which this starts outlives its users; None: as the setting says.
        timeout: seconds until this gives up; loading very much data takes longer than the rest.

    Raises ServerError, SettingsError: the one thing that is wrong, with its path and what to do.

    Cost: one round trip and about a millisecond when the server runs; a start takes some tenths of a second.
    """
    idle_timeout = settings().embedded_idle_timeout if idle_timeout is None else idle_timeout
    spot = where(directory)
    deadline = monotonic() + timeout
    with paths.usable(spot):
        paths.prepare(spot)
        hold = _enter(spot, deadline)
        try:
            spot.stopped.unlink(missing_ok=True)
            _ensure(spot, idle_timeout, deadline)
        except BaseException:
            os.close(hold)
            raise
    return Embedded(spot, hold, idle_timeout)


def where(directory: Directory) -> DataFiles:
    """The files of the given directory; of None, those of the setting ``dir``, else of this project."""
    return paths.locate(directory or settings().dir)


def settings() -> Settings:
    from headrace.settings import load  # imports msgspec, which the guard cannot

    return load(os.environ)


@dataclass(frozen=True, slots=True)
class Status:
    """A private server as it was a moment ago. Safe to print: no password.

    Attributes:
        running: a server process has the data, whether or not it answers yet.
        kept: it stays without users until `stop`.
        stopped: it was stopped by command, and not started since.
        used: a process is attached now.
        pid: of the server. This and what follows is None unless it is ready or loading.
        uptime, clients: seconds, and open connections without the one that asks.
        memory, file: bytes of the data, and of the append-only file.
    """

    directory: Path
    running: bool
    health: paths.Health
    kept: bool
    stopped: bool
    used: bool
    socket: Path | None
    url: str | None
    pid: int | None = None
    version: str | None = None
    uptime: int | None = None
    clients: int | None = None
    memory: int | None = None
    keys: int | None = None
    file: int | None = None


def path(directory: Directory = None) -> Path:
    return where(directory).directory


def start(directory: Directory = None, *, timeout: float = 30.0) -> Status:
    """Start the server, if need be, and keep it without users until `stop`. Raises as `attach`."""
    spot = where(directory)
    with attach(directory, timeout=timeout), paths.usable(spot):
        # Written by a user, so the guard sees it before it can find itself alone.
        paths.write(spot.keep, "")
        return status(spot.directory)


def stop(directory: Directory = None, *, timeout: float = 30.0) -> bool:
    """End the server in an orderly way, even while programs use it; whether there was one.

    These programs do not bring it back (`Embedded.revive` refuses); the next one that attaches does. Raises
    ServerError: it did not end within ``timeout`` seconds.
    """
    spot = where(directory)
    with paths.usable(spot):
        spot.keep.unlink(missing_ok=True)
        if not _alive(spot):
            return False
        paths.write(spot.stopped, "")
        deadline = monotonic() + timeout
        # A program that comes after the order removes it, and may have started the next server by now.
        while _alive(spot) and spot.stopped.exists():
            if monotonic() > deadline:
                raise ServerError(f"the private server of {spot.directory} did not end: see {spot.log}, and try again")
            # The guard ends with its server, and would see the order soon. A server without one sees only this.
            paths.shut_down(spot.socket(), spot.password())
            time.sleep(0.02)
    return True


def status(directory: Directory = None) -> Status:
    """What is known about a directory's server. Starts and makes nothing. Cost: one round trip."""
    spot = where(directory)
    with paths.usable(spot):
        socket = spot.socket()
        health, facts = paths.probe(socket, spot.password())
        number = {name: int(value) for name, value in facts.items() if value.isdecimal()}
        name = "valkey" if "valkey_version" in facts else "redis"
        databases = [value for key, value in facts.items() if key.startswith("db") and key[2:].isdecimal()]
        return Status(
            directory=spot.directory, running=paths.locked(spot.server), health=health, kept=spot.keep.exists(),
            stopped=spot.stopped.exists(), used=paths.locked(spot.users, fcntl.LOCK_EX), socket=socket,
            url=None if socket is None else f"unix://{quote(os.fsencode(socket))}?db=0", pid=number.get("process_id"),
            version=f"{name} {facts.get(f'{name}_version')}" if facts else None,
            uptime=number.get("uptime_in_seconds"), clients=number["connected_clients"] - 1 if facts else None,
            memory=number.get("used_memory"),
            keys=sum(int(one.split(",")[0].removeprefix("keys=")) for one in databases) if facts else None,
            file=number.get("aof_current_size"),
        )  # fmt: skip


def require(directory: Directory = None) -> None:
    """Raise ServerError where no private server runs, so that a command that looks starts none."""
    spot = where(directory)
    with paths.usable(spot):
        if _alive(spot):
            return
        rest = "its jobs are kept, and " if spot.users.exists() else ""
    raise ServerError(
        f"no private server runs for {spot.directory.parent} ({spot.directory}): {rest}a worker or a program that uses"
        f" Headrace starts it there, and so does `headrace server start`; HEADRACE_URL or --url names another server"
    )


def _enter(spot: DataFiles, deadline: float) -> int:
    """Become a user: first of all, so that the guard cannot decide to end from here on."""
    hold = paths.hold_lock(spot.users, fcntl.LOCK_SH, deadline)
    if hold is None:
        raise ServerError(f"the private server of {spot.directory} is still ending: try again, or see {spot.journal}")
    os.utime(hold)  # the idle timeout counts from the last arrival
    return hold


def _serves(spot: DataFiles) -> bool:
    """Whether the server answers and a guard runs it. Cost: one connection, one round trip."""
    # The guard first: it is the cheaper question, and without one the answer is no.
    return paths.locked(spot.guard) and paths.health(spot.socket(), spot.password()) == "ready"


def _ensure(spot: DataFiles, idle_timeout: float, deadline: float) -> None:
    if _serves(spot):
        return
    # One user at a time starts it. The others wait for its lock, and then find that the server runs.
    starter = paths.hold_lock(spot.starter, fcntl.LOCK_EX, deadline)
    if starter is None:
        raise ServerError(f"another program is still starting the private server of {spot.directory}: try again")
    tries = 0
    try:
        while not _serves(spot):
            if monotonic() > deadline:
                why = _LATE.get(paths.health(spot.socket(), spot.password()), "did not come up in time: try again")
                raise ServerError(f"the private server of {spot.directory} {why}; see {spot.journal} and {spot.log}")
            # A guard whose server no program can reach ends by itself.
            if not paths.locked(spot.guard):
                if tries == 3:
                    raise ServerError(
                        f"the guards of {spot.directory} end before the server is up: see the end of {spot.journal}"
                    )
                tries += 1
                _start(spot, idle_timeout, deadline)
            time.sleep(0.01)
    finally:
        paths.release_lock(starter)


def _start(spot: DataFiles, idle_timeout: float, deadline: float) -> None:
    from headrace.embedded import guard  # imports much, and only a start needs it

    program = guard.find_program()
    guard.check(program, spot)
    with tempfile.TemporaryFile() as report, paths.log(spot.journal, 1 << 18) as journal:
        # -I -S: nothing from the user's environment or site-packages can run in the guard, or slow its start.
        command = (sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parent.parent))
        process = subprocess.Popen(
            [*command, str(spot.directory), str(program), str(idle_timeout)],
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=journal,
            cwd="/",
            start_new_session=True,
        )
        try:
            process.wait(max(0, deadline - monotonic()))
        except subprocess.TimeoutExpired:
            # The guard goes on: the next program finds a server that has loaded more of its data.
            process.kill()
            process.wait()
        report.seek(0)
        said = report.read().decode()
    if said:
        raise ServerError(said)


def _alive(spot: DataFiles) -> bool:
    return paths.locked(spot.guard) or paths.locked(spot.server)
