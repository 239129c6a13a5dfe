"""The form of what a pool and its processes say to each other: a header, then a body. Owns neither end.

Each byte of a large body is received where it stays, so a frame costs time in proportion to its size.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

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
    """Send a frame, and wait for room if need be."""
    header = head(kind, number, body)
    if len(body) <= _SMALL:
        sock.sendall(header + body)
    else:
        sock.sendall(header)
        sock.sendall(body)


class Frames:
    """The frames that come over one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._got = b""

    def next(self) -> Frame | None:
        """Wait for the next whole frame; None at the end of the stream.

        Raises:
            OSError: the connection is broken.
            GarbledFrame: what came cannot be a frame.
        """
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
        if len(self._got) < end:
            return self._large(kind, number, length)
        body, self._got = self._got[HEADER.size : end], self._got[end:]
        return Frame(kind, number, body)

    def _large(self, kind: int, number: int, length: int) -> Frame | None:
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
        return Frame(kind, number, body)
