"""The files of one private server: their places, their rights and their owner; and which project has one where.

The kernel frees a lock when its holder dies: these are the only facts about other processes that are believed.
``flock`` belongs to the open file, so a forked child, or a server that inherited it, goes on holding it. To check a
lock is to take it for a moment, so a process that wants one tries more than once.

A server gets one question, then its socket is closed: attaching must leave nothing open, so that a caller may fork.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from headrace.clock import monotonic
from headrace.errors import ServerError, SettingsError

SOCKET_LIMIT = 103
"""Bytes of a Unix socket's path: 104 on macOS and 108 on Linux, with the closing zero."""

TEMPORARY = Path("/tmp").resolve()  # noqa: S108 - in a private directory there, which is checked to be ours
"""Where a socket is whose path would be too long. Not TMPDIR, which may differ between two programs."""


class DataFiles:
    def __init__(self, directory: Path) -> None:
        # Absolute, links resolved: every process must come to the same one.
        self.directory = directory
        # Flocked shared by every process that uses the server, its forked children included.
        self.users = directory / "users.lock"
        # Flocked by the guard for its life.
        self.guard = directory / "guard.lock"
        # Flocked by the server itself, which inherits it: two servers never share one append-only file.
        self.server = directory / "server.lock"
        # Flocked by the one process that starts a guard while the others wait.
        self.starter = directory / "start.lock"
        # Present: the server stays without users. Made by `start`, removed by `stop`.
        self.keep = directory / "keep"
        # Present: stopped by command, so running programs must not bring it back by themselves.
        self.stopped = directory / "stopped"
        # What the server says, and what the guard says.
        self.log, self.journal = directory / "server.log", directory / "guard.log"
        # The server's password, 0600, made once.
        self.secret = directory / "password"
        # The server's socket; the path of the directory may be too long for one.
        inside = directory / "valkey.sock"
        mark = f"headrace-{os.geteuid()}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"
        self.address = inside if len(os.fsencode(inside)) <= SOCKET_LIMIT else TEMPORARY / mark / inside.name

    def password(self) -> str | None:
        try:
            return os.fsdecode(self.secret.read_bytes()).rstrip("\n") or None
        except FileNotFoundError:
            return None

    def socket(self) -> Path | None:
        """The server's socket, or None where its directory is absent, or is not ours alone."""
        return self.address if _private(self.address.parent) else None


def locate(directory: str | os.PathLike[str] | None) -> DataFiles:
    """The files of a directory, or of this project; it need not exist. Raises ServerError: it is a link of another
    user, who would choose where our files go. SettingsError: the current directory was removed.
    """
    try:
        path = Path(directory).expanduser() if directory else data_directory()
        if path.is_symlink() and (owner := path.lstat().st_uid) not in (0, os.geteuid()):
            raise ServerError(
                f"{path} is a link that belongs to user {owner}: it is not followed; remove it, or set HEADRACE_DIR to"
                " another directory"
            )
        return DataFiles(path.resolve())
    except FileNotFoundError:
        raise SettingsError(
            f"the current directory was removed, so there is no place for {directory or NAME}: change to another"
            " directory, or set HEADRACE_DIR to an absolute path, or HEADRACE_URL to a server"
        ) from None


def prepare(places: DataFiles, *, parents: bool = True) -> None:
    """Make the data directory, and with ``parents`` those above it, or check that it is private to this user."""
    directory = places.directory
    if not parents and not directory.parent.exists():
        # A project that was removed as a whole must not come back because one of its programs still runs.
        raise ServerError(
            f"{directory} was removed or moved together with {directory.parent}: stop this program, or make"
            f" {directory.parent} again"
        )
    with usable(places):
        _own(places)
        if not places.users.exists():
            # The password and the data must not end in a repository.
            write(directory / ".gitignore", "*\n")


