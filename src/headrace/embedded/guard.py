"""The guard: a small process that keeps one directory's server alive while anybody uses it, and no longer.

Owns the server process. Serves nobody: clients speak to the server, and the guard learns of them only through
the locks that the kernel frees when they die. It ends itself once the last one has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

from headrace.clock import monotonic
from headrace.embedded import locks, paths
from headrace.embedded.server import Server
from headrace.errors import ServerError, ServerTooOld

WATCH = 0.25
"""Seconds between two looks whether the data directory is still in its place."""

Event = Literal["stop", "check", "child", "alone"]
"""TERM or INT; HUP (somebody cannot reach the server); a child ended; no user holds the lock."""

CRASHES = 8
WINDOW = 60.0
"""So many ends of the server within so many seconds, and the guard gives up: it must not restart for ever."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a starter tells its guard; on the command line, so nothing secret."""

    directory: str
    """The data directory, absolute."""
    binary: str
    """The server program."""
    idle_timeout: float
    """Seconds that the server outlives its last user."""
    report: int
    """Descriptor of the pipe on which one `Report`, a line of JSON, is awaited."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a start went."""

    error: str | None = None
    """What a person must do, or None: it serves."""
    old: bool = False
    """The error is a server program that is too old."""
    notes: tuple[str, ...] = ()
    """What was repaired on the way."""


class StopError(Exception):
    """Somebody ordered the end while the server was starting."""


