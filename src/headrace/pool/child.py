"""The process behind a member: reads calls, runs them in its main thread, one at a time, answers.

Each byte of a large body is received where it stays, so a frame costs time in proportion to its size. Imports little,
since each process of a pool imports it. Functions arrive as ``module`` and name, arguments and results in pickle's
form: both ends are one program of one user, joined by a socket pair that no other process can open.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
from functools import partial
from typing import Any, NamedTuple

# A mark that no text begins with, what it is, the number of its call, and the length of what follows.
HEADER = struct.Struct("!4sBIQ")
MARK = b"\x00\xf9hr"
CALL, READY, FAILED, RESULT, ERROR, DEFERRED = KINDS = range(6)

# Bytes that one read takes; a frame that does not fit has a buffer of its own.
_CHUNK = 1 << 18
# Bodies up to this size are sent together with their header.
_SMALL = 1 << 16


class GarbledFrame(Exception):
    """The bytes are no frame: something else wrote into the socket."""


class Frame(NamedTuple):
    kind: int
    number: int
    body: bytes | memoryview


def head(kind: int, number: int, body: bytes) -> bytes:
    return HEADER.pack(MARK, kind, number, len(body))


def send(sock: socket.socket, kind: int, number: int, body: bytes) -> None:
    header = head(kind, number, body)
    if len(body) <= _SMALL:
        sock.sendall(header + body)
    else:
        sock.sendall(header)
        sock.sendall(body)


class Frames:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._got = b""

    def next(self) -> Frame | None:
        """Wait for the next whole frame; None at the end of the stream. Raises GarbledFrame: it cannot be a frame."""
        while len(self._got) < HEADER.size:
            if not MARK.startswith(self._got[: len(MARK)]):
                raise GarbledFrame
            data = self._sock.recv(_CHUNK)
            if not data:
                return None
            self._got = self._got + data if self._got else data
        mark, kind, number, length = HEADER.unpack_from(self._got)
        if mark != MARK or kind not in KINDS:
            raise GarbledFrame
        end = HEADER.size + length
        if len(self._got) >= end:
            body, self._got = self._got[HEADER.size : end], self._got[end:]
            return Frame(kind, number, body)
        large = self._large(length)
        return None if large is None else Frame(kind, number, large)

    def _large(self, length: int) -> memoryview | None:
        try:
            body = memoryview(bytearray(length))
        except (MemoryError, OverflowError):
            raise GarbledFrame from None
        filled = len(self._got) - HEADER.size
        body[:filled] = self._got[HEADER.size :]
        self._got = b""
        while filled < length:
            count = self._sock.recv_into(body[filled:])
            if not count:
                return None
            filled += count
        return body


_dumps = pickle.dumps
_loads = pickle.loads


class RemoteTraceback(Exception):
    """The cause of an error that was raised in another process: its traceback there, as a text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Answers:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._open = 0
        self._none_open = threading.Condition(self._lock)

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        with self._lock:
            send(self._sock, kind, number, body)

    def give(self, number: int, result: object, error: BaseException | None) -> None:
        if error is None:
            try:
                body = _dumps(result, 5)
            except Exception as unsendable:  # noqa: BLE001 - user-defined pickling may raise anything
                error = _unsendable(f"the result, a {type(result).__name__},", unsendable)
            else:
                self.send(RESULT, number, body)
                return
        self.send(ERROR, number, _packed(error))

    def put_off(self, number: int, later: Any) -> None:
        with self._lock:
            self._open += 1
        self.send(DEFERRED, number)
        later.future.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, future: Any) -> None:
        error = future.exception()
        self.give(number, None if error else future.result(), error)
        with self._none_open:
            self._open -= 1
            self._none_open.notify_all()

    def wait(self) -> None:
        with self._none_open:
            self._none_open.wait_for(lambda: not self._open)


def main(sock: socket.socket, leash: socket.socket, start: bytes) -> None:
    """Serve until the pool closes its end. The other end of the leash is closed when the pool's process is gone."""
    # A group of its own: a kill takes the children of calls along, never the pool's process; a Ctrl-C is the pool's.
    os.setpgid(0, 0)
    # What a call starts or forks must not hold the sockets open: the pool would not see this process die.
    for each in (sock, leash):
        each.set_inheritable(False)
        os.register_at_fork(after_in_child=each.close)
    _die_with(leash)
    # Those of the fork server are not ours to run.
    atexit._clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - as multiprocessing does from 3.13 on
    answers = Answers(sock)
    calls = Calls(sock, answers)
    try:
        initializer, initargs = _loads(start)
        if initializer is not None:
            initializer(*initargs)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process cannot serve
        traceback.print_exc()
        answers.send(FAILED, 0, f"its initializer raised {type(error).__name__}: {error}".encode(errors="replace"))
        return
    # A Ctrl-C ends the running call and nothing else, unless the initializer has said what it does.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, calls.interrupt)
    answers.send(READY, 0)
    try:
        calls.serve()
    except (BrokenPipeError, ConnectionResetError):
        return  # the pool's process is gone, and with it all who would want an answer
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the same


def _die_with(leash: socket.socket) -> None:
    """Have the kernel kill this process's group with the leash, also while a call keeps the interpreter. Linux only."""
    if sys.platform == "linux":
        fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(leash, fcntl.F_SETFL, os.O_ASYNC)
        with contextlib.suppress(BlockingIOError):
            leash.recv(1, socket.MSG_DONTWAIT)
            os._exit(1)  # it was closed before


class Calls:
    def __init__(self, sock: socket.socket, answers: Answers) -> None:
        self._frames = Frames(sock)
        self._answers = answers
        self._running = False

    def serve(self) -> None:
        while (frame := self._frames.next()) is not None:
            self._run(frame.number, frame.body)
            del frame  # nothing large is kept while the process waits
        self._answers.wait()

    def interrupt(self, *_: object) -> None:
        if self._running:
            # Once: a second one must not hit what the first one ends with.
            self._running = False
            raise KeyboardInterrupt

    def _run(self, number: int, body: bytes | memoryview) -> None:
        result, error = None, None
        try:
            try:
                self._running = True
                fn, args, kwargs = _loads(body)
                result = fn(*args, **kwargs)
            finally:
                self._running = False
        except BaseException as raised:  # noqa: BLE001 - the caller gets it, whatever it is
            error = raised
        if type(result).__name__ == "DeferredResult" and type(result).__module__ == "headrace.pool.threads":
            self._answers.put_off(number, result)
        else:
            self._answers.give(number, result, error)


def run_chunk(fn: Any, sets: list[tuple[Any, ...]]) -> list[Any]:
    return [fn(*each) for each in sets]


def _packed(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        body = _dumps((error, text), 5)
        _loads(body)
    except Exception as unsendable:  # noqa: BLE001 - user-defined pickling may raise anything
        body = _dumps((_unsendable(f"the error, {type(error).__name__}: {error},", unsendable), text), 5)
    return body


def _unsendable(what: str, why: BaseException) -> BaseException:
    from headrace.errors import ArgumentError

    return ArgumentError(f"{what} cannot be sent from the member's process: {why}; return plain values")
