"""Calls of operators and of the workers' upkeep: everything that is not about one job; bulk operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.errors import OptionsError
from headrace.model.ids import check_name
from headrace.model.job import State, moment
from headrace.model.job_record import Record
from headrace.model.option_checks import is_name
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, blob, by_turns, done_and_next, load, text_of, text_pairs, texts_of

if TYPE_CHECKING:
    from headrace.model.environment import Sight

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


def total_progress(parts: Sequence[BulkProgress]) -> BulkProgress:
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
    return BulkOperation(
        parts[0].id, worst.state, parts[0].request, total_progress([part.progress for part in parts]), ended
    )


def tell_stacks(keys: Keys, owner: str, text: str) -> Call[bytes]:
    return load("stacks_tell").bind(keys, bytes, owner=owner, text=text)


def read_stacks(keys: Keys, owner: str) -> Call[bytes]:
    return load("stacks_read").bind(keys, bytes, owner=owner)


def pause(keys: Keys, queue: str, duration: int = 0, note: str = "") -> Call[bool]:
    """Stop claims of a queue for ``duration`` microseconds, or until ``resume``; False when it was paused already."""
    return load("pause").bind(keys, bool, queue=queue, duration=duration, note=note)


def resume(keys: Keys, queue: str) -> Call[bool]:
    """Allow claims of a queue again; False when it was not paused."""
    return load("resume").bind(keys, bool, queue=queue)


def resume_due(keys: Keys, limit: int) -> Call[tuple[int, int, int]]:
    """Resume at most 1000 queues whose pause has come to its end; how many, server time, when the next one ends."""
    return load("resume_due").bind(keys, done_and_next, limit=limit)


def sample(keys: Keys) -> Call[tuple[int, dict[str, int] | None]]:
    """Server time, and ready jobs of 1,000 queues at most; None: another dispatcher was told within this minute."""

    def parsed(reply: Any) -> tuple[int, dict[str, int] | None]:
        if len(reply) == 1:
            return reply[0], None
        names = iter(reply[1])
        return reply[0], {text_of(name): next(names) for name in names}

    return load("sample").bind(keys, parsed)


def paused(keys: Keys) -> Call[list[str]]:
    return load("paused").bind(keys, lambda reply: sorted(text_of(name) for name in reply))


def purge(keys: Keys, queue: str, limit: int = 1000) -> Call[tuple[int, int]]:
    """Delete up to ``limit`` ready jobs of a queue; returns how many, and how many are left."""
    return load("purge").bind(keys, lambda reply: (reply[0], reply[1]), queue=queue, limit=limit)


def command(keys: Keys, owner: str, word: str) -> Call[str]:
    """Say a word to a live incarnation: ``told``, ``silent`` (it lives, and is not connected just now) or ``gone``."""
    return load("command").bind(keys, bytes.decode, owner=owner, word=word)


def logs(keys: Keys, id: str, limit: int = 1000) -> Call[list[str]]:
    return load("logs").bind(keys, texts_of, id=id, limit=limit)


def server_info(keys: Keys) -> Call[Sight | None]:
    # Producers load no rules of the doctor.
    from headrace.model.environment import Sight, fields

    return load("server_info").bind(keys, lambda reply: Sight(fields(reply)) if reply else None)


class Greeting(msgspec.Struct, frozen=True):
    """A store's layout, and whether it is on its way to another: between two, no program may touch it.

    Attributes:
        place: its number among the shards, how many there are, and the store.
        to, source: the server that it is being moved to, or copied from; ``moved``: that was completed.
    """

    version: int
    moving: bool = False
    to: str = ""
    source: str = ""
    moved: bool = False
    place: str = "0 of 1"


def _greeting(reply: list[Any]) -> Greeting:
    version, moving, to, source, moved, place = reply
    return Greeting(version, bool(moving), to.decode(), source.decode(), bool(moved), place.decode())


def greet(keys: Keys, version: int, store: str = "", elsewhere: Sequence[str] = ()) -> Call[Greeting]:
    """Compare layouts; the store's version (below 1: none); an empty one takes ours. ``elsewhere``: other prefixes."""
    return load("greet").bind(
        keys, _greeting, version=version, number=keys.number, store=store, elsewhere=list(elsewhere)
    )


