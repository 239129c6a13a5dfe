"""Frames over a stream: whole whatever pieces they come in, and each byte of a large one received where it stays."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Pool
from headrace.errors import MemberDied
from headrace.pool.child import (
    HEADER,
    MARK,
    RESULT,
    Frame,
    Frames,
    GarbledFrame,
    head,
    send,
)
from tests.pool import chores


class Dribble:
    """A socket that gives what it has in pieces, and remembers where they were put."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data = memoryview(data)
        self._most = most
        self.copied = 0
        self.places: set[int] = set()

    def _take(self, room: int) -> memoryview:
        piece, self._data = self._data[: min(self._most, room)], self._data[min(self._most, room) :]
        return piece

    def recv(self, room: int) -> bytes:
        piece = bytes(self._take(room))
        self.copied += len(piece)
        return piece

    def recv_into(self, place: memoryview) -> int:
        piece = self._take(len(place))
        place[: len(piece)] = piece
        self.places.add(id(place.obj))
        return len(piece)


@pytest.mark.parametrize("most", [1, 7, 4096, 1 << 20])
def test_frames_are_whole_in_whatever_pieces_they_come(most: int) -> None:
    dice = random.Random(most)
    bodies = [dice.randbytes(size) for size in (0, 1, 13, 300_000, 5, 0, 4096, 70_000, 2)]
    stream = b"".join(head(RESULT, number, body) + body for number, body in enumerate(bodies))
    frames = Frames(Dribble(stream, most))  # type: ignore[arg-type]
    assert [frames.next() for _ in bodies] == [Frame(RESULT, number, body) for number, body in enumerate(bodies)]
    assert frames.next() is None


def test_a_large_frame_is_received_where_it_stays() -> None:
    """Joining what comes to what came before copies 64 MB some 300 times."""
    body = bytes(8 << 20)
    stream = Dribble(head(RESULT, 1, body) + body, 1 << 16)
    frame = Frames(stream).next()  # type: ignore[arg-type]
    assert frame is not None
    assert frame.body == body
    assert stream.copied <= 1 << 16, "only the piece with the header"
    assert stream.places == {id(frame.body.obj)}  # type: ignore[union-attr]


def test_what_was_sent_arrives() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        body = os.urandom(3 << 20)
        threading.Thread(target=send, args=(ours, RESULT, 7, body)).start()
        assert Frames(theirs).next() == Frame(RESULT, 7, body)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"a",
        b"a line\n" * 10,
        bytes(20),
        # A kind, and a length that memory has room for: it would be waited for.
        b"\x03" + b"a line\n" * 10,
        HEADER.pack(MARK, RESULT, 0, 1 << 63),
        HEADER.pack(MARK, 99, 0, 0),
    ],
)
def test_what_is_no_frame_is_not_waited_for(rubbish: bytes) -> None:
    with pytest.raises(GarbledFrame):
        Frames(Dribble(rubbish, 4096)).next()  # type: ignore[arg-type]


def test_a_call_that_writes_into_foreign_descriptors_is_told_so(make: Callable[..., Pool]) -> None:
    pool: Any = make(1, kind="process")
    with pytest.raises(MemberDied, match="must not use foreign descriptors"):
        pool.call(chores.scribble, timeout=60)
    assert pool.call(chores.double, 2) == 4
