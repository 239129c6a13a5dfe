"""A program's use of its project's private server.

Owns one lock. Holds no connection and no thread, so that a program may fork at any time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from headrace.clock import monotonic
from headrace.embedded import launch, locks, paths
from headrace.errors import ServerError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.settings import Settings

log = logging.getLogger("headrace.embedded")

# One thread at a time: all those that lost the server come at once, and would close each other's holds.
_reviving = threading.Lock()


def _begin_anew() -> None:
    """This is a fork: the thread that held the lock is not here."""
    global _reviving
    _reviving = threading.Lock()


os.register_at_fork(after_in_child=_begin_anew)


class Embedded:
    """This process's hold on a private server: while it is open, the server stays.

    Forked children share the hold and count as users until they end; programs that this one runs do not. A
    handle that is dropped without `close` holds until its process ends, so no server vanishes under a
    forgotten one.
    """

    def __init__(self, spot: paths.DataFiles, hold: int, idle_timeout: float) -> None:
        """Use `attach`."""
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

        The guard restarts a server that crashed by itself; this also brings back one whose guard was killed. If the
        data directory was removed, this joins the server of the directory that is in its place now, or makes both,
        and logs a warning. The URL is another one then.

        Raises:
            ServerError: it was stopped by command, it cannot be started, or what the data directory was in is gone too.

        Cost: one round trip when it serves.
        """
        with _reviving:
            return self._revive(timeout)

    def _revive(self, timeout: float) -> str:
        if self._hold is None:
            raise ServerError(f"this handle on {self.directory} is closed: attach again")
        if self._spot.stopped.exists():
            raise ServerError(
                f"the private server of {self.directory} was stopped by command: `headrace server start` starts it"
            )
        deadline = monotonic() + timeout
        try:
            removed = not locks.names(self._spot.users, self._hold)
            if removed:
                paths.prepare(self._spot, parents=False)
                stale, self._hold = self._hold, _enter(self._spot, deadline)
                os.close(stale)
            _up(self._spot, self._idle_timeout, deadline)
            # Of a directory whose locks alone were removed, the password and the data are the same.
            known, self._secret = self._secret, self._spot.password()
        except OSError as error:
            raise paths.unusable(self._spot, error) from error
        if removed and self._secret != known:
            log.warning(
                "%s was removed or moved while programs used it, and its server has ended: the jobs in it went with"
                " it. This program continues with the new private server of %s",
                self.directory,
                self.directory,
            )
        return self.url

    def close(self) -> None:
        """Leave. The server ends some seconds after its last user has. Closing twice is fine."""
        if self._hold is not None:
            # Closed, never unlocked: unlocking would end the hold of forked children too.
            os.close(self._hold)
            self._hold = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Embedded {self.directory}{' closed' if self._hold is None else ''}>"


def attach(
    directory: str | os.PathLike[str] | None = None, *, idle_timeout: float | None = None, timeout: float = 30.0
) -> Embedded:
    """Start the private server of a directory, or attach to the one that runs.

    Whatever the order of events, two callers never get two servers, and the server is not ending when this
    returns. It outlives this process while others use it, restarts after a crash, and ends when the last user
    has left.

    Args:
        directory: the data directory; None is HEADRACE_DIR, else ``.headrace`` of the project that the current
            directory belongs to (see ``project.find``). Made, for this user alone, if absent.
        idle_timeout: seconds that the server outlives its last user; None is HEADRACE_EMBEDDED_IDLE_TIMEOUT, else 3.
            Counts for the one that starts the server.
        timeout: seconds until this gives up; loading very much data takes longer than the rest.

    Raises:
        ServerError: the one thing that is wrong, with its path and what to do.
        SettingsError: HEADRACE_DIR or HEADRACE_EMBEDDED_IDLE_TIMEOUT cannot be used.

    Cost: one round trip and about a millisecond when the server runs; a start takes some tenths of a second.
    """
    idle_timeout = settings().embedded_idle_timeout if idle_timeout is None else idle_timeout
    spot = where(directory)
    deadline = monotonic() + timeout
    try:
        paths.prepare(spot)
        hold = _enter(spot, deadline)
        try:
            spot.stopped.unlink(missing_ok=True)
            _up(spot, idle_timeout, deadline)
        except BaseException:
            os.close(hold)
            raise
    except OSError as error:
        raise paths.unusable(spot, error) from error
    return Embedded(spot, hold, idle_timeout)


def where(directory: str | os.PathLike[str] | None) -> paths.DataFiles:
    """The files of the given directory; of None, those of the setting ``dir``, else of this project.

    Raises:
        ServerError: see ``paths.locate``.
    """
    if directory is None:
        directory = settings().dir
    if directory is not None:
        return paths.locate(directory)
    try:
        return paths.locate(paths.data_directory())
    except FileNotFoundError:
        raise paths.homeless(paths.NAME) from None


def settings() -> Settings:
    """What the environment says."""
    from headrace.model.setting_layers import load  # imports msgspec, which the guard cannot

    return load(os.environ)


def _enter(spot: paths.DataFiles, deadline: float) -> int:
    """Become a user: first of all, so that the server cannot decide to end from here on."""
    hold = locks.hold(spot.users, fcntl.LOCK_SH, deadline)
    if hold is None:
        raise ServerError(
            f"the private server of {spot.directory} is still ending (guard: process"
            f" {locks.holder(spot.guard)}): try again, or see {spot.journal}"
        )
    os.utime(hold)  # the idle timeout counts from the last arrival
    return hold


def _up(spot: paths.DataFiles, idle_timeout: float, deadline: float) -> None:
    for text in launch.ensure(spot, idle_timeout, deadline):
        log.warning("%s", text)
