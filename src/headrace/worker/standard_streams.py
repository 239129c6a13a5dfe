"""The standard streams of a worker's processes: to write to them never fails, and in some of them never waits.

Supervisor, dispatcher and the parent of ``--reload`` must go on when the reader of their log stops reading (Ctrl-S in a
terminal, a full pipe) or goes away: a lease is lost while they wait. A megabyte is kept; what comes after that is
dropped, counted and told when there is a reader again. In runners a stream waits, as in any program; but a reader that
went away fails no job. The descriptors stay as they are, since a terminal or pipe is shared with other programs.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import socket
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from _typeshed import ReadableBuffer


class WorkerLog(logging.LoggerAdapter[logging.Logger]):
    """The worker's log. Each call gives a lasting ``code``, which ``docs/observability.md`` lists."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {"code": kwargs.pop("code"), **(kwargs.get("extra") or {})}
        return msg, kwargs


log = WorkerLog(logging.getLogger("headrace.worker"))

# Bytes that are kept for a reader that is late; what a log says in a busy second fits in.
KEPT = 1 << 20
# Seconds until a stream that took nothing is tried again.
AGAIN = 0.1
# Seconds that a process which ends waits for a reader.
PATIENCE = 1.0
# At most so much at once: a pipe takes so much whole or not at all, so that lines of several processes do not mix.
PIECE = select.PIPE_BUF
_NEVER = float("inf")


class StandardStream(io.RawIOBase):
    """One standard stream.

    Attributes:
        patient: to write waits until there is room.
        kept: what waits for a reader; ``lost``: lines that were dropped and not told.
        mid_line: the last line that was written has not ended.
    """

    def __init__(self, descriptor: int, streams: Streams) -> None:
        super().__init__()
        self.patient = self.mid_line = False
        self.kept = bytearray()
        self.lost = 0
        self._descriptor = descriptor
        self._streams = streams
        # One that a thread may take again: a signal's handler may print during what its own thread prints.
        self._lock = threading.RLock()
        self._exit: _Exit | None = None
        # Now, and not while the application is imported, which is watched for what it leaves open.
        with contextlib.suppress(OSError):
            self._way_out()

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Write all of it, or keep it, or drop it: whole lines, if whole lines are given."""
        text = bytes(data)
        with self._lock:
            self.mid_line = not text.endswith(b"\n") if text else self.mid_line
            if self.patient:
                self._write_all(text)
            elif len(self.kept) + len(text) > KEPT:
                self.lost += max(1, text.count(b"\n"))
            else:
                self.kept += text
        if not self.patient:
            self.pass_on()
        return len(text)

    def pass_on(self) -> None:
        """Write what is kept, as far as there is room, and tell what was lost once all of it is written."""
        with self._lock:
            self._write_kept()
            lost = 0 if self.kept else self.lost
            self.lost -= lost
        if lost:
            log.warning("%d lines of output were dropped, since their reader was too slow", lost, code="log.dropped")

    def be_patient(self) -> None:
        self.patient = True
        if self._exit is not None:
            self._exit.close()
            self._exit = None

    def forget(self) -> None:
        """In a forked child: what is kept, the parent writes. Another thread of the parent may have held the lock."""
        self.kept.clear()
        self.lost, self._streams.next = 0, _NEVER
        self._lock = threading.RLock()

    def _write_all(self, text: bytes) -> None:
        # Its reader went away, or the disk is full: the writer is not at fault.
        with contextlib.suppress(OSError):
            while text:
                try:
                    text = text[os.write(self._descriptor, text) :]
                except BlockingIOError:
                    # Another process that shares it has made it one that does not wait.
                    room = select.poll()
                    room.register(self._descriptor, select.POLLOUT)
                    room.poll()

    def _write_kept(self) -> None:
        try:
            way = self._way_out() if self.kept else None
            while self.kept and way is not None:
                end = self.kept.rfind(b"\n", 0, PIECE) + 1 or PIECE
                written = way.write(bytes(self.kept[:end]))
                del self.kept[:written]
        except BlockingIOError:
            self._streams.next = min(self._streams.next, time.monotonic() + AGAIN)
        except OSError:
            # This will never be read.
            self.kept.clear()
            self.lost = 0

    def _way_out(self) -> _Exit:
        # The application may have put another file in its place, as a forked child does.
        found = os.fstat(self._descriptor)
        here = (found.st_dev, found.st_ino)
        if self._exit is None or self._exit.place != here:
            if self._exit is not None:
                self._exit.close()
            self._exit = _Exit(self._descriptor, found.st_mode, here)
        return self._exit


class _Exit:
    """How the file of this place is written to without waiting, and without a change of what others see of it."""

    def __init__(self, descriptor: int, mode: int, place: tuple[int, int]) -> None:
        self.place = place
        self._descriptor = descriptor
        self._own: int | None = None
        self._sock: socket.socket | None = None
        self._asks = stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
        if stat.S_ISSOCK(mode):
            self._sock = socket.socket(fileno=os.dup(descriptor))
        elif self._asks:
            # An open file of its own, which may have a mode of its own. Where the system does not give one, it is
            # asked before each write whether there is room: then another writer may take that room first.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_APPEND | os.O_CLOEXEC
                self._own = os.open(f"/proc/self/fd/{descriptor}", flags)

    def write(self, data: bytes) -> int:
        """Bytes written. Raises BlockingIOError: there is no room now. Raises OSError: no reader, or a full disk."""
        if self._sock is not None:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        if self._own is not None:
            return os.write(self._own, data)
        if self._asks and not select.select([], [self._descriptor], [], 0.0)[1]:
            raise BlockingIOError
        return os.write(self._descriptor, data)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        if self._own is not None:
            os.close(self._own)


class Streams:
    """Both streams of this process, after :meth:`install`; ``next``: when :meth:`pass_on` has something to do."""

    def __init__(self) -> None:
        self.next = _NEVER
        self._all: list[StandardStream] = []

    def install(self) -> None:
        """Put the streams in place. Twice is fine. A stream that the application has replaced stays."""
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            old = getattr(sys, name)
            ours = [stream.fileno() for stream in self._all]
            if not isinstance(old, io.TextIOWrapper) or descriptor in ours or old.fileno() != descriptor:
                continue
            old.flush()
            stream = StandardStream(descriptor, self)
            buffer: Any = stream
            new = io.TextIOWrapper(
                buffer,
                old.encoding,
                "backslashreplace",
                line_buffering=old.line_buffering,
                write_through=old.write_through,
            )
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
            self._all.append(stream)
            os.register_at_fork(after_in_child=stream.forget)

    def pass_on(self) -> None:
        self.next = _NEVER
        for stream in self._all:
            stream.pass_on()

    def be_patient(self) -> None:
        for stream in self._all:
            stream.be_patient()

    def drain(self, seconds: float = PATIENCE) -> None:
        """Before this process ends or becomes another program: write what is kept, and wait so long for a reader."""
        end = time.monotonic() + seconds
        self.pass_on()
        while self.next != _NEVER and time.monotonic() < end:
            time.sleep(AGAIN / 10)
            self.pass_on()


STREAMS = Streams()


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - what suppress() touches, each fork of one job would copy
            stream.flush()
        except Exception:  # noqa: BLE001, S110 - the application may have put anything in its place
            pass
