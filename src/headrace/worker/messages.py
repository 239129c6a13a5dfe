"""What supervisor, dispatcher and runners say to each other: frames of MessagePack over socket pairs, and tickets.

Owns the form of messages only. Every message is a tagged array, so an unknown one fails at decoding, not later.

**Tickets** decide who owns work that was sent ahead to a process runner. For each job the dispatcher writes one byte
into a pipe, *before* it sends the job; the runner reads one byte before it starts a job; the dispatcher, which holds
the read end too, takes work back by reading bytes. The kernel gives each byte to exactly one of them, so a job is
started by the runner or taken back, never both and never neither; and the bytes left in a dead runner's pipe say which
jobs it had not started. Taken back are always the last jobs sent.

A ticket can overtake the recalls that were sent before it, since they travel apart; the runner would then start a
recalled job with the ticket of a later one. So each ticket says how many recalls came before it, and the runner waits
for them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from array import array
from collections import deque
from functools import cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from headrace.model.job import Claim

Kind = str  # "process" | "fork" | "thread" | "async"


class Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    """Dispatcher to runner: start these, in this order."""

    claims: list[Claim]


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """Dispatcher to runner: forget the last ``count`` jobs sent; their tickets were taken back."""

    count: int


class Up(msgspec.Struct, frozen=True, array_like=True, tag="up"):
    """Runner to dispatcher: the application's code for its start has run. Sent by those that were said to start."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Dispatcher to runner: this start is to stop. All reasons but ``shutdown`` raise in its code."""

    token: int
    reason: Literal["shutdown", "interrupt", "cancel", "soft"]


class Exit(msgspec.Struct, frozen=True, array_like=True, tag="exit"):
    """Dispatcher to runner: leave when what you hold is done. Forker to dispatcher: I leave."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done", gc=False):
    """Runner to dispatcher: a start ended. ``kind``, ``data`` and ``amount`` as in :class:`headrace.model.job.Outcome`.

    Attributes:
        cost: microseconds that the runner was busy with it, its own work included.
        memory: peak resident memory of the runner so far, bytes; 0 when not measured.
    """

    token: int
    kind: str
    data: bytes
    amount: int
    cost: int
    memory: int


class Fell(msgspec.Struct, frozen=True, array_like=True, tag="fell"):
    """Forker to dispatcher: its child ended without saying how its job did; fields as in :class:`Died`."""

    signal: int
    code: int
    memory: int


class Say(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    """Runner to dispatcher: progress (None: unchanged), log lines, and what was swallowed, of a running start."""

    token: int
    progress: float | None
    text: str
    lines: tuple[str, ...]
    swallowed: str = ""


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """Runner to dispatcher, before the end of a start: what was done in it that each new runner does again.

    Attributes:
        born: microseconds from the fork until the runner was ready; 0 when that was told before.
        first: whether this start was watched as the first of its task here.
        imports: modules that its code imported, with microseconds.
        early: the same of what runs outside of jobs, such as hooks.
        functions: ``module:function`` of what may be set-up that it spent time below, with microseconds.
    """

    token: int
    born: int
    first: bool
    imports: list[tuple[str, int]]
    early: list[tuple[str, int]]
    functions: list[tuple[str, int]]


class Spawn(msgspec.Struct, frozen=True, array_like=True, tag="spawn"):
    """Dispatcher to supervisor: fork a runner; ``profile``: it notes what is done again in it."""

    kind: Kind
    profile: bool = False


class Signal(msgspec.Struct, frozen=True, array_like=True, tag="signal"):
    """Dispatcher to supervisor: ``stop`` interrupts the runner's main thread, ``kill`` ends its process group."""

    runner: int
    what: str


class Size(msgspec.Struct, frozen=True, array_like=True, tag="size"):
    """From now on so many of a kind at once.

    Dispatcher to supervisor: somebody wished so; the next dispatcher starts with that. Supervisor to dispatcher: the
    image before this one was told so.
    """

    kind: Kind
    size: int


class Resize(msgspec.Struct, frozen=True, array_like=True, tag="resize"):
    """Supervisor to dispatcher: have so many runners more, or fewer."""

    by: int


class Owner(msgspec.Struct, frozen=True, array_like=True, tag="owner"):
    """Dispatcher to supervisor: the incarnation that my successor must take over from."""

    owner: str


