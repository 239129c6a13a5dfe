"""A verb on several jobs that are named by their ids, as one or two round trips, and what became of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from headrace.errors import HeadraceError, JobNotFound, OptionsError
from headrace.model.job import State
from headrace.model.job_record import Record, ValueReader
from headrace.protocol import produce
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import microseconds
from headrace.store.client import Client, Steps
from headrace.tasks.edited_job import cancelled, check_id, deleted, not_found, retried

VERBS = ("retry", "cancel", "delete")
# Jobs of one round trip.
PIECE = 500

# What reads a job's values, and how many seconds its failure stays; None: as the settings say.
Find = Callable[[Record], tuple[ValueReader, float | None]]


class JobReply(msgspec.Struct, frozen=True):
    """What became of one of several jobs.

    Attributes:
        id: of the job.
        done: whether the verb was done.
        words: what the store replied: ``is ready again``; or why nothing was done.
        error: what the verb on this job alone would have raised; None where it would not have.
    """

    id: str
    done: bool
    words: str
    error: HeadraceError | None = None


def apply(client: Client, find: Find, verb: str, ids: Sequence[str]) -> Steps[list[JobReply]]:
    """Do a verb on each of these jobs; one that refuses does not keep the others from it."""
    if verb not in VERBS:
        raise OptionsError(f"there is no verb {verb!r} for jobs by id: there are {', '.join(VERBS)}")
    replies: list[JobReply] = []
    chosen = list(dict.fromkeys(ids))
    for start in range(0, len(chosen), PIECE):
        replies += yield from _piece(client, find, verb, chosen[start : start + PIECE])
    return replies


def _piece(client: Client, find: Find, verb: str, ids: list[str]) -> Steps[list[JobReply]]:
    refused: dict[str, HeadraceError] = {}
    for id in ids:
        try:
            check_id(id)
        except JobNotFound as error:
            refused[id] = error
    known = [id for id in ids if id not in refused]
    ttls: dict[str, int] = {}
    if verb == "cancel" and known:
        # How long a cancelled job stays is its task's to say.
        found: list[Record | None] = yield produce.read(client.keys, known, lean=True)
        refused |= {id: not_found(id) for id, record in zip(known, found, strict=True) if record is None}
        usual = client.settings.failure_ttl
        for record in filter(None, found):
            own = find(record)[1]
            ttls[record.id] = microseconds(usual if own is None else own)
        known = list(ttls)
    words: list[str] = (yield [_call(client.keys, verb, id, ttls.get(id, 0)) for id in known]) if known else []
    told = dict(zip(known, words, strict=True))
    return [JobReply(id, False, str(refused[id]), refused[id]) if id in refused else _reply(verb, id, told[id])
            for id in ids]  # fmt: skip


def _call(keys: Keys, verb: str, id: str, ttl: int) -> Call[str]:
    if verb == "cancel":
        return produce.cancel(keys, id, ttl)
    return produce.rerun(keys, id, os.urandom(8).hex()) if verb == "retry" else produce.delete(keys, id)


def _reply(verb: str, id: str, word: str) -> JobReply:
    try:
        if verb == "cancel":
            return _cancelled(id, cancelled(id, word))
        (retried if verb == "retry" else deleted)(id, word)
    except HeadraceError as error:
        return JobReply(id, False, str(error), error)
    return JobReply(id, True, "is ready again" if verb == "retry" else "is deleted")


def _cancelled(id: str, state: State) -> JobReply:
    if state is State.RUNNING:
        return JobReply(id, True, "is running and was asked to stop")
    if state is State.CANCELLED:
        return JobReply(id, True, "is cancelled")
    return JobReply(id, False, f"had ended already: {state}" if state.final else f"is {state}")
