"""A bulk operation: a verb on all jobs that a filter means, and how far it is. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import State
from headrace.model.job_record import Record
from headrace.model.option_checks import is_name

# The built-in task that does bulk operations.
BULK_TASK = "headrace.bulk"

# The states whose jobs each verb is for.
VERBS: Mapping[str, tuple[str, ...]] = {
    "retry": ("failed", "quarantined", "cancelled", "succeeded"),
    "cancel": ("ready", "scheduled", "parked"),
    "delete": ("failed", "quarantined", "cancelled", "succeeded", "ready", "scheduled", "parked"),
}
_CAUSE = re.compile(r"[0-9a-f]{16}")


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs a verb is for.

    Attributes:
        state: theirs. Ready jobs need a queue, parked ones a task.
        queue, task, key, cause: only theirs; empty: any.
    """

    state: str
    queue: str = ""
    task: str = ""
    key: str = ""
    cause: str = ""

    def check(self, verb: str) -> None:
        """Refuse what no bulk operation can be. Raises OptionsError: it cannot."""
        if verb not in VERBS:
            raise OptionsError(f"there is no verb {verb!r} for many jobs: there are {', '.join(VERBS)}")
        if self.state not in VERBS[verb]:
            raise OptionsError(f"{verb} is for jobs that are {', '.join(VERBS[verb])}, not {self.state!r}")
        for kind, name, needed in (("queue", self.queue, "ready"), ("task", self.task, "parked")):
            if name:
                check_name(kind, name)
            elif self.state == needed:
                raise OptionsError(f"name the {kind} of the {needed} jobs: these are listed by {kind}")
        if self.key and not is_name(self.key):
            raise OptionsError(f"key must be a text of 1 to 256 characters, not {self.key!r:.80}")
        if self.cause and not _CAUSE.fullmatch(self.cause):
            raise OptionsError(f"{self.cause!r:.80} is not the name of a cause, which has 16 hexadecimal digits")
        if self.cause and self.state not in ("failed", "quarantined"):
            raise OptionsError("only failed and quarantined jobs have a cause")

    @property
    def words(self) -> str:
        names = ("state", "queue", "task", "key", "cause")
        return " ".join(f"{name}:{getattr(self, name)}" for name in names if getattr(self, name))

    @property
    def whole(self) -> bool:
        """Whether all jobs of one structure are meant, so that they need not be looked at to be counted."""
        return not (self.key or self.cause) and (
            not self.task if self.state == "ready" else not self.queue if self.state == "parked"
            else not (self.task or self.queue)
        )  # fmt: skip


class BulkProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a bulk operation is, as the store keeps it.

    Attributes:
        ended: whether no job is left to look at.
        looked, done: jobs that were looked at, and on which the verb was done.
        reasons: why others refused, each followed by how many did.
        cursor: where the next piece begins.
    """

    ended: int = 0
    looked: int = 0
    done: int = 0
    reasons: list[str | int] = msgspec.field(default_factory=list[str | int])
    cursor: msgspec.Raw = msgspec.Raw(b"\xc0")

    @property
    def refused(self) -> dict[str, int]:
        return dict(zip(map(str, self.reasons[::2]), map(int, self.reasons[1::2]), strict=True))

    @property
    def words(self) -> str:
        refused = "".join(f", {count:,} refused ({why})" for why, count in sorted(self.refused.items()))
        return f"{self.done:,} done{refused}"


_progress = msgspec.msgpack.Decoder(BulkProgress).decode


def progress_of(told: bytes) -> BulkProgress:
    """How far an operation is, of what the store tells; nothing is done where that cannot be read."""
    try:
        return _progress(told) if told else BulkProgress()
    except msgspec.MsgspecError:
        return BulkProgress()


def added(parts: Sequence[BulkProgress]) -> BulkProgress:
    """How far the parts of an operation are together. They share no cursor."""
    if len(parts) == 1:
        return parts[0]
    refused: Counter[str] = Counter()
    for part in parts:
        refused.update(part.refused)
    reasons: list[str | int] = [word for pair in refused.items() for word in pair]
    ended = int(all(part.ended for part in parts))
    return BulkProgress(ended, sum(part.looked for part in parts), sum(part.done for part in parts), reasons)


class BulkRequest(msgspec.Struct, frozen=True):
    """The arguments of the job that does a bulk operation.

    Attributes:
        verb: ``retry``, ``cancel`` or ``delete``.
        which: for which jobs.
        bound_us: jobs that came to their state later are left alone; microseconds.
        rate: jobs a second at most; 0: as fast as pieces are done.
        total: how many were counted before; ``exact`` says whether these were all.
        who, by: who began it, and by which means.
    """

    verb: str
    which: JobFilter
    bound_us: int
    rate: int
    total: int
    exact: bool
    who: str
    by: str


class BulkOperation(msgspec.Struct, frozen=True):
    """A verb on many jobs, and how far it is.

    Attributes:
        id: of the job that does it.
        state: of that job.
        request: what was asked for.
        progress: how far it is, on all shards.
        ended_us: when it ended; 0: not yet.
    """

    id: str
    state: State
    request: BulkRequest
    progress: BulkProgress
    ended_us: int

    @property
    def running(self) -> bool:
        return not self.state.final

    @property
    def words(self) -> str:
        return self.progress.words


_request = msgspec.msgpack.Decoder(tuple[list[msgspec.Raw], BulkRequest]).decode


def operation_of(record: Record) -> BulkOperation | None:
    if record.task != BULK_TASK:
        return None
    try:
        request = _request(record.packed_args)[1]
    except msgspec.MsgspecError:
        return None
    progress = progress_of(record.fields.get("bulk", b""))
    return BulkOperation(record.id, record.state, request, progress, record.finished_us)


def whole_of(parts: Sequence[BulkOperation]) -> BulkOperation:
    """An operation, of its parts on each shard, home first. It runs while one of them does."""
    worst = min(parts, key=lambda part: (part.state.final, part.state == State.SUCCEEDED))
    ended = 0 if worst.running else max(part.ended_us for part in parts)
    return BulkOperation(parts[0].id, worst.state, parts[0].request, added([part.progress for part in parts]), ended)