def store_own(
    keys: Keys, id: str, fields: Mapping[str, str | bytes | int], *, key: str = "", hook: str = "", was: str = "",
    at: str = "",
) -> Call[str]:  # fmt: skip
    """Store a job of a built-in task, and in the same script move the cursor of a ``hook`` from ``was`` to ``at``.

    Without an ``id`` only the cursor moves. Returns ``stored``; ``known``: a job has this id; ``moved``: the cursor was
    no longer there, and nothing is stored.
    """
    flat = [blob(part) if isinstance(part, bytes) else part for pair in fields.items() for part in pair]
    return load("own_store").bind(keys, bytes.decode, id=id, key=key, fields=flat, hook=hook, was=was, at=at)


class DueCall(msgspec.Struct, frozen=True):
    """A hook, and what it is to be called with.

    Attributes:
        was: its cursor.
        last: the last entry of the stream that was looked at, which the cursor moves to.
        rows: events behind the cursor: ids with their fields.
        due: False: its last call has not ended, or is too new.
    """

    was: str
    last: str
    rows: list[tuple[str, dict[str, str]]]
    due: bool


def due_calls(keys: Keys, hooks: Sequence[tuple[str, int, Sequence[str]]], limit: int) -> Call[list[DueCall]]:
    """What hooks are to be called with. Of each: stored name, least microseconds between two calls, kinds of events."""

    def parsed(reply: Any) -> list[DueCall]:
        return [
            DueCall(was.decode(), last.decode(), [(id.decode(), text_pairs(flat)) for id, flat in rows], bool(due))
            for was, last, rows, due in reply
        ]

    return load("own_calls").bind(keys, parsed, hooks=list(hooks), limit=limit, look=LOOK)


class CountedPiece(msgspec.Struct, frozen=True):
    """Of a piece of jobs: how many are meant, nodes of them, looked at, the cursor (None: the end), server time."""

    matched: int
    nodes: int
    looked: int
    last: tuple[str, str, str] | None
    now: int


def bulk_piece(keys: Keys, id: str, name: str, request: BulkRequest, ttl: int, limit: int, told: bytes) -> Call[bytes]:
    """Do the next piece of a bulk operation; returns how far it is, for :func:`progress_of` and as the next ``told``.
    ``id``: of its job, with which that is stored; empty: none. ``name`` is that of all pieces: a job that the operation
    has retried is not retried again. ``ttl``: microseconds that a cancelled job stays.
    """
    return load("bulk_piece").bind(
        keys, bytes, id=id, request=name, verb=request.verb, bound=request.bound_us, ttl=ttl, limit=limit,
        which=_parts(request.which), most=request.rate, told=told,
    )  # fmt: skip


def _parts(which: JobFilter) -> list[str]:
    return [which.state, which.queue, which.task, which.key, which.cause]


def count_meant(
    keys: Keys, which: JobFilter, limit: int, after: tuple[str, str, str] = ("", "", "")
) -> Call[CountedPiece]:
    """Count the jobs that a filter means among the next ``limit`` (at most 1000). O(limit)."""

    def parsed(reply: Any) -> CountedPiece:
        score, member, lane = (part.decode("utf-8", "surrogateescape") for part in reply[3:6])
        return CountedPiece(reply[0], reply[1], reply[2], (score, member, lane) if member else None, reply[6])

    return load("bulk_count").bind(
        keys, parsed, which=_parts(which), after=after[0], member=after[1], lane=after[2], limit=limit
    )


Fields = dict[str, str]
WatchKind = Literal["hook", "alarm"]


def watch_name(kind: WatchKind, name: str) -> str:
    return f"{kind}:{name}"


class StoredWatch(msgspec.Struct, frozen=True):
    """A hook or an alarm that a worker knew within a week: its stored name, when that was last, and how far it is."""

    name: str
    held_us: int
    fields: Fields


class AlarmNote(msgspec.Struct, frozen=True):
    """Where an alarm stands after a look.

    Attributes:
        was: when it had been raised before the look, microseconds; 0: it was not.
        fields: what is stored of it.
        kind, facts: of the event that tells it; empty: nothing changed.
    """

    name: str
    was: int
    fields: Mapping[str, str | int]
    kind: str
    facts: Mapping[str, str | int]