def _own(places: DataFiles) -> None:
    directory = places.directory
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
    found = directory.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ServerError(f"{directory} is not a directory: remove it, or set HEADRACE_DIR to another")
    if found.st_uid != os.geteuid():
        raise ServerError(
            f"{directory} belongs to user {found.st_uid}, not to you ({os.geteuid()}): set HEADRACE_DIR to a"
            " directory of your own, or HEADRACE_URL to a server that several users share"
        )
    owners: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            # The server and other programs write new files here, and put them in the place of old ones.
            with contextlib.suppress(FileNotFoundError):
                owners[entry.name] = entry.stat(follow_symlinks=False).st_uid
    if found.st_mode & 0o077:
        # Never change the mode of a directory with other uses: HEADRACE_DIR=/tmp would lock all out.
        if owners and places.users.name not in owners:
            raise ServerError(
                f"{directory} holds other files and others may read it: set HEADRACE_DIR to a directory of its own"
            )
        directory.chmod(0o700)
    if foreign := sorted(name for name, owner in owners.items() if owner != os.geteuid()):
        # A password, a log or data that another user put there while the directory was open to all.
        raise ServerError(
            f"{directory / foreign[0]} does not belong to you ({os.geteuid()}): it is not used; remove it, or set"
            " HEADRACE_DIR to another directory"
        )


@contextlib.contextmanager
def usable(places: DataFiles) -> Generator[None]:
    try:
        yield
    except OSError as error:
        steps = {
            errno.ENOSPC: "free space there",
            errno.EDQUOT: "free space there",
            errno.EAGAIN: "raise the limit of processes (ulimit -u)",
            errno.ELOOP: f"{error.filename} is a link, where a file must be: remove it",
        }
        raise ServerError(
            f"{places.directory} cannot be used for the private server: {error.strerror or error};"
            f" {steps.get(error.errno or 0, 'make it writable for you')}, set HEADRACE_DIR to another directory, or"
            " HEADRACE_URL to a server"
        ) from error


def furnish(places: DataFiles) -> str:
    """Make a place for the socket, and the password if there is none; the password. The guard alone calls this."""
    place = places.address.parent
    if place != places.directory:
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
    if not _private(place):
        raise ServerError(
            f"{place}, the place for the server's socket, is not a private directory of yours: remove it, or set"
            f" HEADRACE_DIR to a path of less than {SOCKET_LIMIT - len(places.address.name)} bytes"
        )
    password = places.password()
    if password is None:
        password = secrets.token_hex(24)
        write(places.secret, password)
    places.secret.chmod(0o600)
    return password