class Spawned(msgspec.Struct, frozen=True, array_like=True, tag="spawned"):
    """Supervisor to dispatcher: a runner; comes with four descriptors: socket, tickets (read, write), its stderr.

    Attributes:
        forker: it runs no job itself, but forks a child for each.
        starting: it runs code of the application first, and says :class:`Up` when it takes jobs.
    """

    runner: int
    kind: Kind
    pid: int
    forker: bool = False
    starting: bool = False


class Died(msgspec.Struct, frozen=True, array_like=True, tag="died"):
    """Supervisor to dispatcher: a runner was reaped. ``signal`` and ``code`` are 0 when they do not apply."""

    runner: int
    signal: int
    code: int
    memory: int


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """Supervisor to dispatcher: stop claiming, finish, hand back the rest after the timeout; ``now``: at once."""

    now: bool


ToRunner = Run | Recall | Stop | Exit
FromRunner = Done | Say | Found | Fell | Exit | Up
ToSupervisor = Spawn | Signal | Owner | Size
FromSupervisor = Spawned | Died | Drain | Resize | Size

T = TypeVar("T")

# A frame begins with the length of its message, and with that length again in another form: whoever writes rubbish
# into a socket is found out by the next eight bytes, instead of being waited for.
_HEAD = struct.Struct("!II")
_CHECK = 0x48527631
# Bytes of one message at most. What jobs send is capped far below this by the settings.
MOST_BYTES = 1 << 30
_encode = msgspec.msgpack.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """A message as it is sent."""
    body = _encode(message)
    return _HEAD.pack(len(body), len(body) ^ _CHECK) + body


class Closed(Exception):
    """The other end of a channel is gone."""


class Garbled(Exception):
    """The other end of a channel sent what is no message."""


@cache
def decoder(reads: object) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of what one end reads, the same for all: to make one takes longer than a fork."""
    return msgspec.msgpack.Decoder(reads)


class Channel(Generic[T]):
    """Frames over a stream socket; reads messages of type ``T``.

    Not thread-safe; who shares one between threads locks around :meth:`send`.

    Attributes:
        closed: on this side.
        garbled: what arrived last is no message; nothing can be read any more.
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
        """Send all of it, waiting for room if need be.

        Raises:
            Closed: nobody reads any more.
        """
        data = frame(message)
        try:
            if descriptors:
                sent = socket.send_fds(self.sock, [data], descriptors)
                data = data[sent:]
            if data:
                self.sock.sendall(data)
        except OSError as error:
            raise Closed from error

    def offer(self, message: msgspec.Struct) -> None:
        """Send without waiting; what does not fit is kept for :meth:`flush`. For a loop that must never block."""
        self._unsent += frame(message)
        self.flush()

    @property
    def torn(self) -> bool:
        """Whether a part of a message has arrived."""
        return bool(self._buffer)

    @property
    def full(self) -> bool:
        """Whether something waits for :meth:`flush`."""
        return bool(self._unsent)

    def flush(self) -> bool:
        """Send what was kept; True when nothing is left.

        Raises:
            Closed: nobody reads any more.
        """
        try:
            while self._unsent:
                sent = self.sock.send(self._unsent, socket.MSG_DONTWAIT)
                del self._unsent[:sent]
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed from error
        return True

    def receive(self, *, wait: bool) -> list[T]:
        """The messages that have arrived; with ``wait``, at least one.

        Raises:
            Closed: the other end is gone and everything that it sent was returned before.
            Garbled: it sent what is no message; every message before that was returned.
        """
        if self.garbled:
            raise Garbled
        while True:
            try:
                data = self.sock.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except InterruptedError:
                continue
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


def take_ticket(descriptor: int) -> int | None:
    """Runner: the right to start one job; None when it was taken back. The descriptor does not block.

    Returns:
        how many recalls had been sent when it was given, modulo 256: start nothing before that many have arrived.

    Raises:
        Closed: nobody gives tickets any more.
    """
    try:
        ticket = os.read(descriptor, 1)
    except BlockingIOError:
        return None
    if not ticket:
        raise Closed
    return ticket[0]


def take_back(descriptor: int, most: int) -> int:
    """Dispatcher: take back the right to start up to ``most`` jobs; how many were still to be had."""
    try:
        return len(os.read(descriptor, most)) if most > 0 else 0
    except BlockingIOError:
        return 0


def give_tickets(descriptor: int, count: int, recalls: int) -> None:
    """Dispatcher: allow ``count`` more starts; call before sending the jobs. Windows stay far below a pipe's room.

    Args:
        recalls: how many recalls this runner was sent.
    """
    os.write(descriptor, bytes((recalls & 0xFF,)) * count)
