"""A member that is a process: the pool's side of its socket. Owns the process, its socket and the thread that reads it.

The thread that books a call writes it to the socket; the reading thread completes it, writes the next one, and starts
another process when this one ends. Processes are forked from Python's fork server, a process of a single thread that
never ran the program's code: a fork of this one, with its threads, could take a held lock along.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import pickle
import signal
import socket
import threading
from _thread import start_new_thread
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from queue import Empty
from typing import Any

from headrace.clock import monotonic
from headrace.errors import ArgumentError, MemberDied
from headrace.mailbox import Mailbox
from headrace.pool import members
from headrace.pool.child import CALL, DEFERRED, ERROR, FAILED, READY, Frames, GarbledFrame, RemoteTraceback, head, main
from headrace.pool.members import Members
from headrace.pool.state import Call, Member, MemberThread, settle

# The exit handler of multiprocessing, which this import registers, waits for our processes, and these wait for us.
import_module("multiprocessing.util")
members.before_others()

# The bookkeeping of multiprocessing is not made for several threads that start and reap at once: one of them may be
# told a wrong exit code.
_nursery = threading.Lock()


def _in_fork() -> None:
    global _nursery
    _nursery = threading.Lock()
    server = vars(forkserver._forkserver)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if server["_forkserver_alive_fd"] is not None:
        os.close(server["_forkserver_alive_fd"])
    server.update(_forkserver_alive_fd=None, _forkserver_address=None, _forkserver_pid=None, _lock=threading.Lock())
    tracker = vars(resource_tracker._resource_tracker)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    tracker["_lock"] = threading.RLock()
    # A look at one of its parent's would take away what the parent is to be told of its end.
    vars(multiprocessing.process)["_children"].clear()


os.register_at_fork(after_in_child=_in_fork)

# Seconds that a process may take to end after it was told to, or closed its socket.
_PATIENCE = 5.0


def born(name: str, sock: socket.socket, leash: socket.socket, start: bytes) -> ForkServerProcess:
    with sock, leash, _nursery:
        process = multiprocessing.get_context("forkserver").Process(target=main, args=(sock, leash, start), name=name)
        process.start()
    return process


def reaped(process: ForkServerProcess, pid: int) -> int:
    """The exit code of a process that was told to end; after a while it is killed."""
    end = monotonic() + _PATIENCE
    while True:
        with _nursery:
            process.join(0)
            code = process.exitcode
        if code is not None:
            return code
        if monotonic() > end:
            kill_group(pid)
            end += _PATIENCE
        threading.Event().wait(0.002)


def kill_group(pid: int, *, alone: bool = True) -> None:
    """Kill a process and what it started; before it has made its group, just itself."""
    if pid <= 0 or pid == os.getpgid(0):
        return
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        if alone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def packed(what: str, *parts: object) -> bytes:
    """The pickle of a call or initializer. Raises ArgumentError: it cannot travel."""
    try:
        return pickle.dumps(parts, 5)
    except Exception as error:
        raise ArgumentError(
            f"{what} cannot be sent to another process: {error}; functions are sent by name, so define them at the top "
            "of a module, and pass plain values"
        ) from error


class ProcessBody:
    def __init__(self, owner: Members, member: Member) -> None:
        self.pid = 0
        self._owner = owner
        self._scheduler = owner.scheduler
        self._member = member
        options = owner.options
        self._start = packed("initializer=", options.initializer, options.initargs)
        self._process: ForkServerProcess | None = None
        # Guards the socket and what was sent on it: a call that was booked just as the process died is sent once.
        self._sending = threading.Lock()
        self._sock: socket.socket | None = None
        # Our ends of what joins us to it: the socket, and the leash that ends it when this process is gone.
        self._ours: tuple[socket.socket, ...] = ()
        self._number = 0
        # The frame of the running call until all of it is sent, and how much was sent at once.
        self._going = b""
        self._sent = 0
        self._deferred: dict[int, Call[Any]] = {}
        self._thread: MemberThread | None = None
        self._hurry: Mailbox[None] = Mailbox()
        self._killed = ""
        self._stopping = False

    def start(self) -> None:
        self._thread = MemberThread(self._live, f"{self._owner.name}-{self._member.id}")
        self._thread.thread.start()

    def deliver(self, call: Call[Any]) -> bool:
        if not (call.begun or call.begin()):
            return False
        with self._sending:
            sock = self._sock
            if sock is None or self._member.running is not call:
                return True
            if not call.sent:
                self._number += 1
                body = call.data or b""
                self._going = head(CALL, self._number & 0xFFFFFFFF, body) + body
                call.sent = True
                try:
                    self._sent = sock.send(self._going, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    self._sent = 0
                except OSError:
                    call.sent, self._going = False, b""
                    return True
                call.data = None
            if self._sent >= len(self._going):
                self._going = b""
                return True
        try:
            # Large arguments wait for the process to read them; who submitted them does not.
            start_new_thread(self._push, (sock,))
        except RuntimeError:  # there is no room for a thread, and half a call must not stay in the socket
            self._push(sock)
        return True

    def _push(self, sock: socket.socket) -> None:
        with self._sending:
            if sock is not self._sock:
                return
            rest, self._going = memoryview(self._going)[self._sent :], b""
        with contextlib.suppress(OSError):
            sock.sendall(rest)

    def leave(self) -> None:
        self._stopping = True
        self._hurry.put(None)
        with self._sending:
            if self._sock is not None:
                # It reads to the end, and ends.
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)

    def kill(self, reason: str) -> None:
        self._killed = reason
        self._stopping = self._stopping or self._member.leaving
        self._hurry.put(None)
        with self._sending:
            if self._sock is not None and self.pid:
                kill_group(self.pid)
                # Something that it started may live on elsewhere and hold its end open.
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)

    def interrupt(self) -> None:
        with self._sending:
            running = self._member.running
            if self._sock is not None and self.pid > 0 and running is not None and running.sent:
                # What the call started is interrupted as well, as by a terminal.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGINT)

    def join(self, timeout: float | None) -> bool:
        return self._thread is None or self._thread.join(timeout)

    def where(self) -> str:
        return ""

    def disown(self) -> None:
        self._thread = None
        self._sock = None
        self._sending = threading.Lock()
        for each in self._ours:
            each.close()

    def _read(self, sock: socket.socket) -> str:
        said, frames = "", Frames(sock)
        while True:
            try:
                frame = frames.next()
            except OSError:
                return said
            except GarbledFrame:
                return "what it wrote into its socket is not an answer: a call must not use foreign descriptors"
            if frame is None:
                return said
            if frame.kind == FAILED:
                said = bytes(frame.body).decode(errors="replace")
            elif frame.kind == READY:
                self._first()
            else:
                self._answered(*frame)
            del frame  # nothing large is kept while this thread waits

    def _first(self) -> None:
        self._scheduler.go_on(self._member, self._owner.ready(self._member))
        if self._member.leaving and self._member.running is None:
            self.leave()

    def _answered(self, kind: int, number: int, body: bytes | memoryview) -> None:
        call = self._deferred.pop(number, None)
        if call is not None:
            settle(call, *_opened(kind, body))
            return
        member = self._member
        call = member.running
        if call is None or number != self._number & 0xFFFFFFFF:
            return
        if kind == DEFERRED:
            self._deferred[number] = call
        # Callbacks run in this thread, which does not read the socket then: the next call is not sent before they end.
        watched = call.watched
        if watched and kind != DEFERRED:
            settle(call, *_opened(kind, body))
        # It works on the next one while this thread completes the last.
        self._scheduler.go_on(member, self._scheduler.finish(member, call))
        if not watched and kind != DEFERRED:
            settle(call, *_opened(kind, body))
        if member.leaving and member.running is None:
            self.leave()

    def _live(self) -> None:
        member, owner = self._member, self._owner
        delay: float | None = 0.0
        while delay is not None:
            if not self._wait(delay):
                break
            said = self._incarnation()
            reason = self._killed or said
            if not reason and self._stopping:
                break
            if not self._stopping:
                self._killed = ""
            delay = owner.lost(member, reason or "it ended")
            deferred, self._deferred = self._deferred, {}
            for call in deferred.values():
                text = f"member {member.id} ended ({reason}) before it gave the answer that it had put off"
                settle(call, None, MemberDied(text, member.id, reason))
        owner.gone(member, "left" if self._stopping and not self._killed else "")

    def _wait(self, delay: float) -> bool:
        end = monotonic() + delay
        while not self._scheduler.unneeded(self._member):
            if monotonic() >= end:
                return True
            with contextlib.suppress(Empty):
                self._hurry.get(0.1)
        return False

    def _incarnation(self) -> str:
        with contextlib.ExitStack() as ends:
            try:
                # The leash is let go of last: a process that leaves in order is not to be killed for it.
                leash, its_leash = map(ends.enter_context, socket.socketpair())
                sock, its_sock = map(ends.enter_context, socket.socketpair())
                self._ours = (sock, leash)
                process = born(f"{self._owner.name}-{self._member.id}", its_sock, its_leash, self._start)
            except (OSError, EOFError, RuntimeError) as error:
                return f"it could not be started: {type(error).__name__}: {error}"
            with self._sending:
                self._process, self._sock = process, sock
                self.pid = process.pid or 0
            if self._killed and self._stopping:
                kill_group(self.pid)
            said = self._read(sock)
            with self._sending:
                # From here on nothing is sent, and what was not sent stays booked.
                self._sock = None
            sock.close()
            orderly = self._stopping and not said
            if not orderly:
                kill_group(self.pid, alone=False)
            if said:
                return said
            code = reaped(process, self.pid)
            self.pid = 0
            name = next((known.name for known in signal.Signals if known == -code), "unknown")
            if code < 0:
                return f"signal {-code}, {name}"
            return "" if orderly and code == 0 else f"exit code {code}"


def _opened(kind: int, body: bytes | memoryview) -> tuple[object, BaseException | None]:
    try:
        if kind != ERROR:
            return pickle.loads(body), None  # noqa: S301 - from our own process, over a socket that only we two have
        error, text = pickle.loads(body)  # noqa: S301 - as above
    except Exception as unreadable:  # noqa: BLE001 - user-defined pickling may raise anything
        return None, ArgumentError(f"the call's result cannot be read here: {unreadable}; return plain values")
    error.__cause__ = RemoteTraceback(text)
    return None, error
