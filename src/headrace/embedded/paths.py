"""The files of one private server: their places, their rights and their owner. Starts nothing.

1. :class:`DataFiles`, :func:`locate`, :func:`prepare`: the layout of a data directory. Only this part changes files.
2. :func:`find` and :func:`data_directory`: the project of a directory, where its private server has its files. Reads
   names and owners of directories only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from headrace.errors import ServerError, SettingsError

SOCKET_LIMIT = 103
"""Bytes of a Unix socket's path: 104 on macOS and 108 on Linux, with the closing zero."""

OWN = "users.lock"
"""A directory that holds this file is one of ours."""


class DataFiles:
    """The files of one data directory.

    Attributes:
        directory: absolute, links resolved: every process must come to the same one.
        users: flocked shared by every process that uses the server, its forked children included.
        guard: POSIX-locked by the guard for its life.
        server: flocked by the server itself, which inherits it: two servers never share one append-only file.
        starter: flocked by the one process that starts a guard while the others wait.
        keep: present: the server stays without users. Made by `start`, removed by `stop`.
        stopped: present: stopped by command, so running programs must not bring it back by themselves.
        log, journal: what the server says, and what the guard says.
        secret: the server's password, 0600, made once.
        address: names the socket: it may be outside, and TMPDIR may differ between two programs.
        version: name and version of the program that last served these data.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.users = directory / OWN
        self.guard = directory / "guard.lock"
        self.server = directory / "server.lock"
        self.starter = directory / "start.lock"
        self.keep = directory / "keep"
        self.stopped = directory / "stopped"
        self.log = directory / "server.log"
        self.journal = directory / "guard.log"
        self.secret = directory / "password"
        self.address = directory / "socket"
        self.version = directory / "version"

    def password(self) -> str | None:
        """The password, or None if there is none yet."""
        return _text(self.secret)

    def socket(self) -> Path | None:
        """The socket that the guard chose, or None if there is none, or not in a directory of ours alone."""
        text = _text(self.address)
        if text is None:
            return None
        socket = Path(text)
        return socket if socket.parent == self.directory or _private(socket.parent) else None


def locate(directory: str | os.PathLike[str]) -> DataFiles:
    """The files of a directory, which need not exist. Looks at links, and at nothing else.

    Raises:
        ServerError: the path is relative, and the current directory was removed; or it is a link of another user, who
            would choose where our files go.
    """
    path = Path(directory).expanduser()
    if path.is_symlink() and (owner := path.lstat().st_uid) not in (0, os.geteuid()):
        raise ServerError(
            f"{path} is a link that belongs to user {owner}: it is not followed; remove it, or set HEADRACE_DIR to"
            " another directory"
        )
    try:
        return DataFiles(path.resolve())
    except FileNotFoundError:
        raise homeless(path) from None


def homeless(path: str | os.PathLike[str]) -> SettingsError:
    """The error for a relative path where there is no current directory."""
    return SettingsError(
        f"the current directory was removed, so there is no place for {os.fspath(path)}: change to another directory,"
        " or set HEADRACE_DIR to an absolute path, or HEADRACE_URL to a server"
    )


def prepare(places: DataFiles, *, parents: bool = True) -> None:
    """Make the data directory, or check that it is ours and nobody else's to read.

    Args:
        parents: make the directories above it too.

    Raises:
        ServerError: it cannot be made, is no directory, belongs to another user, or is somebody's directory
            for other things, whose permissions are not ours to change.
    """
    directory = places.directory
    if not parents and not directory.parent.exists():
        # A project that was removed as a whole must not come back because one of its programs still runs.
        raise ServerError(
            f"{directory} was removed or moved together with {directory.parent}: stop this program, or make"
            f" {directory.parent} again"
        )
    try:
        _own(directory)
        if not places.users.exists():
            # The password and the data must not end in somebody's repository.
            write(directory / ".gitignore", "*\n")
    except OSError as error:
        raise unusable(places, error) from error


def _own(directory: Path) -> None:
    try:
        found = directory.stat()
    except FileNotFoundError:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700)
            return
        except FileExistsError:
            found = directory.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ServerError(f"{directory} is no directory: remove it, or set HEADRACE_DIR to another")
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
        if owners and OWN not in owners:
            raise ServerError(
                f"{directory} holds other files and others may read it: set HEADRACE_DIR to a directory of its own"
            )
        directory.chmod(0o700)
    if alien := sorted(name for name, owner in owners.items() if owner != os.geteuid()):
        # A password, a log or data that somebody else put there while the directory was open to all.
        raise ServerError(
            f"{directory / alien[0]} does not belong to you ({os.geteuid()}): it is not used; remove it, or set"
            " HEADRACE_DIR to another directory"
        )


def unusable(places: DataFiles, error: OSError) -> ServerError:
    """The one error for a directory that cannot be used."""
    step = "free space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable for you"
    if error.errno == errno.EAGAIN:
        step = "raise the limit of processes (ulimit -u)"
    if error.errno == errno.ELOOP:
        step = f"{error.filename} is a link, where a file must be: remove it"
    return ServerError(
        f"{places.directory} cannot be used for the private server: {error.strerror or error}; {step}, set"
        " HEADRACE_DIR to another directory, or HEADRACE_URL to a server"
    )


def furnish(places: DataFiles) -> tuple[Path, str]:
    """Choose the socket and the password, or keep those of an earlier start. The guard alone calls this.

    Raises:
        ServerError: the directory for the socket is somebody else's.
        OSError: the files cannot be written.
    """
    password = places.password()
    if password is None:
        password = secrets.token_hex(24)
        write(places.secret, password)
    places.secret.chmod(0o600)
    socket = places.socket() or _choose(places.directory)
    write(places.address, str(socket))
    return socket, password


def _choose(directory: Path) -> Path:
    inside = directory / "valkey.sock"
    if len(os.fsencode(inside)) <= SOCKET_LIMIT:
        return inside
    mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    name = f"headrace-{os.geteuid()}-{mark}"
    # The last part is never resolved: in a directory that all may write, it may be a link that somebody planted.
    short = Path(tempfile.gettempdir()).resolve() / name
    if len(os.fsencode(short / inside.name)) > SOCKET_LIMIT:
        short = Path("/tmp").resolve() / name  # noqa: S108 - private, and checked to be ours below
    try:
        short.mkdir(mode=0o700)
    except FileExistsError:
        if not _private(short):
            raise ServerError(
                f"{short}, the place for the server's socket, is not a private directory of yours: remove"
                f" it, or set HEADRACE_DIR to a path of less than {SOCKET_LIMIT - len(inside.name)} bytes"
            ) from None
    return short / inside.name


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
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(os.fsencode(text))
        spare.replace(path)
    except BaseException:
        spare.unlink(missing_ok=True)
        raise


def log(path: Path) -> BinaryIO:
    """Open a log to write at its end; made 0600 if absent."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab")


