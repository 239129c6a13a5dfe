"""The server process as the guard's child.

Owns its configuration, its start, its end, and the claim that there is one at most. Decides nothing about
when: the guard does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from headrace.clock import monotonic
from headrace.embedded import aof, locks, paths, resp
from headrace.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from ctypes import CDLL
    from pathlib import Path

PREDECESSOR = 15.0
"""Seconds that a server which lost its guard gets to end before the next one gives up."""

GRACE = 20.0
"""Seconds for an orderly shutdown: the append-only file is synced to a disk that may be busy."""

_PR_SET_PDEATHSIG = 1


class Server:
    """One server program on one directory.

    Duties: 1. make the configuration; 2. make sure that no other server has the data; 3. start it and wait
    until it serves; 4. repair damaged data once, with a copy kept; 5. end it with the data safe.
    """

    def __init__(self, spot: paths.DataFiles, binary: Path, pause: Callable[[float], None]) -> None:
        """``pause`` is how to wait: it raises to give up, and is called a few times a second at least."""
        self.spot = spot
        self.binary = binary
        self.pause = pause
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: Path | None = None
        self.repaired: list[str] = []
        """What was repaired since the guard began, for people."""
        self._config = b""
        self._library = _c_library()

    def start(self) -> None:
        """Start the server and wait until it serves, however long its data take to load.

        Raises:
            ServerError: it cannot serve; the text has its own last words.
            OSError: the directory cannot be written.
        """
        version = aof.version(self.binary)
        aof.check(self.spot, version)
        password = self._configure()
        try:
            self._serve(password, version)
        except ServerError as error:
            # Its own advice is to run the check program by hand; nobody is there to do that.
            if "check-aof --fix" not in str(error) or aof.alien(self.spot, version):
                raise
            self.repaired.append(aof.repair(self.spot, self.binary))
            self._serve(password, version)
        paths.write(self.spot.version, f"{version}\n")

    def dead(self) -> bool:
        """Whether the process has ended (and is reaped)."""
        return self.process is None or self.process.poll() is not None

    def ended(self) -> str:
        """How the process ended."""
        code = None if self.process is None else self.process.returncode
        return "never ran" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"

    def healthy(self) -> bool:
        """Whether somebody who knows only the directory can use the server."""
        state = resp.health(self.spot.socket(), self.spot.password(), timeout=2)
        return state in {"ready", "loading", "silent"}

    def stop(self) -> None:
        """End the process in an orderly way, so that its file is synced; kill it after `GRACE`."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def tidy(self) -> None:
        """Remove the socket and, if it had to be outside of the data directory, its directory."""
        if self.socket is None:
            return
        with contextlib.suppress(OSError):  # a directory in its place, or other files beside it, are not ours
            self.socket.unlink(missing_ok=True)
            if self.socket.parent != self.spot.directory:
                self.socket.parent.rmdir()

    def _configure(self) -> str:
        self.socket, password = paths.furnish(self.spot)
        if self.socket.is_dir():
            raise ServerError(f"{self.socket} is a directory where the server's socket must be: remove it")
        settings = {
            "daemonize": "no",
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "requirepass": password,
            "dir": str(self.spot.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
            "logfile": str(self.spot.log),
        }
        self._config = "".join(f"{name} {_quoted(value)}\n" for name, value in settings.items()).encode()
        return password

    def _serve(self, password: str, version: str) -> None:
        claim = self._sole(password)
        try:
            rotate(self.spot.log, 1 << 20)
            said = self.spot.log.stat().st_size if self.spot.log.exists() else 0
            with paths.log(self.spot.log) as log:
                self.process = subprocess.Popen(
                    [aof.name(self.binary, "server"), "-"],
                    executable=self.binary,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    pass_fds=[claim],
                    # A limit of its files' size is an error of writing that it tells, and not its death by XFSZ.
                    restore_signals=False,
                    # Safe here: the guard's one other thread is inside flock and holds no lock of Python's.
                    preexec_fn=self._follow(os.getpid()),  # noqa: PLW1509
                )
        except OSError as error:
            raise ServerError(
                f"{self.binary} cannot be run: {error.strerror or error}; name another server program in"
                " HEADRACE_SERVER_BINARY"
            ) from error
        finally:
            # From here on the server alone holds it, so the lock tells whether the server lives.
            os.close(claim)
        self._instruct()
        self._ready(password, said, version)

    def _instruct(self) -> None:
        """Hand over the configuration.

        Not as a file: servers take a path with ``?`` or ``[`` for a pattern, and one that matches nothing for
        no configuration at all, which is an open TCP port.
        """
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(self._config)

    def _sole(self, password: str) -> int:
        """The lock that only the server of these data has. One that lost its guard is told to end first."""
        deadline = monotonic() + PREDECESSOR
        asked = 0.0
        claim: int | None = None
        while True:
            if claim is None:
                claim = locks.hold(self.spot.server, fcntl.LOCK_EX, 0)
            # Where the lock's file was removed, the lock tells nothing: a server that takes the password has the data.
            if claim is not None and resp.health(self.socket, password) in {"absent", "stranger"}:
                return claim
            if monotonic() > deadline:
                raise ServerError(
                    f"another server still has the data of {self.spot.directory} and does not end: find it"
                    f" with `lsof {self.spot.server}` and stop that process"
                )
            if self.socket is not None and monotonic() > asked + 1:
                asked = monotonic()
                with contextlib.suppress(OSError, resp.ReplyError):  # only the lock tells whether it ends
                    resp.ask(self.socket, password, "SHUTDOWN")
            self.pause(0.02)

    def _ready(self, password: str, said: int, version: str) -> None:
        assert self.process is not None
        pause = 0.002
        while resp.health(self.socket, password) != "ready":
            if self.process.poll() is not None:
                raise ServerError(self._last_words(said, version))
            self.pause(pause)
            pause = min(pause * 1.5, 0.05)

    def _last_words(self, said: int, version: str) -> str:
        with self.spot.log.open("rb") as log:
            log.seek(said)
            tail = log.read().decode(errors="replace").splitlines()[-12:]
        text = "\n".join(f"    {line}" for line in tail) or "    (nothing: is the disk full?)"
        return (
            f"the private server of {self.spot.directory} did not start ({self.binary}, {self.ended()})."
            f" {aof.advice(text, self.spot, version)}\n  Its last words, from {self.spot.log}:\n{text}"
        )

    def _follow(self, guard: int) -> Callable[[], None] | None:
        library = self._library
        if library is None:
            return None

        def follow() -> None:
            # A killed guard must not leave a server that nobody stops; TERM lets it sync its data first.
            library.prctl(_PR_SET_PDEATHSIG, 15, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(1)

        return follow


def rotate(log: Path, limit: int) -> None:
    """Move a log aside once it is larger than ``limit`` bytes, so that two of them are the most there is."""
    if log.exists() and log.stat().st_size > limit:
        log.replace(log.with_name(f"{log.name}.1"))


def _quoted(value: str) -> str:
    plain = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in os.fsencode(value))
    return f'"{plain}"'


def _c_library() -> CDLL | None:
    if sys.platform != "linux":
        return None
    # Loaded here and not in the fork, where the loader's lock might be taken.
    import ctypes

    return ctypes.CDLL(None)