def _private(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def write(path: Path, text: str) -> None:
    """Replace a small file, 0600, whole or not at all: a reader must never see half a password."""
    spare = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    fd = os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(os.fsencode(text))
    spare.replace(path)


def log(path: Path, limit: int) -> BinaryIO:
    """Open a log to write at its end, made 0600; one that is larger than ``limit`` bytes is moved aside, once."""
    if path.exists() and path.stat().st_size > limit:
        path.replace(path.with_name(f"{path.name}.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab")


NAME = ".headrace"
"""The data directory, in the directory of its project."""

MARKERS = ("pyproject.toml", ".git")
"""What the directory of a project holds."""


def find(here: Path, home: Path, me: int) -> Path:
    """The directory of the project that ``here`` belongs to, absolute.

    That is the nearest directory, from ``here`` upwards, with a ``.headrace``; else the nearest one with a
    ``pyproject.toml`` or ``.git``; else ``here``. Above ``here`` only directories count that user ``me`` owns and that
    not everyone may write to: in any other, another user may have put one of these. Neither the home directory nor
    what is above it counts, unless it is ``here``: a ``.git`` for dotfiles makes no project of all that a user has.
    """
    places = list(_upwards(here, home, me))
    marks = [place for place in places if any(os.path.lexists(place / marker) for marker in MARKERS)]
    return next((place for place in places if _holds_data(place, me)), next(iter(marks), here))


def data_directory() -> Path:
    """The data directory of the project of the current directory, which exists, else FileNotFoundError."""
    here = Path(os.getcwd())  # noqa: PTH109 - where links lead, as every process sees it
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - as above; never fails
    return find(here, home, os.geteuid()) / NAME


def _upwards(here: Path, home: Path, me: int) -> Iterator[Path]:
    yield here
    for parent in here.parents if here != home else ():
        if parent in (home, Path(parent.anchor)):
            return
        with contextlib.suppress(OSError):
            found = parent.stat()
            if found.st_uid == me and not found.st_mode & stat.S_IWOTH:
                yield parent


def _holds_data(directory: Path, me: int) -> bool:
    data = directory / NAME
    try:
        # A link that another user made, or one to a directory of another user, leads nowhere for us.
        return data.lstat().st_uid in (0, me) and data.is_dir() and data.stat().st_uid == me
    except OSError:
        return False


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def take_lock(fd: int, mode: int, deadline: float) -> bool:
    """Whether the flock ``mode`` was had before ``deadline`` (monotonic clock; one try if that is past)."""
    pause = 0.001
    while True:
        try:
            fcntl.flock(fd, mode | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left = deadline - monotonic()
            if left <= 0:
                return False
        # Not a blocking flock: a stopped holder would hang the caller for ever, without an error to show.
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)


def hold_lock(path: Path, mode: int, deadline: float) -> int | None:
    """Open ``path`` and flock it; the descriptor, or None if other processes held it until ``deadline``. The file that
    was locked is the one that the path names now: a lock on a removed file excludes no process.
    """
    while True:
        fd = open_lock(path)
        try:
            taken = take_lock(fd, mode, deadline)
        except BaseException:
            os.close(fd)
            raise
        if taken and names(path, fd):
            return fd
        os.close(fd)
        if not taken:
            return None


def locked(path: Path, mode: int = fcntl.LOCK_SH) -> bool:
    """Whether a process holds ``path`` exclusively; with ``LOCK_EX``, whether one holds it at all."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Two that ask at once must not take each other for users.
        return not take_lock(fd, mode, monotonic() + 0.01 if mode == fcntl.LOCK_EX else 0)
    finally:
        release_lock(fd)


def release_lock(fd: int) -> None:
    """End a flock and close its file. Closing alone would leave the lock to a child of another thread."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def names(path: Path, fd: int) -> bool:
    try:
        there, here = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


Health = Literal["ready", "loading", "absent", "stranger", "silent"]
"""ready: serves; loading: reads its data; absent: no server listens; stranger: refuses the password; silent: no answer
in time."""


class ReplyError(Exception):
    """The server answered with an error; the text is its own."""


def health(path: Path | None, password: str | None) -> Health:
    return probe(path, password)[0]


def probe(path: Path | None, password: str | None) -> tuple[Health, dict[str, str]]:
    """The state of the server behind a socket, and the fields of its INFO. Cost: one connection, one round trip."""
    if path is None or password is None:
        return "absent", {}
    try:
        lines = _ask(path, password, "INFO").splitlines()
    except ReplyError as error:
        # Any other refusal (a script that runs too long) is that of a living server of ours.
        return "stranger" if "AUTH" in str(error) or "WRONGPASS" in str(error) else "ready", {}
    except (TimeoutError, BlockingIOError):
        # No room among those that wait for it to accept them: it listens.
        return "silent", {}
    except (OSError, ValueError):
        return "absent", {}
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    return "loading" if facts.get("loading") == "1" else "ready", facts


def shut_down(path: Path | None, password: str | None) -> None:
    if path is not None and password is not None:
        with contextlib.suppress(OSError, ValueError, ReplyError):  # it hangs up instead of answering
            _ask(path, password, "SHUTDOWN")


def _ask(path: Path, password: str, command: str) -> str:
    """The reply to a command that is sent behind the password. Raises ReplyError, OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(1.0)
        sock.connect(str(path))
        sock.sendall(f"AUTH {password}\r\n{command}\r\n".encode())
        with sock.makefile("rb") as stream:
            for _ in ("AUTH", command):
                line = stream.readline()
                if not line.endswith(b"\r\n"):
                    raise ConnectionResetError("the server closed the connection")
                if line.startswith(b"-"):
                    raise ReplyError(line[1:-2].decode(errors="replace"))
            return stream.read(int(line[1:])).decode(errors="replace")