def _text(path: Path) -> str | None:
    try:
        return os.fsdecode(path.read_bytes()).rstrip("\n") or None
    except FileNotFoundError:
        return None


NAME = ".headrace"
"""The data directory, in the directory of its project."""

MARKERS = ("pyproject.toml", ".git")
"""What the directory of a project holds."""


def find(here: Path, home: Path, me: int) -> Path:
    """The directory of the project that ``here`` belongs to, absolute.

    That is the nearest directory, from ``here`` upwards, with a ``.headrace``; else the nearest one with a
    ``pyproject.toml`` or ``.git``; else ``here``. Above ``here`` only directories count that user ``me`` owns and that
    not everyone may write to: in any other, somebody else may have put one of these. Neither the home directory nor
    what is above it counts, unless it is ``here``: a ``.git`` for dotfiles makes no project of all that a user has.
    """
    candidates = list(_upwards(here, home, me))
    marks: tuple[Callable[[Path], bool], ...] = (lambda one: _holds_data(one, me), _is_project)
    return next((one for mark in marks for one in candidates if mark(one)), here)


def data_directory() -> Path:
    """The data directory of the project of the current directory; it need not exist.

    Raises:
        FileNotFoundError: the current directory was removed.
    """
    here = Path(os.getcwd())  # noqa: PTH109 - where links lead, as every process sees it
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111 - as above; never fails
    return find(here, home, os.geteuid()) / NAME


def _upwards(here: Path, home: Path, me: int) -> Iterator[Path]:
    yield here
    if here == home:
        return
    for parent in here.parents:
        if parent in (home, Path(parent.anchor)):
            return
        if _is_own(parent, me):
            yield parent


def _is_own(directory: Path, me: int) -> bool:
    try:
        found = directory.stat()
    except OSError:
        return False
    return found.st_uid == me and not found.st_mode & stat.S_IWOTH


def _holds_data(directory: Path, me: int) -> bool:
    data = directory / NAME
    try:
        # A link that somebody else made, or one to a directory of somebody else's, leads nowhere for us.
        return data.lstat().st_uid in (0, me) and data.is_dir() and data.stat().st_uid == me
    except OSError:
        return False


def _is_project(directory: Path) -> bool:
    return any(os.path.lexists(directory / marker) for marker in MARKERS)
