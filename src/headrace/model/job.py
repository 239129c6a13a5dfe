"""Facts about jobs: states, options, errors, what a claim and an outcome say. Pure records."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import msgspec

from headrace.errors import ResultMismatch
from headrace.model import codec
from headrace.model.ended import EndKind


class State(StrEnum):
    """Where a job is. Each state is one structure in the store, and a job is in exactly that one."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    BLOCKED = "blocked"
    STOPPED = "stopped"
    PARKED = "parked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.QUARANTINED, State.SKIPPED})


class JobError(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why a start did not succeed, as structured text (JSON in the record's ``error`` field).

    Attributes:
        type: qualified name of the exception, or ``Crashed``, ``HardTimeLimit``, ``Interrupted``, ``Expired``, ...
        message: text of the exception, capped.
        traceback: formatted traceback, capped from the front: the last lines tell.
        attempt: which start it was, from 1.
        signal: number of the signal that ended the process.
        exit_code: exit code of the process.
        peak_memory: peak resident memory of the process, bytes.
        stderr: last lines that the process wrote to stderr.
        worker: who ran it: ``host:pid``.
        sealed: the whole error, encrypted, where no text of it is shown: base 64.
        where: the innermost line of the application's own code in the traceback, such as ``tasks.py:8 in mean``.
    """

    type: str
    message: str = ""
    traceback: str = ""
    attempt: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    peak_memory: int | None = None
    stderr: str = ""
    worker: str = ""
    where: str = ""
    sealed: str = ""

    @property
    def brief(self) -> str:
        """Its type without the module, and the first line of its message."""
        kind, message = self.type.rpartition(".")[2], next(iter(self.message.splitlines()), "")
        return f"{kind}: {message}" if message else kind


MESSAGE_CAP = 4_000
TRACEBACK_CAP = 16_000

# Microseconds of waiting that one level of priority is worth: a ready job is scored by when it became ready, less that.
HEAD_START = 600_000_000
MOST_PRIORITY = 100


class Input(msgspec.Struct, frozen=True, array_like=True):
    """What a node gets from one of its parents.

    Attributes:
        id, name, task, state: of the parent.
        output: MessagePack of what it returned; of None where it returned nothing.
    """

    id: str
    name: str
    task: str
    state: str
    output: bytes

    @property
    def value(self) -> Any:
        """What it returned. Raises ResultMismatch: it cannot be read."""
        try:
            return codec.decode(self.output)
        except (msgspec.MsgspecError, ValueError) as error:
            raise ResultMismatch(f"what {self.name} returned cannot be read: {error}") from None


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job leased to a dispatcher; also what it sends to a runner.

    Attributes:
        id, token: the job and the fencing token of this start (server microseconds, strictly increasing).
        number: of the start among those of its dispatcher: the token, while all of these are of one shard.
        queue: where it came from.
        ready: microseconds of server time when it became ready; 0: unknown, since the reply to its claim was lost.
        task, args, options, key: as enqueued, undecoded: the record may hold unreadable bytes.
        failures, crashes, interruptions, snoozes, limited: how earlier starts of it ended.
        once: at most one start.
        expires: microseconds of server time after which it must not start; 0: never.
        parents, facts: of a workflow's node: whose outputs it takes (four digits each), and what only Python reads.
        inputs: those outputs, in edge order; empty until the dispatcher has read them.
        priority: as enqueued; 0 for what is not a priority.
        journaled: how many earlier starts are in its journal; above 0, the end of this one belongs there, too.
        headers: as enqueued, undecoded; empty for none.
        cost: of how many starts it uses up the rates of its limits.
        lane: the lane that it left, which names its limits and their values; empty: it has none.
        logged: an earlier start wrote log lines.
    """

    id: str
    token: int
    queue: str
    ready: int
    task: str
    args: bytes
    number: int = 0
    options: bytes = b""
    key: str = ""
    failures: int = 0
    crashes: int = 0
    interruptions: int = 0
    snoozes: int = 0
    once: bool = False
    expires: int = 0
    parents: str = ""
    facts: bytes = b""
    inputs: tuple[Input, ...] = ()
    priority: int = 0
    journaled: int = 0
    headers: bytes = b""
    cost: int = 1
    limited: int = 0
    lane: str = ""
    logged: bool = False

    @property
    def waited(self) -> int | None:
        """Microseconds from ready to this start; None: unknown. After a crash a job lines up where it stood before."""
        known = self.ready and not (self.crashes or self.interruptions or self.limited)
        return max(0, self.token - self.ready) if known else None

    @property
    def score(self) -> int:
        """Where it stood in its queue, and lines up again when it is released; 0 where ``ready`` is unknown."""
        return self.ready - self.priority * HEAD_START if self.ready else 0

    @property
    def attempt(self) -> int:
        return 1 + self.failures + self.crashes + self.interruptions + self.snoozes + self.limited


class StartNote(msgspec.Struct, frozen=True):
    """What the journal of a job learns of one start from the dispatcher that ran it.

    Attributes:
        id: of the job.
        ready: microseconds of server time when the job became ready; 0: unknown.
        error: type and first line of the error; empty where there is none.
        signal, exit_code: how the process of the start ended; 0 and -1 where it did not end.
    """

    id: str
    ready: int
    error: str = ""
    signal: int = 0
    exit_code: int = -1


# The amount of a success that is not kept, and has no log to remove.
NO_LOG = -1


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How one start ended; the dispatcher sends them in batches to ``settle``.

    Attributes:
        id, token: which start.
        kind, data, amount: of a :class:`headrace.model.ended.Ended`, as the store takes them, or ``NO_LOG``.
    """

    id: str
    token: int
    kind: EndKind
    data: bytes = b""
    amount: int = 0


def error_json(error: JobError) -> bytes:
    return msgspec.json.encode(error)


def parse_error(data: bytes | None) -> JobError | None:
    """The stored error; unreadable bytes become an error that says so rather than raise."""
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=JobError)
    except (msgspec.MsgspecError, ValueError):
        return JobError(type="Corrupt", message=f"the stored error is not readable: {data[:200]!r}")


# Bytes of an error's first line that the journal of a job keeps.
JOURNAL_LINE = 200


def type_and_first_line(error: JobError) -> str:
    line = next(iter(error.message.splitlines()), "")
    text = f"{error.type}: {line}" if line else error.type
    return text.encode("utf-8", "backslashreplace")[:JOURNAL_LINE].decode("utf-8", "ignore")


def number(value: Any) -> int:
    """An integer of a record's field; 0 where it is absent, unreadable, or larger than what is passed on can hold."""
    if value is None:
        return 0
    try:
        found = int(value)
    except (TypeError, ValueError):
        return 0
    return found if found.bit_length() < 63 else 0


# As far away as a score can be told exactly: the year 2255.
_FAR = 2.0**53


def moment(value: Any) -> int:
    """A score in microseconds, whatever the store holds: 0 for none and for what is not a number, else at least 1."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0
    return 0 if found == 0 or math.isnan(found) else int(min(max(found, 1.0), _FAR))


def priority_of(value: Any) -> int:
    """The priority that a record's field says; 0 where it is absent, unreadable or out of range."""
    found = number(value)
    return found if -MOST_PRIORITY <= found <= MOST_PRIORITY else 0


def ready_at(score: int, priority: int) -> int:
    """When a job became ready, microseconds, of its score in its queue; 0 for a score that is unknown."""
    return score + priority * HEAD_START if score else 0
