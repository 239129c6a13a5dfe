"""Batches: new jobs as an enqueue sends them, and what the store answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from headrace.model.codec import NOTHING
from headrace.model.form import CLAIMED, FIELDS, Form, NewJob
from headrace.protocol.script import blob

# The queue of a record that names none; the scripts say it, too.
DEFAULT_QUEUE = "default"

# Head and rows; of unique jobs also their names.
Batch: TypeAlias = tuple[msgspec.Raw, list[Any]] | tuple[msgspec.Raw, list[Any], list[str]]

_pack = msgspec.msgpack.Encoder().encode


class Accepted(msgspec.Struct, frozen=True):
    """The store's answer to an enqueue.

    Attributes:
        word: ``ok``; ``repeated``: this very request had been applied, and its reply was lost; ``clash``,
            ``full``: nothing was stored.
        duplicates: ids that were not stored, each with the job that its request id had made, or that has its name.
        clashes: ids of unique jobs for which nothing was stored, each with the job that has its name.
        full: a limit, its backlog, and how many jobs wait in a lane of it.
    """

    word: str
    duplicates: dict[str, str] = {}
    clashes: dict[str, str] = {}
    full: tuple[str, int, int] | None = None


def fields_of(form: Form, without: frozenset[str] = frozenset()) -> list[Any]:
    """The fields and values that the options of a form give a record; what is default gives none."""
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
    return msgspec.Raw(_pack(head))


def packed_args(job: NewJob) -> msgspec.Raw | str:
    """A job's arguments as a batch has them: nothing where a job, not a unique one, has none."""
    return "" if job.args == NOTHING and not job.form.unique else blob(job.args)


def script_of(form: Form) -> str:
    """The script that stores jobs of this form."""
    return "enqueue_unique" if form.unique else "enqueue_ordered" if form.ordered else "enqueue"


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
    """The answer of a script that stores jobs."""
    if reply == b"ok":
        return Accepted("ok")
    if not isinstance(reply, bytes):
        limit, backlog, waits = reply[1]
        return Accepted("full", full=(limit.decode(), backlog, waits))
    word, *ids = reply.decode().split()
    others = dict(zip(ids[::2], ids[1::2], strict=True))
    return Accepted(word, clashes=others) if word == "clash" else Accepted(word, others)
