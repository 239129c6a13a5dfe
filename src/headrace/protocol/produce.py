"""Calls of a producer: enqueue, cancel, rerun, watch, read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from headrace.model.codec import NOTHING, signed_parts
from headrace.model.form import CLAIMED, FIELDS, Form, NewJob
from headrace.model.headers import shown
from headrace.model.ids import milliseconds_of
from headrace.model.job import State, moment, number, parse_error, priority_of, ready_at
from headrace.model.job_record import Finder, Record, parse_journal
from headrace.model.workflow import WorkflowState, parse_facts
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call, blob, load, pairs, text_of

# The queue of a record that names none; the scripts say it, too.
DEFAULT_QUEUE = "default"

# Head and rows; of unique jobs also their names.
Batch: TypeAlias = tuple[msgspec.Raw, list[Any]] | tuple[msgspec.Raw, list[Any], list[str]]

_pack = msgspec.msgpack.Encoder().encode


class Accepted(msgspec.Struct, frozen=True):
    """The store's answer to an enqueue.

    Attributes:
        word: ``ok``; ``repeated``: this request had been applied; ``clash``, ``full``, ``missing``: nothing is stored.
        duplicates: ids that were not stored, each with the job that its request id had made, or that has its name.
        clashes: ids of unique jobs for which nothing was stored, each with the job that has its name.
        full: a limit, its backlog, and how many jobs wait in a lane of it.
        missing: a job that one of these was to follow, and which is not stored.
        moved: ids of jobs that are stored under another id, since the shard that their own names was away.
    """

    word: str
    duplicates: dict[str, str] = {}
    clashes: dict[str, str] = {}
    full: tuple[str, int, int] | None = None
    missing: str = ""
    moved: dict[str, str] = {}


def fields_of(form: Form, without: frozenset[str] = frozenset()) -> list[Any]:
    fields: list[Any] = []
    for name, row in FIELDS.items():
        if name not in without and (value := getattr(form, name)):
            fields.append(row.stored or name)
            fields.append(blob(value) if row.kind is bytes else str(int(value)) if row.kind is bool else str(value))
    return fields


def is_claimed(form: Form) -> bool:
    """Whether a claim must read more of its jobs than task, arguments and ``options``."""
    return any(getattr(form, name) for name in CLAIMED)


@lru_cache(1024)
def head_of(form: Form) -> msgspec.Raw:
    """The head of a batch, packed: most jobs of a program have one of a few forms."""
    fields: list[Any] = ["task", form.task]
    if form.queue != DEFAULT_QUEUE:
        # What most jobs have takes no byte.
        fields += ("queue", form.queue)
    if form.options:
        fields += ("options", blob(form.options))
    fields += fields_of(form)
    if form.after:
        fields += ("after", form.after, *(("anyway", "1") if form.after_failure else ()))
    if form.options or is_claimed(form) or (form.unique and form.unique.hold == "start"):
        # A claim reads these only where the record says that there is more than task and arguments.
        fields += ("more", "1")
    head = [form.queue, form.priority, form.delay, form.at, form.expires, fields]
    if form.unique:
        if form.unique.hold != "done":
            fields += ("hold", form.unique.hold)
        head += [form.ordered and form.key, form.unique.packed]
    elif form.ordered:
        head.append(form.key)
    elif form.after:
        head.append([int(form.after_failure), *form.after.split()])
    return msgspec.Raw(_pack(head))


def packed_args(job: NewJob) -> msgspec.Raw | str:
    return "" if job.args == NOTHING and not job.form.unique else blob(job.args)


def script_of(form: Form) -> str:
    return "enqueue_unique" if form.unique else "enqueue_ordered" if form.ordered or form.after else "enqueue"


# Of the scripts that store the jobs of one call, the last one that any of these needs.
_SCRIPTS = ("enqueue", "enqueue_ordered", "enqueue_unique")


def batches_of(jobs: Sequence[NewJob]) -> tuple[list[Batch], str]:
    """Neighbours of one form say it once: most chunks are one batch. And the script that stores them."""
    batches: list[Batch] = []
    last: Form | None = None
    kinds = {"enqueue"}
    rows: list[Any] = []
    names: list[str] = []
    for job in jobs:
        if job.form is not last and job.form != last:
            last, rows, names = job.form, [], []
            kinds.add(script_of(last))
            batches.append((head_of(last), rows, names) if last.unique else (head_of(last), rows))
        rows.append(job.id)
        rows.append(packed_args(job))
        names.append(job.name)
    return batches, max(kinds, key=_SCRIPTS.index)


def accepted(reply: Any) -> Accepted:
    if reply == b"ok":
        return Accepted("ok")
    if not isinstance(reply, bytes) and len(reply[1]) == 1:
        return Accepted("missing", missing=reply[1][0].decode())
    if not isinstance(reply, bytes):
        limit, backlog, waits = reply[1]
        return Accepted("full", full=(limit.decode(), backlog, waits))
    word, *ids = reply.decode().split()
    others = dict(zip(ids[::2], ids[1::2], strict=True))
    return Accepted(word, clashes=others) if word == "clash" else Accepted(word, others)


CHUNK = 1000
# The longest arguments that a list brings, in bytes.
LISTED_ARGS = 4096
# A broadcast waits in a line of its own, and is started once.
_NOT_OF_BROADCASTS = frozenset({"priority", "max_crashes", "at_most_once"})


@lru_cache(16)
def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))


def enqueue(
    keys: Keys,
    jobs: Sequence[NewJob],
    sender: str,
    number: int,
    requests: Sequence[str] = (),
    request_id_ttl: float = 86400.0,
) -> Call[Accepted]:
    """Store at most ``CHUNK`` new jobs of one shard, ready or scheduled: all of them, or none when this request was
    applied.

    A job with a request id is not stored when that made one before within ``request_id_ttl`` seconds, or when a job of
    its own id is stored, whichever program sent it: so a job whose id is its request id is stored once, however many
    senders know it. Ordered jobs whose turn it is not wait, blocked. A unique one whose name another job holds is not
    stored, or all are refused: see :class:`headrace.model.unique_rules.Unique`. Ids are of
    :func:`headrace.model.ids.ordered_id` and :func:`headrace.model.ids.unique_id`.

    Args:
        sender, number: a producer's slot and its request's number: each slot sends one request after another, and
            repeats a request with the same number when its reply was lost.
    """
    if keys.seal is not None:
        jobs = keys.seal.jobs(jobs)
    if len(jobs) == 1:
        # Few calls, since a program that enqueues now and then pays for each of them dearly.
        (job,) = jobs
        batch = head_of(job.form), [job.id, packed_args(job)]
        batches, word = [(*batch, [job.name]) if job.form.unique else batch], script_of(job.form)
    else:
        batches, word = batches_of(jobs)
    return load(word).bind(
        keys, accepted, sender=sender, number=str(number), requests=requests,
        request_id_ttl=_milliseconds(request_id_ttl), batches=batches,
    )  # fmt: skip


def broadcast(keys: Keys, form: Form, args: bytes, rows: Sequence[tuple[str, str]]) -> Call[list[str]]:
    """Store a job for each of some live incarnations, which it alone runs, at most once; ids of those that live."""
    if keys.seal is not None:
        args = keys.seal.arguments(form, "", args)
    fields: list[Any] = ["task", form.task, "args", blob(args), "once", "1", "more", "1"]
    if form.options:
        fields += ("options", blob(form.options))
    fields += fields_of(form, _NOT_OF_BROADCASTS)
    return load("broadcast").bind(
        keys, lambda reply: [id.decode() for id in reply], sender=rows[0][1], expires=form.expires, fields=fields,
        rows=[text for row in rows for text in row],
    )  # fmt: skip


def cancel(keys: Keys, id: str, ttl: int) -> Call[str]:
    """End a waiting job as cancelled; ask a running one to stop: ``cancelled``, ``asked``, ``missing``, its state."""
    return load("cancel").bind(keys, bytes.decode, id=id, ttl=ttl)


def rerun(keys: Keys, id: str, request: str) -> Call[str]:
    """Make a finished job ready again, with fresh budgets; the same ``request`` again changes nothing. Returns
    ``retried``, ``missing``, ``node`` (its workflow is retried instead), ``broadcast``, or the state that does not
    allow it.
    """
    return load("rerun").bind(keys, bytes.decode, id=id, request=request)


def delete(keys: Keys, id: str) -> Call[str]:
    """Remove a job that does not run; ``deleted``, or why not. A repeat finds it missing."""
    return load("delete").bind(keys, bytes.decode, id=id)


def move(keys: Keys, id: str, queue: str = "", priority: int | None = None, delay: int = -1, at: int = 0) -> Call[str]:
    """Give a waiting job another queue, priority or time: ``moved`` and its state, ``missing``, or why it is not."""
    rank = "" if priority is None else str(priority)
    return load("move").bind(keys, bytes.decode, id=id, queue=queue, priority=rank, delay=delay, at=at)


class Watched(msgspec.Struct, frozen=True):
    """What a waiter learns. ``state``: None: nothing is stored. ``change`` differs after each. Not ``whole``: cut."""

    state: State | None
    result: bytes | None
    error: bytes | None
    whole: bool = True
    change: tuple[bytes | None, ...] = ()


# Looks at a job or workflow by its id, and waits for its end with a third argument above 0.
Look: TypeAlias = Callable[[Keys, str, int], Call[Any]]
# Looks in one round trip: many, but a server ends a subscribed connection to which it owes 8 MiB for a minute.
BATCH = 100


def end_of(seen: Watched | WorkflowState | None) -> str:
    state = seen.state if isinstance(seen, Watched) else seen
    if state is None:
        return "missing"
    return str(state) if state.final else ""


def state_of(text: str) -> State:
    """The state that a record names; an unreadable word means that the record cannot be trusted."""
    try:
        return State(text)
    except ValueError:
        return State.QUARANTINED


def _watched(reply: Any) -> Watched:
    state = reply[0].decode()
    result, error = (None if isinstance(part, int) else part for part in reply[1:3])
    whole = not any(isinstance(part, int) for part in reply[1:3])
    return Watched(None if state == "missing" else state_of(state), result, error, whole, tuple(reply[3:]))


def watch(keys: Keys, id: str, wait: int, most: int = -1, *, follow: bool = False) -> Call[Watched]:
    """Read a job's end, or have it announced on the channel ``done:<id>`` for ``wait`` microseconds: subscribe before.
    Of a result or error longer than ``most`` bytes only the state is told. ``follow``: changes are announced there,
    too.
    """
    return load("watch").bind(keys, _watched, id=id, wait=wait, most=most, follow=int(follow))


def is_map_node(fields: Mapping[str, bytes]) -> bool:
    return "facts" in fields and parse_facts(fields["facts"]).map


def record_of(id: str, due: int, fields: dict[str, bytes], finder: Finder | None = None) -> Record:
    """A stored job as a record; unreadable values become empty ones. ``due``: its score where its state has a time."""
    get, progress = fields.get, fields.get("progress")
    try:
        state, share = State(text_of(get("st"))), float(progress) if progress else None
    except ValueError:
        state, share = State.QUARANTINED, None
    priority = priority_of(get("priority"))
    record = Record(
        id=id, state=state, task=text_of(get("task")), queue=text_of(get("queue", DEFAULT_QUEUE.encode())),
        packed_args=signed_parts(get("args", b"" if "left_out" in fields else NOTHING))[0],
        options=get("options", b""), priority=priority, key=text_of(get("key")), created_us=_created(id[:8]),
        due_us=ready_at(due, priority) if state is State.READY else due, started_us=number(get("token")),
        finished_us=number(get("finished")), expires_us=number(get("expires")), failures=number(get("failures")),
        crashes=number(get("crashes")), interruptions=number(get("interruptions")), snoozes=number(get("snoozes")),
        limited=number(get("limited")), owner=text_of(get("owner")), packed_result=get("result"),
        error=parse_error(get("error")), progress=share, progress_text=text_of(get("note")), fields=fields,
        attempts=parse_journal(get("journal"), number(get("attempts"))), headers=shown(get("headers", b"")),
        note=text_of(get(FIELDS["note"].stored)), unique=text_of(get("unique")),
        swallowed=parse_error(get("swallowed")), left_out=number(get("left_out")),
        finder=None if is_map_node(fields) else finder,
    )  # fmt: skip
    attempt = record.attempt
    if record.swallowed is None and (attempt or not record.started_us):
        return record
    if attempt and record.swallowed is not None and record.swallowed.attempt == attempt:
        return record
    # A claim that came to nothing, as that of a parked job does, began nothing. The last start swallowed nothing.
    return replace(record, started_us=record.started_us if attempt else 0, swallowed=None)


@lru_cache(1024)
def _created(first_digits: str) -> int:
    try:
        return milliseconds_of(first_digits) * 1000
    except ValueError:
        return 0


def read(
    keys: Keys, ids: Sequence[str], finder: Finder | None = None, *, lean: bool = False
) -> Call[list[Record | None]]:
    """What is stored of up to 500 jobs; ``lean``: without results, and arguments longer than ``LISTED_ARGS``."""
    most = LISTED_ARGS if lean else 0
    return load("read").bind(keys, lambda reply: records_of(reply, finder), ids=list(ids), most=most)


def records_of(reply: Any, finder: Finder | None = None) -> list[Record | None]:
    return [record_of(id.decode(), moment(due), pairs(flat), finder) if flat else None for id, due, flat in reply]
