"""Channels between two processes of a worker: frames of MessagePack over stream sockets, and tickets in a pipe.

Tickets decide who owns work that was sent ahead to a runner. The dispatcher writes a ticket of two bytes for each job
into a pipe, *before* it sends the job; the runner reads one before it starts a job; the dispatcher takes work back by
reading tickets. The kernel gives each to exactly one of them, so a job is started or taken back, never both and never
neither; and those left in a dead runner's pipe say which jobs it had not started. Taken back are the last jobs sent.

A ticket can overtake recalls, since they travel apart; the runner would then start a recalled job with the ticket of a
later one. So each ticket says how many recalls came before it, and the runner waits for them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from array import array
from collections import deque
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

# A frame begins with the length of its message, and with that length again in another form: a job that writes rubbish
# into a socket is found out by the next eight bytes, instead of being waited for.
_HEAD = struct.Struct("!II")
_CHECK = 0x48527631
# Bytes of one message at most. What jobs send is capped far below this by the settings.
MOST_BYTES = 1 << 30
_encode = msgspec.msgpack.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return _HEAD.pack(len(body), len(body) ^ _CHECK) + body


class Closed(Exception):
    """The other end of a channel is gone."""


class Garbled(Exception):
    """The other end of a channel sent what is not a message."""


@cache
def decoder(reads: object) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(reads)


class Channel(Generic[T]):
    """Frames over a stream socket; reads messages of type ``T``. Not thread-safe.

    Attributes:
        closed: on this side.
        garbled: what arrived last is not a message; nothing can be read any more.
        descriptors: those that came along.
    """

    def __init__(self, sock: socket.socket, reads: object) -> None:
        self.sock = sock
        self.closed = False
        self.garbled = False
        self.descriptors: deque[int] = deque()
        self._decoder: msgspec.msgpack.Decoder[T] = decoder(reads)
        self._buffer = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: msgspec.Struct, descriptors: list[int] | None = None) -> None:
        """Send all of it, behind what was kept, waiting for room. Raises Closed: the other end reads no more."""
        data = frame(message)
        if self._unsent:
            data, self._unsent = bytes(self._unsent) + data, bytearray()
        try:
            if descriptors:
                sent = socket.send_fds(self.sock, [data], descriptors)
                data = data[sent:]
            if data:
                self.sock.sendall(data)
        except OSError as error:
            raise Closed from error

    def wait_for_room(self) -> None:
        """Wait until a small message can most likely be sent without waiting, or the other end reads no more."""
        room = select.poll()
        room.register(self.sock, select.POLLOUT)
        room.poll()

    def keep(self, message: msgspec.Struct) -> int:
        """Keep a message for the next :meth:`send` or :meth:`flush`; how many bytes are kept."""
        self._unsent += frame(message)
        return len(self._unsent)

    def send_or_keep(self, message: msgspec.Struct) -> None:
        self._unsent += frame(message)
        self.flush()

    def send_or_drop(self, data: bytes) -> None:
        if not self._unsent:
            try:  # noqa: SIM105 - a dispatcher that was just woken pays for each function that it calls
                self.sock.send(data, socket.MSG_DONTWAIT)
            except OSError:
                pass

    @property
    def torn(self) -> bool:
        return bool(self._buffer)

    @property
    def full(self) -> bool:
        return bool(self._unsent)

    def flush(self, *, wait: bool = False) -> bool:
        """Send what was kept; True when nothing is left. Raises Closed: the other end reads no more."""
        try:
            while self._unsent:
                sent = self.sock.send(self._unsent, 0 if wait else socket.MSG_DONTWAIT)
                del self._unsent[:sent]
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed from error
        return True

    def receive(self, *, wait: bool, most: int = 1 << 16) -> list[T]:
        """The messages in the first ``most`` bytes that have arrived; with ``wait``, at least one. Raises Closed: the
        other end is gone. Raises Garbled: it sent what is not a message. Every message before that was returned.
        """
        if self.garbled:
            raise Garbled
        while True:
            try:
                data = self.sock.recv(most, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError as error:
                raise Closed from error
            if not data:
                raise Closed
            self._buffer += data
            messages = self._parse()
            if messages or not wait:
                return messages

    def receive_with_descriptors(self) -> list[T]:
        """As :meth:`receive` without waiting; descriptors that came along are appended to ``descriptors``."""
        fds = array("i")
        try:
            # Not recv_fds: that of some versions of Python forgets the flags, and waits.
            data, aside, _, _ = self.sock.recvmsg(1 << 16, socket.CMSG_LEN(64 * fds.itemsize), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Closed from error
        for level, kind, packed in aside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(packed[: len(packed) - len(packed) % fds.itemsize])
        self.descriptors.extend(fds)
        if not data:
            raise Closed
        self._buffer += data
        return self._parse()

    def _parse(self) -> list[T]:
        messages: list[T] = []
        buffer, start = self._buffer, 0
        view = memoryview(buffer)
        try:
            while len(buffer) - start >= 8:
                length, check = _HEAD.unpack_from(buffer, start)
                if length ^ check != _CHECK or length > MOST_BYTES:
                    self.garbled = True
                    break
                end = start + 8 + length
                if len(buffer) < end:
                    break
                messages.append(self._decoder.decode(view[start + 8 : end]))
                start = end
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.garbled = True
        finally:
            view.release()
        if self.garbled and not messages:
            raise Garbled
        del buffer[:start]
        return messages

    def close(self) -> None:
        self.closed = True
        with contextlib.suppress(OSError):
            self.sock.close()


WHOLE = 1 << 20
"""Bytes that are more than a socket holds: what was sent last may be a stop, behind a whole window of jobs."""
SIZE = 2
"""Bytes of a ticket."""
_COUNTS = 1 << 8 * SIZE


def take_ticket(descriptor: int) -> int | None:
    """Runner: the right to start one job, once as many recalls as it says (modulo 65,536) have arrived; None: it was
    taken back. Raises Closed: the other end gives no more tickets.
    """
    try:
        ticket = os.read(descriptor, SIZE)
    except BlockingIOError:
        return None
    if not ticket:
        raise Closed
    return number(ticket)


def number(ticket: bytes) -> int:
    return int.from_bytes(ticket, "little")


def early(ticket: int, heard: int) -> bool:
    """Runner: whether a ticket has overtaken recalls. Fewer than 32,768 are under way, each a message in a socket."""
    return 0 < (ticket - heard) % _COUNTS < _COUNTS // 2


def take_back(descriptor: int, most: int) -> int:
    """Dispatcher: take back the right to start up to ``most`` jobs; how many were still to be had."""
    try:
        return len(os.read(descriptor, SIZE * most)) // SIZE if most > 0 else 0
    except BlockingIOError:
        return 0


def give_tickets(descriptor: int, count: int, recalls: int) -> None:
    """Dispatcher: allow ``count`` more starts, before sending the jobs. Never waits: a window fits into any pipe."""
    os.write(descriptor, (recalls % _COUNTS).to_bytes(SIZE, "little") * count)
