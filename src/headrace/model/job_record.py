"""A stored job as people and handles read it. Pure.

Lists of jobs are read far more often than the values of their jobs. So a value is decoded when it is asked for; one
that cannot be read raises then, and never breaks the list.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from headrace.errors import ArgumentError, CorruptRecord, ResultMismatch
from headrace.model import codec
from headrace.model.codec import NONE, PLAIN, SLOT, STRICT, TOO_DEEP, Position, encode, refuse
from headrace.model.headers import NO_HEADERS
from headrace.model.job import JobError, State, number
from headrace.model.notation import EPOCH, Moment, utc


class Slotted:
    """Encodes values in which some stand for what is not known yet, each as a slot.

    Attributes:
        met: how many slots were written so far.
    """

    def __init__(self, position: Position, further: Callable[[Any], Any] = refuse) -> None:
        """``position``: the place of what a value stands for; None: plain. ``further``: what is sent for others."""
        self.met = 0
        self._position = position
        self._further = further
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._slot)

    def encode(self, value: object, limit: int, what: str) -> bytes:
        met = self.met
        data = encode(value, limit, what, self._encoder)
        if self.met != met:
            try:
                STRICT.decode(data)
            except RecursionError:
                raise ArgumentError(f"{what} cannot be sent: {TOO_DEEP}") from None
            except msgspec.DecodeError:
                raise ArgumentError(
                    f"{what}: a node cannot be the key of a dictionary, nor can a record; make it a value"
                ) from None
        return data

    def _slot(self, value: object) -> Any:
        position = self._position(value)
        if position is None:
            return self._further(value)
        self.met += 1
        return slot(position)


def slot(position: int) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(SLOT, position.to_bytes(max(1, (position.bit_length() + 7) // 8), "big"))


def fill(data: bytes, outputs: Sequence[bytes]) -> bytes:
    """Arguments with each slot replaced by the output of the parent that it names. ``outputs``: MessagePack of each
    parent's output, in edge order; empty where there is none: it becomes None. Raises CorruptRecord: no definition
    wrote these bytes, or there are fewer parents than it had. Raises ArgumentError: they are nested too deeply.
    """

    def put(code: int, payload: memoryview) -> Any:
        if code != SLOT:
            return msgspec.msgpack.Ext(code, bytes(payload))
        return msgspec.Raw(outputs[int.from_bytes(payload, "big")] or NONE)

    try:
        return PLAIN.encode(msgspec.msgpack.Decoder(ext_hook=put).decode(codec.signed_parts(data)[0]))
    except RecursionError:
        raise ArgumentError(f"the arguments of a node, with its parents' outputs, are {TOO_DEEP}") from None
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError) as error:
        raise CorruptRecord(
            f"the stored arguments of a node cannot be filled ({error}): another program wrote or cut them"
        ) from None


def has_slots(arguments: bytes) -> bool:
    met: list[int] = []
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        msgspec.msgpack.Decoder(ext_hook=lambda code, payload: met.append(code)).decode(arguments)  # noqa: ARG005
    return SLOT in met


# The journal of a job keeps this many of its first starts, and this many in all.
JOURNAL_FIRST = 3
JOURNAL_KEPT = 10

_journal = msgspec.msgpack.Decoder(list[tuple[int, int, int, str, str, str, int, int]])


class ValueReader(Protocol):
    """What makes values of the stored arguments and result of a task's jobs."""

    @property
    def secrets(self) -> str: ...

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]: ...
    def unpack_result(self, data: bytes) -> Any: ...
    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]: ...


class PlainReader:
    """Reads jobs of a task whose code is elsewhere: numbers, texts, bytes, lists and dictionaries."""

    secrets = ""

    def __init__(self, task: str) -> None:
        self.task = task

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = codec.stored_arguments(self.task, data)
        return tuple(args), kwargs

    def unpack_result(self, data: bytes) -> Any:
        try:
            return codec.decode(data or codec.NONE)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ResultMismatch(f"the stored result of {self.task} is not MessagePack: {error}") from None

    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {str(n): value for n, value in enumerate(args, 1)} | kwargs


Finder = Callable[[str], ValueReader]