def note_alarms(keys: Keys, notes: Sequence[AlarmNote]) -> Call[None]:
    """Record where alarms stand; one that another look has raised or cleared meanwhile stays."""
    rows = [[one.name, str(one.was), by_turns(one.fields), one.kind, by_turns(one.facts)] for one in notes]
    return load("alarm_note").bind(keys, lambda _: None, alarms=rows)


def stored_watches(keys: Keys, limit: int = 1000) -> Call[list[StoredWatch]]:
    """Those that a worker knew within a week, the last ones first. O(limit)."""

    def parsed(reply: Any) -> list[StoredWatch]:
        return [StoredWatch(name.decode(), moment(at), text_pairs(flat)) for name, at, flat in reply[1]]

    return load("watches").bind(keys, parsed, limit=limit)


StreamName = Literal["acts", "events"]

# Seconds for which a stream stays after its newest entry.
KEPT_FOR: dict[StreamName, int] = {"acts": 365 * 86400, "events": 7 * 86400}
# Entries that one call looks at for some kinds only: for seven milliseconds of the server.
LOOK = 2000


class StreamPiece(msgspec.Struct, frozen=True):
    """A piece of a stream of ``count`` entries: ids with their fields.

    Attributes:
        last: the last entry that was looked at; empty when there are no more.
        newest: the newest entry of the stream; empty for an empty one.
    """

    count: int
    rows: list[tuple[str, dict[str, str]]]
    last: str
    newest: str


def tell(
    keys: Keys, stream: StreamName, request: str, fields: Mapping[str, str | int], after: str = "any"
) -> Call[str]:
    """Add an entry, and have the oldest leave beyond 10,000; its id. The same ``request`` again adds nothing."""
    flat = by_turns(fields)
    return load("tell").bind(
        keys, bytes.decode, line=stream, keep=KEPT_FOR[stream], request=request, after=after, fields=flat
    )


def told(
    keys: Keys,
    stream: StreamName | Literal["deaths"],
    limit: int,
    after: str = "",
    *,
    desc: bool = True,
    kinds: Sequence[str] = (),
) -> Call[StreamPiece]:
    """A piece of a stream, by time; with ``limit`` 0 only its end. A call looks at 2,000 entries for ``kinds``."""
    return load("told").bind(
        keys, _told, line=stream, after=after, limit=limit, look=LOOK, desc=int(desc), kinds=list(kinds)
    )


def _told(reply: Any) -> StreamPiece:
    count, rows, last, newest = reply
    found = [(id.decode(), text_pairs(fields)) for id, fields in rows]
    return StreamPiece(count, found, last.decode(), newest.decode())


class Fault(msgspec.Struct, frozen=True):
    """A job whose record and structures contradict each other.

    Attributes:
        word: ``no-record``, ``misplaced``, ``twice`` or ``unreadable``.
        evidence: the structures that it is in and should not be, and ``not`` with the one that it should be in.
        repaired: whether it was led back to the structure of its state.
    """

    id: str
    word: str
    evidence: str
    repaired: bool


def examine(
    keys: Keys, place: str, ids: Sequence[str], ttl: int, *, repair: bool = False
) -> Call[tuple[int, list[Fault]]]:
    """Compare at most 1000 jobs with the structures that hold them, at one moment; about five microseconds a job.

    ``place``: the structure that the ids come from; empty: their records. ``ttl``: microseconds that a job stays which
    has ended and had no end of its retention. ``repair``: lead them back, except out of lanes and claims. Returns the
    bytes that kept results and errors take, where ``place`` is that of a final state, and the faults.
    """

    def parsed(reply: Any) -> tuple[int, list[Fault]]:
        total, *flat = reply
        rows = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
        faults = [Fault(text_of(id), text_of(word), text_of(said), bool(done)) for id, word, said, done in rows]
        return total, faults

    return load("examine").bind(keys, parsed, place=place, list=list(ids), repair=int(repair), ttl=ttl)


def recount(keys: Keys, field: str, seen: int, right: int) -> Call[bool]:
    """Set a counter of the shard, if it is still what it was when it was counted."""
    return load("recount").bind(keys, bool, field=field, seen=seen, right=right)


def restored(keys: Keys, *, go: bool) -> Call[int]:
    """Microseconds that a store lost which was put back to an old copy; ``go``: let workers claim from it again."""
    return load("restored").bind(keys, int, go=int(go))
