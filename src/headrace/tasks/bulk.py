"""Many jobs at once: a stream of unsent jobs in chunks, one round trip each, in memory that does not grow with it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace.errors import ArgumentError, EnvelopeError, OptionsError
from headrace.model.form import NewJob
from headrace.model.ids import make_ids, shard_of
from headrace.model.signature import Unchecked
from headrace.protocol.durability import Asked, Confirmer
from headrace.protocol.produce import CHUNK, Accepted
from headrace.store.client import Client
from headrace.tasks.app_context import AppContext
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.submission import UnsentJob, Verb, asubmit, submit

# A chunk is sent early when its arguments take this many bytes: a thousand large jobs must not make one huge request.
CHUNK_BYTES = 1 << 20

T = TypeVar("T")
Unsent = Iterable[UnsentJob[Any]]
Packed = Iterable[bytes]

_NOTHING = Accepted("")
# What a job says that leaves its durability to the application.
_UNASKED: tuple[Asked] = (("", 0),)


class Receipt(NamedTuple):
    """What became of one envelope.

    Attributes:
        id: of the job in the envelope.
        stored: whether the job was stored now; False: it is a duplicate of a job that is or was stored.
        job_id: id of the job that is stored: that of the envelope, or of the job that its request id had made before.
    """

    id: str
    stored: bool
    job_id: str


class Chunk(msgspec.Struct):
    """What is stored in one round trip.

    Attributes:
        requests: of each row, as :func:`headrace.protocol.produce.enqueue` takes them.
        accepted: the store's answer.
    """

    rows: list[NewJob]
    requests: Sequence[str]
    accepted: Accepted = _NOTHING


class ChunkStream:
    """Unsent jobs that wait for their chunk to be full.

    Attributes:
        stored: how many jobs the store has taken.
        receipts: what became of each, where that is wanted.
        verb: the one that streams.
        confirmer: of the chunks that are stored; the last may not be confirmed yet.
        wish: the option ``after_commit`` of the jobs that wait here; an envelope is stored at once.
    """

    def __init__(self, verb: Verb, *, receipts: bool = False) -> None:
        self.stored = 0
        self.receipts: list[Receipt] | None = [] if receipts else None
        self.verb: Verb = verb
        self.confirmer = Confirmer(streams=True)
        self.wish: object = False if receipts else None
        self._jobs: list[UnsentJob[Any]] = []
        # Stored, and not confirmed yet.
        self._open: list[UnsentJob[Any]] = []
        self._bound: Any = None
        self._asked: set[Asked] = set()
        self._ids: set[str] = set()
        self._bytes = 0

    def add(self, job: UnsentJob[Any]) -> bool:
        """Take one more; True when the chunk is full."""
        self._jobs.append(job)
        if job.bound is not self._bound:
            self._bound = job.bound
            if self.receipts is None:
                self.wish = job.bound.wish
            self._asked.update(job.bound.asked or _UNASKED)
        if self.receipts is not None:
            self._ids.add(job.drawn)
        self._bytes += len(job.args) + len(job.form.headers)
        return len(self._jobs) >= CHUNK or self._bytes >= CHUNK_BYTES

    @contextmanager
    def chunk(self, client: Client) -> Generator[Chunk, None, None]:
        """What to store in the block. If that fails, it may be stored or not: it is asked for by id from then on."""
        shard = 0 if client.count == 1 else client.shard_for("")
        ids = make_ids(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(7)) >> 1, len(self._jobs), shard)
        taken: list[UnsentJob[Any]] = []
        try:
            rows: list[NewJob] = []
            for job, id in zip(self._jobs, ids, strict=True):
                rows.append(job.take(id if client.count == 1 else job.bound.placed(id, job.name)))
                taken.append(job)
            wishes = [job.wish for job in taken]
            self.confirmer.asked = None if self._asked == set(_UNASKED) else self._asked
            chunk = Chunk(rows, wishes if any(wishes) else ())
            yield chunk
        except BaseException:
            for job in taken:
                job.untaken()
            raise
        self._told(taken, chunk.accepted)
        self._open = taken if self.confirmer.open else []
        self._jobs.clear()
        self._ids.clear()
        self._asked.clear()
        self._bytes, self._bound = 0, None

    def _told(self, taken: list[UnsentJob[Any]], accepted: Accepted) -> None:
        earlier = accepted.duplicates
        for job in taken if accepted.moved else ():
            job.drawn = job.stored = accepted.moved.get(job.drawn, job.drawn)
        self.stored += len(taken) - len(earlier)
        for job in taken if earlier else ():
            job.stored = earlier.get(job.drawn, job.drawn)
        if self.receipts is not None:
            self.receipts += [Receipt(job.drawn, job.drawn not in earlier, job.stored) for job in taken]

    def holds(self, job: UnsentJob[Any]) -> bool:
        """Whether this chunk must go before the job joins. A job of its id waits here, and what becomes of the second
        is known when the first is stored; or those that wait go to another transaction. Raises ArgumentError: it is not
        an unsent job.
        """
        if not isinstance(job, UnsentJob):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"{self.verb} takes jobs made by task.job(...), not {type(job).__name__}")
        if job.bound is not self._bound and self._jobs and self.receipts is None and job.bound.wish != self.wish:
            return True
        return self.receipts is not None and job.drawn in self._ids

    def __bool__(self) -> bool:
        return bool(self._jobs)

    @contextmanager
    def told(self) -> Generator[None, None, None]:
        try:
            yield
        except Exception as error:
            self.stored -= sum(job.stored == job.drawn for job in self._open)
            for job in self._open:
                job.untaken()
            error.add_note(f"{self.verb} had stored {self.stored:,} jobs before this")
            raise


def enqueue_many(client: Client, jobs: Unsent) -> int:
    stream = ChunkStream("enqueue_many")
    _store(client, stream, jobs)
    return stream.stored


async def aenqueue_many(client: Client, jobs: Unsent | AsyncIterable[UnsentJob[Any]]) -> int:
    stream = ChunkStream("enqueue_many")
    await _astore(client, stream, _each(stream.verb, jobs))
    return stream.stored


def enqueue_packed(context: AppContext, envelopes: Packed) -> list[Receipt]:
    stream = ChunkStream("enqueue_packed", receipts=True)
    opened = _opener(context)
    _store(context.client, stream, (opened(data, row) for row, data in enumerate(_many(stream.verb, envelopes))))
    return stream.receipts or []


async def aenqueue_packed(context: AppContext, envelopes: Packed | AsyncIterable[bytes]) -> list[Receipt]:
    stream = ChunkStream("enqueue_packed", receipts=True)
    opened = _opener(context)

    async def jobs() -> AsyncIterator[UnsentJob[Any]]:
        row = 0
        async for data in _each(stream.verb, envelopes):
            yield opened(data, row)
            row += 1

    await _astore(context.client, stream, jobs())
    return stream.receipts or []


def _store(client: Client, stream: ChunkStream, jobs: Unsent) -> None:
    with stream.told():
        for job in _many(stream.verb, jobs):
            if stream.holds(job):
                _send(client, stream)
            if stream.add(job):
                _send(client, stream)
        if stream:
            _send(client, stream)
        if stream.confirmer.own:
            client.confirm(stream.confirmer)


def _send(client: Client, stream: ChunkStream) -> None:
    with stream.chunk(client) as chunk:
        chunk.accepted = submit(client, stream.verb, chunk.rows, chunk.requests, stream.confirmer, stream.wish)


async def _astore(client: Client, stream: ChunkStream, jobs: AsyncIterable[UnsentJob[Any]]) -> None:
    with stream.told():
        async for job in jobs:
            if stream.holds(job):
                await _asend(client, stream)
            if stream.add(job):
                await _asend(client, stream)
        if stream:
            await _asend(client, stream)
        if stream.confirmer.own:
            await client.aconfirm(stream.confirmer)


async def _asend(client: Client, stream: ChunkStream) -> None:
    with stream.chunk(client) as chunk:
        chunk.accepted = await asubmit(client, stream.verb, chunk.rows, chunk.requests, stream.confirmer, stream.wish)


def _opener(context: AppContext) -> Callable[[object, int], UnsentJob[Any]]:
    # Loaded at first use: a program without envelopes must not pay for them.
    from headrace.tasks.envelope import EnvelopeReader

    client = context.client
    encrypting = client.keys.seal is not None and client.keys.seal.encrypting
    reader = EnvelopeReader(client.settings.max_payload, client.count)

    def opened(data: object, row: int) -> UnsentJob[Any]:
        letter = reader.read(data, row)
        bound: BoundTask[..., Any] = BoundTask(context, Unchecked(letter.form.task, context.types), letter.options)
        form, rule = letter.form, letter.form.unique
        if encrypting:
            # Its writer may not know what the task hides.
            places = context.tasks.get(form.task, bound).hidden_places
            form = msgspec.structs.replace(form, secrets=f"{form.secrets} {places}".strip())
        name = rule.text if rule else ""
        if client.count > 1 and (name or form.ordered):
            _check_place(bound, letter.id, name, row)
        return UnsentJob(bound, letter.args, form, letter.options.request_id, letter.id, shared=True, name=name)

    return opened


def _check_place(bound: BoundTask[..., Any], id: str, name: str, row: int) -> None:
    try:
        if shard_of(bound.draw(name)) == shard_of(id):
            return
        why = "its id names another shard than its key or unique name has: make it with task.job(...).pack()"
    except OptionsError as error:
        why = str(error)
    raise EnvelopeError(f"envelope {row} (job {id}) cannot be stored: {why}", row)


async def _each(verb: Verb, given: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(given, AsyncIterable):
        async for one in given:
            yield one
    else:
        for one in _many(verb, given):
            yield one


def _many(verb: Verb, given: Any) -> Iterable[Any]:
    kind = type(given).__name__
    if isinstance(given, Iterable):
        return given  # pyright: ignore[reportUnknownVariableType]
    hint = f"; await app.a{verb}(...) takes what is asynchronous" if isinstance(given, AsyncIterable) else ""
    raise ArgumentError(f"{verb} takes a list or another iterable, not {kind}{hint}")