@dataclass(frozen=True, slots=True)
class Record:
    """A job as stored, for people and for handles.

    Each time is there twice: as a datetime in UTC (``finished``), None when it was not reached, and as microseconds of
    server time (``finished_us``), 0 when it was not. ``args``, ``kwargs``, ``arguments`` and ``result`` are decoded
    when they are asked for, with the annotations of the task where the application has it. Arguments of a workflow's
    node that parents give are plain, with a :class:`headrace.model.codec.ParentOutput` for what is to come.

    Attributes:
        packed_args: ``[args, kwargs]`` as stored; :attr:`form` says how.
        packed_result: MessagePack; None: there is no result.
        progress: what ``current_job().progress(share, text, data)`` said last.
        progress_text: the text of that.
        created_us: when its id was made.
        started_us: when the current or last start was claimed (its fencing token); 0 where none began: a claim may come
            to nothing, as that of a parked job does.
        due_us: when a scheduled job becomes ready; when a ready one did.
        attempts: the starts that have ended, if the first of them did not succeed: the first three and the last seven.
        headers: texts by name that travel with the job.
        note: the text for people that its enqueue gave; empty: none.
        unique: the name of a unique job; empty: it has none.
        swallowed: the exception that a middleware swallowed in the start that succeeded; None: there was none.
        left_out: bytes of arguments that stayed in the store, since a list was read; 0: none did.
        fields: every field that was read, undecoded.
        finder: gives what reads the values of a task's jobs; None: they are read plain.
    """

    id: str
    state: State
    task: str
    queue: str
    packed_args: bytes = field(repr=False)
    options: bytes
    priority: int
    key: str
    created_us: int
    due_us: int
    started_us: int
    finished_us: int
    expires_us: int
    failures: int
    crashes: int
    interruptions: int
    snoozes: int
    limited: int
    owner: str
    packed_result: bytes | None = field(repr=False)
    error: JobError | None
    progress: float | None
    progress_text: str
    fields: dict[str, bytes] = field(repr=False)
    attempts: tuple[AttemptRecord, ...] = ()
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    note: str = ""
    unique: str = ""
    swallowed: JobError | None = None
    left_out: int = 0
    finder: Finder | None = field(default=None, repr=False, compare=False)

    due = Moment()
    started = Moment()
    finished = Moment()
    expires = Moment()

    @property
    def attempt(self) -> int:
        """How many starts there were, the current one included; 0 before the first."""
        ended = self.failures + self.crashes + self.interruptions + self.snoozes + self.limited
        known = ended + (1 if self.state in (State.RUNNING, State.SUCCEEDED) else 0)
        # A start that was cancelled is counted nowhere, but its error says which it was.
        return max(known, self.error.attempt or 0) if self.error is not None else known

    @property
    def created(self) -> datetime:
        """When its id was made; 1970 for what is not an id of a job."""
        return utc(self.created_us) or EPOCH

    @property
    def after(self) -> tuple[str, ...]:
        """The ids of the jobs that it follows."""
        return tuple(self.fields.get("after", b"").decode().split())

    @property
    def form(self) -> Literal["msgpack", "json"]:
        """How its arguments are stored: as JSON where they were given as JSON."""
        return "json" if codec.is_json(self.packed_args) else "msgpack"

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments by position, decoded at each access. Raises ArgumentError: they do not fit the task as it is
        here; ``fields["args"]`` has the bytes. Or a list left them in the store: :attr:`left_out`. Raises
        CorruptRecord: no enqueue wrote these bytes.
        """
        return self._unpacked()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The arguments by name; see :attr:`args`."""
        return self._unpacked()[1]

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by the names of the task's parameters, without defaults; see :attr:`args`. Where the task is
        not known here, those by position are called by their number: ``1``, ``2``, ...
        """
        return self._reader.by_name(*self._unpacked())

    @property
    def result(self) -> Any:
        """What the task returned, decoded at each access; None, too, while there is no result: :attr:`state` tells.
        Raises ResultMismatch: it does not fit the return annotation; ``fields["result"]`` has the bytes.
        """
        if self.packed_result is None:
            return None
        reader = PlainReader(self.task) if codec.holds_sealed(self.packed_result) else self._reader
        return reader.unpack_result(self.packed_result)

    @property
    def progress_data(self) -> Any:
        """The data of the newest progress, as JSON has it, decoded at each access; None: there is none."""
        data = self.fields.get("data")
        return None if data is None else msgspec.json.decode(data)

    @property
    def version(self) -> str:
        """Which state of the job this is: another one after each change that :meth:`Job.events` gives. It begins with
        the number of the newest progress, which grows as long as the job is stored.
        """
        get = self.fields.get
        return f"{number(get('said'))}-{number(get('token')):x}-{self.state}"

    @property
    def secrets(self) -> str:
        """Where its secret values stand; see :mod:`headrace.model.hidden_values`."""
        return f"{self.fields.get('secrets', b'').decode('utf-8', 'replace')} {self._reader.secrets}".strip()

    def read_with(self, finder: Finder) -> Record:
        """The same record, whose values are read by what ``finder`` gives for its task."""
        return replace(self, finder=finder)

    def _unpacked(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.left_out:
            raise ArgumentError(f"a list reads no arguments of {self.left_out:,} bytes: app.jobs.get({self.id!r}) does")
        # What is to come from parents has no type yet; what is encrypted reads as a text that says so.
        plain = has_slots(self.packed_args) or codec.holds_sealed(self.packed_args)
        reader = PlainReader(self.task) if plain else self._reader
        return reader.unpack(self.packed_args)

    @property
    def _reader(self) -> ValueReader:
        return PlainReader(self.task) if self.finder is None else self.finder(self.task)


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a job that has ended, as the job's journal keeps it.

    Each time is there twice, as in :class:`Record`.

    Attributes:
        number: which start of the job it was, from 1; starts before a retry by hand count, too.
        ready_us: when the job became ready for it; 0: unknown, since its worker died.
        started_us, ended_us: when it was claimed, and when its end was stored.
        worker: where it ran: ``host:pid``.
        outcome: failed, retry, snoozed, limited, interrupted, crashed, cancelled, corrupt, skipped, grown or succeeded.
        error: type and first line of the error; empty where there is none.
        signal: number of the signal that ended its process.
        exit_code: exit code of its process.
    """

    number: int
    ready_us: int
    started_us: int
    ended_us: int
    worker: str
    outcome: str
    error: str = ""
    signal: int | None = None
    exit_code: int | None = None

    ready = Moment()
    started = Moment()
    ended = Moment()


