"""What the command line does with a private server: start, stop, describe.

Owns no process: the guard does what is ordered here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from headrace.clock import monotonic
from headrace.embedded import handle, locks, paths, resp
from headrace.errors import ServerError

if TYPE_CHECKING:
    from pathlib import Path

    Directory = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Status:
    """A private server as it was a moment ago. Safe to print: no password."""

    directory: Path
    """The data directory, absolute; need not exist."""
    running: bool
    """A server process has the data, whether or not it answers yet."""
    health: resp.Health
    """ready, loading, absent, stranger (refuses the directory's password) or silent (does not answer)."""
    kept: bool
    """Stays without users until `stop`."""
    stopped: bool
    """Stopped by command, and not started since."""
    used: bool
    """Some process is attached now."""
    guard: int | None
    """The guard's pid; 0 if it lives where this process cannot see it."""
    socket: Path | None
    """The server's socket, once chosen."""
    url: str | None
    """Where to connect, without the password."""
    pid: int | None = None
    """The server's own pid. This and what follows is None unless it is ready or loading."""
    version: str | None = None
    """Name and version, such as ``valkey 9.1.2``."""
    uptime: int | None = None
    """Seconds since it started."""
    clients: int | None = None
    """Open connections, ours not counted."""
    memory: int | None = None
    """Bytes that the data take in memory."""
    keys: int | None = None
    """Keys in all databases."""
    file: int | None = None
    """Bytes of the append-only file."""
    damaged: tuple[Path, ...] = ()
    """Copies of data that were damaged and have been repaired, oldest first. Yours to remove."""


def path(directory: Directory = None) -> Path:
    """The data directory that `attach` would use, absolute. Touches nothing."""
    return handle.where(directory).directory


def start(directory: Directory = None, *, timeout: float = 30.0) -> Status:
    """Start the server, if need be, and keep it without users until `stop`.

    Raises:
        ServerError: as `attach`.
    """
    with handle.attach(directory, timeout=timeout) as embedded:
        spot = paths.locate(embedded.directory)
        try:
            # Written while we are a user, so the guard sees it before it can find itself alone.
            paths.write(spot.keep, "")
        except OSError as error:
            raise paths.unusable(spot, error) from error
        return status(spot.directory)


def stop(directory: Directory = None, *, timeout: float = 30.0) -> bool:
    """End the server in an orderly way, even while programs use it; whether there was one.

    They do not bring it back (`Embedded.revive` refuses); whoever attaches next does.

    Raises:
        ServerError: it did not end within ``timeout`` seconds.
    """
    spot = handle.where(directory)
    try:
        if not spot.users.exists():
            return False
        spot.keep.unlink(missing_ok=True)
        if not _alive(spot):
            return False
        paths.write(spot.stopped, "")
        _end(spot, monotonic() + timeout)
    except OSError as error:
        raise paths.unusable(spot, error) from error
    return True


def status(directory: Directory = None) -> Status:
    """What is known about a directory's server. Starts and makes nothing.

    Cost: two round trips.
    """
    spot = handle.where(directory)
    try:
        return _describe(spot)
    except OSError as error:
        raise paths.unusable(spot, error) from error


def require(directory: Directory = None) -> None:
    """Refuse to go on where no private server runs, so that looking at one starts none. Starts and makes nothing.

    Raises:
        ServerError: none runs; the text names the directory, and how to start one.
    """
    spot = handle.where(directory)
    try:
        if _alive(spot):
            return
        rest = "its jobs are kept, and " if spot.users.exists() else ""
    except OSError as error:
        raise paths.unusable(spot, error) from error
    raise ServerError(
        f"no private server runs for {spot.directory.parent} ({spot.directory}): {rest}a worker or a program that uses"
        f" Headrace starts it there, and so does `headrace server start`; HEADRACE_URL or --url names another server"
    )


def _alive(spot: paths.DataFiles) -> bool:
    return locks.holder(spot.guard) is not None or locks.locked(spot.server)


def _end(spot: paths.DataFiles, deadline: float) -> None:
    """Wait for the end of the guard, or of a server that has none; a guard that comes after it may stay."""
    told: int | None = None
    pause = 0.002
    while _alive(spot):
        guard = locks.holder(spot.guard)
        if guard is None:
            _shut_down(spot)
        elif told is None:
            told = locks.notify(spot.guard, signal.SIGTERM)
        elif guard != told:
            return
        if monotonic() > deadline:
            raise ServerError(
                f"the private server of {spot.directory} did not end (guard: process {guard}): see {spot.journal}"
                f" and {spot.log}, and try again"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def _shut_down(spot: paths.DataFiles) -> None:
    """Tell a server that has no guard to end."""
    socket, password = spot.socket(), spot.password()
    if socket is not None and password is not None:
        with contextlib.suppress(OSError, resp.ReplyError):  # it hangs up instead of answering
            resp.ask(socket, password, "SHUTDOWN")


def _describe(spot: paths.DataFiles) -> Status:
    socket, password = spot.socket(), spot.password()
    state = resp.health(socket, password)
    facts: dict[str, str] = {}
    if socket is not None and password is not None and state in {"ready", "loading"}:
        try:
            facts = resp.info(socket, password)
        except (OSError, resp.ReplyError):
            state = "absent"  # it ended between the two questions
    number = {name: int(value) for name, value in facts.items() if value.isdecimal()}
    name = "valkey" if "valkey_version" in facts else "redis"
    return Status(
        directory=spot.directory,
        running=locks.locked(spot.server),
        health=state,
        kept=spot.keep.exists(),
        stopped=spot.stopped.exists(),
        used=locks.shared(spot.users),
        guard=locks.holder(spot.guard),
        socket=socket,
        url=None if socket is None else f"unix://{quote(os.fsencode(socket))}?db=0",
        pid=number.get("process_id"),
        version=f"{name} {facts.get(f'{name}_version')}" if facts else None,
        uptime=number.get("uptime_in_seconds"),
        clients=number["connected_clients"] - 1 if "connected_clients" in number else None,
        memory=number.get("used_memory"),
        keys=_keys(facts) if facts else None,
        file=number.get("aof_current_size"),
        damaged=tuple(sorted(spot.directory.glob("damaged-*"))),
    )


def _keys(facts: dict[str, str]) -> int:
    databases = [v for k, v in facts.items() if k.startswith("db") and k[2:].isdecimal()]
    return sum(int(v.split(",")[0].removeprefix("keys=")) for v in databases)