class Guard:
    """The one guard of a directory.

    Duties: 1. be the only one; 2. start the server and report; 3. restart it when it ends by itself;
    4. notice that the last user has left, and end it then; 5. notice that the data directory was removed or
    moved, and end it then; 6. leave no socket behind.
    """

    def __init__(self, orders: Orders) -> None:
        self.spot = paths.DataFiles(Path(orders.directory))
        self.orders = orders
        self.server = Server(self.spot, Path(orders.binary), self.pause)
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.pending: deque[Event] = deque()
        """Events that came while the server was starting. This thread alone touches it."""
        self.crashes: deque[float] = deque(maxlen=CRASHES)
        self.leave_at: float | None = None
        """When to look whether the users are still away, on the monotonic clock."""
        self.again = threading.Semaphore(0)
        """Sends the watcher back to wait for the users' lock."""

    def run(self) -> None:
        """Guard until nobody needs the server, or it cannot be kept alive."""
        claim = locks.claim(self.spot.guard)
        if claim is None:
            self.report(Report())  # another was quicker; the starter looks again
            return
        self.listen()
        try:
            self.server.start()
            users = locks.open_lock(self.spot.users)
            threading.Thread(target=self.watch, args=[users], daemon=True).start()
        except (ServerError, OSError, StopError, RuntimeError) as error:
            self.server.stop()
            if not locks.locked(self.spot.server):
                self.server.tidy()
            self.report(Report(self.explain(error), old=isinstance(error, ServerTooOld)))
            return
        self.report(Report(notes=tuple(self.server.repaired)))
        try:
            self.serve(users, claim)
        except StopError:
            note("stopped")
        except (ServerError, OSError) as error:
            note(f"gave up: {self.explain(error)}")
        self.finish(claim)

    def listen(self) -> None:
        """Turn signals into events: a handler appends, one loop reads."""
        events: dict[int, Event] = {
            signal.SIGTERM: "stop",
            signal.SIGINT: "stop",
            signal.SIGHUP: "check",
            signal.SIGCHLD: "child",
        }

        def append(number: int, _frame: object) -> None:
            self.events.put(events[number])

        for number in events:
            signal.signal(number, append)

    def watch(self, users: int) -> None:
        """Wait in the kernel until nobody holds the users' lock; a thread, since no loop can select that."""
        while True:
            fcntl.flock(users, fcntl.LOCK_EX)
            # Freed at once: during the idle timeout newcomers must get in without waiting for us.
            fcntl.flock(users, fcntl.LOCK_UN)
            self.events.put("alone")
            self.again.acquire()

    def serve(self, users: int, claim: int) -> None:
        """Act on events until the end."""
        while True:
            event = self.next()
            if not locks.names(self.spot.guard, claim):
                note("the data directory was removed or moved: its server ends")
                return
            match event:
                case "stop":
                    raise StopError
                case "check":
                    if not self.server.healthy():
                        note("the server cannot be reached through its directory: starting it again")
                        self.server.stop()
                        self.server.start()
                case "child":
                    if self.server.dead():
                        self.recover()
                case "alone":
                    self.leave_at = monotonic() + self.orders.idle_timeout
                case None:
                    if self.leave_at is not None and monotonic() >= self.leave_at and self.deserted(users):
                        return

    def next(self) -> Event | None:
        """The next event, or None when it is time to look for the directory and the users."""
        if self.pending:
            return self.pending.popleft()
        try:
            left = WATCH if self.leave_at is None else min(WATCH, max(0, self.leave_at - monotonic()))
            return self.events.get(timeout=left)
        except Empty:
            return None

    def pause(self, seconds: float) -> None:
        """Wait during a start; events are kept for later, but an order to stop counts at once.

        Raises:
            StopError: it was ordered.
        """
        try:
            event = self.events.get(timeout=seconds)
        except Empty:
            return
        if event == "stop":
            raise StopError
        self.pending.append(event)

    def deserted(self, users: int) -> bool:
        """Whether the server may end. If so, the users' lock is ours until we are gone: nobody slips in."""
        self.leave_at = None
        quiet = time.time() - os.fstat(users).st_mtime
        if 0 <= quiet < self.orders.idle_timeout:
            # Somebody came and went during the idle timeout, so there is likely a next one.
            self.leave_at = monotonic() + self.orders.idle_timeout - quiet
            return False
        if not locks.take(users, fcntl.LOCK_EX, 0):
            self.again.release()
            return False
        if self.spot.keep.exists():
            # Only an order can end it now, so there is no reason to watch the users.
            fcntl.flock(users, fcntl.LOCK_UN)
            return False
        return True

    def recover(self) -> None:
        """Restart a server that ended by itself, ever later, and not for ever.

        Raises:
            ServerError: it does not serve any more.
        """
        known = len(self.server.repaired)
        while True:
            now = monotonic()
            if len(self.crashes) == CRASHES and now - self.crashes[0] < WINDOW:
                raise ServerError(f"the server ended {CRASHES} times within {WINDOW:.0f} s: see {self.spot.log}")
            self.crashes.append(now)
            recent = sum(1 for t in self.crashes if now - t < WINDOW)
            note(f"the server ended by itself ({self.server.ended()}): starting it again")
            until = now + 0.05 * (2**recent - 2)
            while (left := until - monotonic()) > 0:
                self.pause(left)
            try:
                self.server.start()
            except (ServerError, OSError) as error:
                note(self.explain(error))
                continue
            for text in self.server.repaired[known:]:
                note(text)
            return

    def finish(self, claim: int) -> None:
        """End the server and leave no socket."""
        if locks.names(self.spot.guard, claim):
            self.server.stop()
            self.server.tidy()
        else:
            # The directory was removed or moved, and a new one may be in its place with a server of its own: an
            # orderly end would unlink that server's socket. What was acknowledged is in the old file all the same.
            self.server.kill()
            if not self.spot.directory.exists():
                self.server.tidy()
        os.close(claim)  # before the users' lock, so that whoever waits for that one finds no guard

    def explain(self, error: Exception) -> str:
        """The error in words for the person who waits."""
        if isinstance(error, StopError):
            return f"the private server of {self.spot.directory} was told to stop while it started: try again"
        return str(paths.unusable(self.spot, error) if isinstance(error, OSError) else error)

    def report(self, report: Report) -> None:
        """Tell the starter, who may be gone by now."""
        try:
            os.write(self.orders.report, f"{json.dumps(asdict(report))}\n".encode())
        except BrokenPipeError:
            note("the starter did not wait")
        os.close(self.orders.report)


def note(text: str) -> None:
    """A line in the guard's log."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {os.getpid()} {text}\n")
    sys.stderr.flush()


def main(orders: str) -> None:
    """Become a guard: leave the starter's session and family, then run."""
    # A second fork: a guard that stayed its starter's child would be reaped by it, or stay a zombie.
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    # A starter that waits for signals has them blocked, and we would inherit that and hear no order to stop.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Limits that the starter set for itself are none of a server that all programs of the directory use.
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        with contextlib.suppress(OSError, ValueError):
            most = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (most, most))
    Guard(Orders(**json.loads(orders))).run()