def parse_journal(data: bytes | None, count: int) -> tuple[AttemptRecord, ...]:
    """The starts that a journal keeps, in order; none where it is unreadable. ``count``: how many were added to it."""
    if not data:
        return ()
    try:
        rows = _journal.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ()
    left_out = max(0, count - len(rows))
    return tuple(
        AttemptRecord(
            number=n + 1 if n < JOURNAL_FIRST else n + 1 + left_out, ready_us=ready, started_us=started, ended_us=ended,
            worker=worker, outcome=outcome, error=error, signal=signal or None, exit_code=None if code < 0 else code,
        )
        for n, (ready, started, ended, worker, outcome, error, signal, code) in enumerate(rows)
    )  # fmt: skip


T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A piece of a list, itself a sequence of its rows.

    Attributes:
        rows: what is listed. Fewer than asked for when a filter passed over most of those looked at.
        count: how many the whole list has.
        next: what to give as ``after`` for the next page; None when there is no more.
    """

    rows: Sequence[T]
    count: int
    next: str | None

    def __iter__(self) -> Iterator[T]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, n: int) -> T:
        return self.rows[n]


# Bytes of a message that tell one cause from another where no line of the user's code is known. Headrace's own errors
# name ids behind these, since each id would be a cause.
HEAD = 80

_LINE = re.compile(rb":[0-9]+ in ")
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
_NUMBER = re.compile(rb"[0-9]+")


def fingerprint(error: JobError | None) -> tuple[str, str]:
    """What kind of error it is, and where: numbers of lines and numbers in messages do not count."""
    if error is None:
        return "", ""
    if error.signal is not None:
        return f"signal {error.signal}", ""
    where = _LINE.sub(b" in ", _bytes(error.where))
    where = where or _NUMBER.sub(b"#", _ADDRESS.sub(b"#", _bytes(error.message)[:HEAD]))
    return error.type, where.decode("utf-8", "surrogateescape")


def cause_id(task: str, error: JobError | None) -> str:
    text = b"\n".join(map(_bytes, (task, *fingerprint(error))))
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
