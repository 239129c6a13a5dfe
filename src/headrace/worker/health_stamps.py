"""Whether a worker lives and is ready, as its processes stamp it into 64 shared bytes and as a probe judges it.

Owns the form of these bytes and their file, which names the application and the server behind them. The supervisor and
the dispatcher write their own fields; the process of ``--metrics`` reads the same memory, and ``headrace health`` the
file, which imports no application and asks no server.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

# Seconds between two stamps of the dispatcher at least, and the share of a lease: the lease is to look held.
STAMP_EVERY = 1.0
STAMP_SHARE = 0.2
# After this many leases without a stamp a process counts as hanging, and without a claim, claims have stopped.
SILENT = 2.0
# Shares of a lease between two stamps of the supervisor, which has nothing else to wake for.
_SUPERVISED = 0.5
SIZE = 64
REGISTERED = 1
ANSWERED = 2
RUNNERS = 4
DRAINING = 8
EVICTING = 16
WELL = REGISTERED | ANSWERED | RUNNERS

_MAGIC = b"HRh1"
_PLACES = ("/tmp", "/dev/shm")  # noqa: S108 - the file is the user's own, and made anew
# Each field is aligned and copied into its place, so that a reader sees the old or the new one. (``pack_into`` clears
# it first, and a probe in that moment took the worker for one that never turned.)
_FORM = struct.Struct("4sIII6d")
_FLAGS, _LEASE, _SUPERVISOR, _DISPATCHER = 12, 16, 24, 32
_SUFFIX = ".health"
# Bytes of a file that a reader takes at most.
_MOST = SIZE + 8192


class Stamp(NamedTuple):
    """What was read. Moments are seconds of the monotonic clock, which all processes of a machine share.

    Attributes:
        process: of the supervisor.
        worker: the process that people know: of the supervisor, or its parent with ``--reload``.
        flags: of the dispatcher: ``REGISTERED``, ``ANSWERED`` (its last exchange with the server), ``RUNNERS`` (one of
            each kind takes jobs), ``DRAINING``, ``EVICTING`` (the server may drop jobs).
        lease: seconds.
        supervisor, dispatcher: when each was last seen to turn; 0: the worker has not begun.
        until: the end of its lease.
        starving: since when jobs are ready, runners free, and nothing is claimed; 0: they are not.
        space: whose process ids these are, see :func:`pid_namespace`.
        app: the application as the command line names it.
        url: of its server, as :func:`bare_url` has it; empty: the worker does not know it yet.
    """

    process: int
    worker: int
    flags: int
    lease: float
    supervisor: float
    dispatcher: float
    until: float
    starving: float
    space: float
    app: str = ""
    url: str = ""

    def reasons_unhealthy(self, now: float) -> list[str]:
        """Why the worker should be restarted; empty: it lives. A server that is away is not a reason."""
        if not self.supervisor:
            # It imports the application, or waits for its server.
            return []
        seen = (("supervisor", self.supervisor), ("dispatcher", self.dispatcher))
        return [f"the {name} is silent for {now - at:.0f} s" for name, at in seen if now - at > SILENT * self.lease]

    def reasons_unready(self, now: float) -> list[str]:
        if not self.supervisor:
            return ["the worker starts"]
        flags, starves = self.flags, now - self.starving
        checks = (
            (flags & DRAINING, "the worker claims no more"),
            (not flags & ANSWERED, "the server does not answer"),
            (flags & EVICTING, "the server may drop jobs: set its maxmemory-policy to noeviction"),
            (not flags & REGISTERED, "the worker is not registered"),
            (flags & REGISTERED and now > self.until, "its lease is over"),
            (not flags & RUNNERS, "its runners are starting"),
            (
                self.starving and starves > SILENT * self.lease,
                f"claims stopped: jobs are ready, runners are free, and nothing was claimed for {starves:.0f} s",
            ),
        )
        return self.reasons_unhealthy(now) + [text for wrong, text in checks if wrong]


def fence_at(lease_until: float, lease: float) -> float:
    """When runners must be stopped that another worker may take over from: a little before the end of the lease."""
    return lease_until - min(1.0, lease / 10)


class HealthStamps:
    """The bytes of one worker: its file, and the memory that its processes share.

    Attributes:
        next: when the supervisor must stamp again (monotonic seconds).
        path: of the file; empty where none could be made (``fault``): then only the process of ``--metrics`` can tell.
    """

    def __init__(self, app: str = "", shared: str = "") -> None:
        """``shared`` names the file that all workers of one ``--reload`` share, after the process id of their parent.
        The next worker takes it over when it is ready (:meth:`publish`): a probe sees one worker all the time.
        """
        self._app = app
        self.path = self.fault = ""
        self.next = self._every = 0.0
        # The last stamp of the dispatcher that a turn of the supervisor saw, and for how long it saw no other one.
        self._seen, self._silence = 0.0, 0.0
        self._file = -1
        # Workers of several containers may share the directory, and each be the process 1 of its own.
        name = shared or f"{os.getpid()}-{os.urandom(4).hex()}"
        self._name = f"{stamps_directory()}/{_prefix()}{name}{_SUFFIX}"
        own = os.getpid(), int(name.partition("-")[0])
        first = _FORM.pack(_MAGIC, *own, 0, 0.0, 0.0, 0.0, 0.0, 0.0, pid_namespace())
        try:
            self._file = self._made(first)
        except OSError as error:
            self.fault = str(error)
        # Shared with the processes that are forked from here.
        self._bytes = mmap.mmap(self._file, SIZE)
        if self._file < 0:
            self._bytes[:] = first

    def _made(self, first: bytes) -> int:
        """A new file, locked for as long as this process lives: one that no process locks is of a dead worker."""
        forget_dead()
        path = f"{self._name.removesuffix(_SUFFIX)}.{os.getpid()}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.path = path
        try:
            # To touch memory whose file has no room on the disk ends a process by BUS: here that is an error.
            os.write(file, first + self._about(""))
            fcntl.lockf(file, fcntl.LOCK_EX)
            # Named when it is whole and locked: no other process may take it for that of a dead worker.
            if not os.path.exists(self._name):  # noqa: PTH110 - see _paths
                self._publish()
        except OSError:
            _unlink(path, file)
            self.path = ""
            os.close(file)
            raise
        return file

    def publish(self) -> None:
        if self.path not in ("", self._name):
            with suppress(OSError):
                self._publish()

    def _publish(self) -> None:
        os.rename(self.path, self._name)  # noqa: PTH104 - see _paths
        self.path = self._name

    def write_bare_url(self, url: str) -> None:
        if self.path:
            # Without room on the disk, each --url selects this worker: better than that none does.
            with suppress(OSError):
                os.pwrite(self._file, self._about(bare_url(url)), SIZE)

    def _about(self, url: str) -> bytes:
        return f"{self._app}\n{url}\n".encode(errors="surrogateescape")

    def begin(self, lease: float, now: float) -> None:
        self._every = lease * _SUPERVISED
        for place, value in ((_LEASE, lease), (_DISPATCHER, now), (_SUPERVISOR, now)):
            self._stamp(place, "d", value)
        self.next = now + self._every

    def supervised(self, now: float, *, of_use: bool) -> float:
        """The supervisor turns; without a runner and a way to fork one it stamps nothing. Seconds for which only the
        dispatcher has not turned (the whole worker may have been stopped); 0 at turns that do not stamp.
        """
        if now < self.next:
            return 0.0
        self.next = now + self._every
        if of_use:
            self._stamp(_SUPERVISOR, "d", now)
        before, self._seen = self._seen, self.read().dispatcher
        self._silence = self._silence + self._every if self._seen == before else 0.0
        return self._silence

    def dispatched(self, now: float, flags: int, until: float, starving: float) -> None:
        # The flags last: a probe between the two must not find a registered worker without its lease.
        self._stamp(_DISPATCHER, "ddd", now, until, starving)
        self._stamp(_FLAGS, "I", flags)

    def _stamp(self, place: int, form: str, *values: float) -> None:
        data = struct.pack(form, *values)
        self._bytes[place : place + len(data)] = data

    def read(self) -> Stamp:
        return _unpacked(self._bytes)

    def end(self) -> None:
        """The worker has ended in order. Twice is fine."""
        if self.path:
            _unlink(self.path, self._file)
        self.path = ""


def stamps() -> list[Stamp]:
    # A reload may replace a file after it was opened: its name then leads to that of the next worker.
    return [stamp for path in _paths() if (stamp := _read(path) or _read(path)) is not None]


def bare_url(url: str) -> str:
    """A URL without user, password and options, by which a probe selects workers."""
    scheme, separator, place = url.partition("?")[0].partition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2]}"


def pid_namespace() -> float:
    with suppress(OSError):
        return float(os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116 - see _paths
    return 0.0


def forget_dead() -> None:
    for path in _paths():
        with suppress(OSError), _opened(path) as file:
            # Only the lock tells: a living worker of another version may write other bytes.
            if not _is_locked(file):
                _unlink(path, file)


def stamps_directory() -> str:
    """The first place that can be written: in a container whose root is read-only that is the shared memory."""
    places = [*filter(None, [os.environ.get("TMPDIR")]), *_PLACES]
    return next((place for place in places if os.access(place, os.W_OK | os.X_OK)), places[0])


def _prefix() -> str:
    return f"headrace-{os.geteuid()}-"


def _unlink(path: str, file: int) -> None:
    with suppress(OSError):
        # The next worker may have taken the name over.
        if os.path.samestat(os.stat(path), os.fstat(file)):  # noqa: PTH116 - see _paths
            os.unlink(path)  # noqa: PTH108 - see _paths


def _paths() -> Iterator[str]:
    # No pathlib here: a probe is to cost as little as can be.
    with suppress(OSError), os.scandir(stamps_directory()) as entries:
        yield from [one.path for one in entries if one.name.startswith(_prefix()) and one.name.endswith(_SUFFIX)]


@contextmanager
def _opened(path: str) -> Generator[int]:
    """A file of this user. Raises OSError: it is another one, or cannot be read."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if about.st_uid != os.geteuid() or not stat.S_ISREG(about.st_mode):
            raise PermissionError(path)
        yield file
    finally:
        os.close(file)


def _is_locked(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _read(path: str) -> Stamp | None:
    """What a file tells; None: no living worker of this user writes it."""
    with suppress(OSError), _opened(path) as file:
        data = os.read(file, _MOST)
        if _is_locked(file) and len(data) >= SIZE and data.startswith(_MAGIC):
            app, url, *_ = [*data[SIZE:].decode(errors="surrogateescape").split("\n"), "", ""]
            return _unpacked(data)._replace(app=app, url=url)
    return None


def _unpacked(data: mmap.mmap | bytes) -> Stamp:
    _, process, worker, flags, *moments = _FORM.unpack_from(data)
    return Stamp(process, worker, flags, *moments)
