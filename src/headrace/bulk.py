"""Many jobs at once: a stream of drafts in chunks, one round trip each, in memory that does not grow with it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from headrace.client import Client
from headrace.errors import ArgumentError
from headrace.job import NewJob
from headrace.keys import make_ids
from headrace.protocol.produce import CHUNK
from headrace.task import Draft

# A chunk is sent early when its arguments take this many bytes: a thousand large jobs must not make one huge request.
CHUNK_BYTES = 1 << 20

Drafts = Iterable[Draft[Any]]


class Stream:
    """Drafts that wait for their chunk to be full.

    Attributes:
        stored: how many jobs the store has taken.
    """

    def __init__(self) -> None:
        self.stored = 0
        self._drafts: list[Draft[Any]] = []
        self._bytes = 0

    def add(self, draft: Draft[Any]) -> bool:
        """Take one more; True when the chunk is full."""
        if not isinstance(draft, Draft):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"enqueue_many takes jobs made by task.job(...), not {type(draft).__name__}")
        self._drafts.append(draft)
        self._bytes += len(draft.args) + len(draft.form.headers)
        return len(self._drafts) >= CHUNK or self._bytes >= CHUNK_BYTES

    @contextmanager
    def chunk(self) -> Generator[list[NewJob], None, None]:
        """Rows to store in the block. When it fails, their drafts have no id: nobody knows whether they are stored."""
        ids = make_ids(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(7)) >> 1, len(self._drafts))
        taken: list[Draft[Any]] = []
        try:
            rows: list[NewJob] = []
            for draft, id in zip(self._drafts, ids, strict=True):
                rows.append(draft.take(id))
                taken.append(draft)
            yield rows
        except BaseException:
            for draft in taken:
                draft.id = ""
            raise
        self.stored += len(taken)
        self._drafts.clear()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._drafts)

    @contextmanager
    def told(self) -> Generator[None, None, None]:
        """Whatever ends the stream early says how far it came."""
        try:
            yield
        except Exception as error:
            error.add_note(f"enqueue_many had stored {self.stored:,} jobs before this")
            raise


def enqueue_many(client: Client, drafts: Drafts) -> int:
    """See :meth:`headrace.app.Headrace.enqueue_many`."""
    stream = Stream()
    with stream.told():
        for draft in drafts:
            if stream.add(draft):
                with stream.chunk() as rows:
                    client.submit(rows)
        if stream:
            with stream.chunk() as rows:
                client.submit(rows)
    return stream.stored


async def aenqueue_many(client: Client, drafts: Drafts | AsyncIterable[Draft[Any]]) -> int:
    """See :meth:`headrace.app.Headrace.enqueue_many`."""
    stream = Stream()
    with stream.told():
        async for draft in _each(drafts):
            if stream.add(draft):
                with stream.chunk() as rows:
                    await client.asubmit(rows)
        if stream:
            with stream.chunk() as rows:
                await client.asubmit(rows)
    return stream.stored


async def _each(drafts: Drafts | AsyncIterable[Draft[Any]]) -> AsyncIterable[Draft[Any]]:
    if isinstance(drafts, AsyncIterable):
        async for draft in drafts:
            yield draft
    else:
        for draft in drafts:
            yield draft
