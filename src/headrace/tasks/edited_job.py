"""Verbs on one stored job: the meaning of their replies, a copy of the job, and its move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from headrace.errors import ArgumentError, CorruptRecord, JobNotFound, OptionsError, StateError
from headrace.model import codec, job_record
from headrace.model.form import FIELDS, RETRY_PARTS, Form, asked
from headrace.model.headers import SCHEDULE, TRACE
from headrace.model.ids import flow_of, is_flow, is_node, is_ordered, shard_of
from headrace.model.job import State
from headrace.model.job_record import Finder, Record, ValueReader
from headrace.model.options import ROWS
from headrace.model.retry import Retry, with_parts
from headrace.model.signature import Signature
from headrace.protocol import produce
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import Duration


def check_id(id: str) -> str:
    """``id``, if it has the form of one. Raises JobNotFound: it has not, so there is no such job."""
    try:
        shard_of(id)
    except (ValueError, TypeError):
        raise JobNotFound(f"{id!r} is not the id of a job: ids have 21 digits and lower-case letters") from None
    return id


def not_found(id: str, *, commits: bool = False) -> JobNotFound:
    if is_flow(id):
        return JobNotFound(f"{id} is the id of a workflow, not of a job: headrace workflows show {id}")
    return JobNotFound(
        f"no job {id} is stored: {'it waits for the commit of its transaction, ' if commits else ''}it never existed, "
        "it ended and its retention (result_ttl, failure_ttl) is over, or the server lost it"
    )


def cancelled(id: str, word: str) -> State:
    if word == "missing":
        raise not_found(id)
    return State.RUNNING if word == "asked" else produce.state_of(word)


# Why a verb did nothing, by what its script answers; ``otherwise``: the state of the job is in the way.
_RETRY = {
    "broadcast": "was for one worker alone, which may be gone: broadcast it anew",
    "node": "is a node of workflow {flow}, which goes on from it: headrace workflows retry {flow}, or "
    "app.workflows.get({flow!r}).retry_failed()",
    "taken": "is unique, and {rest} has its name: retry it when that has ended",
    "otherwise": "is {word}: only a job that has ended can be retried",
}
_DELETE = {
    "broadcast": "waits for one worker alone: cancel it",
    "node": "is a node of workflow {flow}, which is deleted as a whole: app.workflows.get({flow!r}).delete()",
    "otherwise": "is {word}: cancel it first, and delete it when it has ended",
}
_MOVE = {
    "broadcast": "waits for one worker alone: cancel it",
    "late": "would have expired by then: choose an earlier time, or enqueue it anew",
    "blocked": "is blocked: it waits for other jobs",
    "otherwise": "is {word}: only one that waits for a time or a worker can be moved",
}


def _done(id: str, answer: str, verb: str, refusals: Mapping[str, str]) -> str:
    word, _, rest = answer.partition(" ")
    if word == "missing":
        raise not_found(id)
    if word != verb:
        why = refusals.get(word) or refusals["otherwise"]
        raise StateError(f"job {id} {why.format(word=word, rest=rest, flow=flow_of(id))}")
    return rest


def retried(id: str, answer: str) -> None:
    _done(id, answer, "retried", _RETRY)


def deleted(id: str, answer: str) -> None:
    _done(id, answer, "deleted", _DELETE)


def moved(id: str, answer: str) -> State:
    return produce.state_of(_done(id, answer, "moved", _MOVE))


# The header that names the job which a job is again.
AGAIN = "headrace-again-of"


class StoredArguments(msgspec.Struct, frozen=True):
    """The arguments of a job as plain values, and the name of each.

    Attributes:
        args, kwargs: as stored.
        places: by name, which position or keyword it is. A position without a name is called by its number, from 1.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    places: Mapping[str, int | str]

    @property
    def by_name(self) -> dict[str, Any]:
        return {
            name: self.args[place] if isinstance(place, int) else self.kwargs[place]
            for name, place in self.places.items()
        }

    def changed(self, changes: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with some of them changed; a new name becomes a keyword. Raises OptionsError: no such position."""
        if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionsError(f"changes are a dict of arguments by name, or by number as text, not {changes!r:.80}")
        args, kwargs = list(self.args), dict(self.kwargs)
        for name, value in changes.items():
            place = self.places.get(name, name)
            if isinstance(place, int):
                args[place] = value
            elif place.isdecimal():
                raise OptionsError(f"the job has no argument {place}: it has {', '.join(self.places) or 'none'}")
            else:
                kwargs[place] = value
        return args, kwargs


def arguments_of(record: Record, reader: ValueReader) -> StoredArguments:
    """The arguments of a job. ``reader``: of its task: it knows the names of positions. Raises StateError: they hold
    what other jobs of its workflow return. Raises CorruptRecord: no enqueue wrote them.
    """
    if job_record.has_slots(record.packed_args):
        raise StateError(
            f"job {record.id} takes what other jobs of workflow {flow_of(record.id)} return: run the workflow again"
        )
    if codec.holds_sealed(record.packed_args):
        raise StateError(f"the arguments of job {record.id} are encrypted: retry it, or enqueue another one in code")
    args, kwargs = codec.stored_arguments(record.task, record.packed_args)
    named = reader.by_name(tuple(args), {}).items()
    # What * takes has one name together, even where it is one value.
    names = [name for (name, value), arg in zip(named, args, strict=False) if value is arg]
    names += [str(number) for number in range(len(names) + 1, len(args) + 1)]
    places: dict[str, int | str] = {name: n for n, name in enumerate(names)}
    return StoredArguments(args, kwargs, places | {name: name for name in kwargs})


def options_again(record: Record) -> dict[str, Any]:
    """The options of a job for the one that is it again, limits and headers too. Raises CorruptRecord: unreadable."""
    stored = {name: record.fields.get(row.stored or name) for name, row in FIELDS.items() if name != "headers"}
    try:
        known = {name: _value(FIELDS[name].kind, raw) for name, raw in stored.items() if raw}
        found = asked(Form(record.task, queue=record.queue, options=record.options, **known))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(f"the stored options of job {record.id} cannot be read: {error}") from None
    retry = {part: found.pop(name) for name, (part, _) in RETRY_PARTS.items() if name in found}
    if retry:
        found["retries"] = with_parts(Retry(), retry)
    headers = {name: text for name, text in record.headers.items() if name not in (SCHEDULE, TRACE)}
    if is_ordered(record.id) and not is_node(record.id):
        found["ordered"] = True
    if known.get("secrets"):
        found["secrets"] = known["secrets"]
    return found | {"headers": {**headers, AGAIN: record.id}}


def _value(kind: type, raw: bytes) -> Any:
    return raw == b"1" if kind is bool else kind(raw.decode())


class EditedJob(msgspec.Struct, frozen=True):
    """A new job that is a stored one again, before it is stored.

    Attributes:
        bound: its task, with its options: a ``BoundTask``.
        args, kwargs: plain.
        as_json: whether they are stored as JSON, as those of the stored one are.
    """

    bound: Any
    args: list[Any]
    kwargs: dict[str, Any]
    as_json: bool

    def enqueue(self) -> Any:
        return self.bound.enqueue_json(*self._json) if self.as_json else self.bound.enqueue(*self.args, **self.kwargs)

    async def aenqueue(self) -> Any:
        if self.as_json:
            return await self.bound.aenqueue_json(*self._json)
        return await self.bound.aenqueue(*self.args, **self.kwargs)

    @property
    def _json(self) -> tuple[bytes, bytes]:
        encode = msgspec.json.Encoder(enc_hook=self.bound.context.types.encode).encode
        try:
            return encode(self.args), encode(self.kwargs)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"the changes of a job of {self.bound.task}, whose arguments are JSON, cannot be sent ({error}): give "
                f"what JSON has, or values of known types"
            ) from None


# ``app.by_name``, which makes the task with its options.
ByName = Callable[..., Any]


def edited(
    id: str,
    record: Record | None,
    finder: Finder,
    by_name: ByName | None,
    changes: Mapping[str, Any],
    request_id: str | None,
) -> EditedJob:
    if record is None:
        raise not_found(id)
    assert by_name is not None
    reader, as_json = finder(record.task), record.form == "json"
    stored = arguments_of(record, reader)
    args, kwargs = stored.changed(changes)
    if isinstance(reader, Signature) and not as_json:
        for place in (stored.places.get(name, name) for name in changes):
            values: Any = args if isinstance(place, int) else kwargs
            values[place] = _typed(reader, place, values[place])
    return EditedJob(by_name(record.task, **options_again(record), request_id=request_id), args, kwargs, as_json)


def _typed(signature: Signature, place: int | str, value: Any) -> Any:
    """What is given as JSON, read by the annotation as JSON is. What does not fit stays: the enqueue says why."""
    annotation = signature.types.get(signature.parameters.name_at(place), Any)
    try:
        return msgspec.convert(value, annotation, str_keys=True, dec_hook=signature.further.decode)
    except (msgspec.MsgspecError, ValueError, TypeError):
        return value


class JobMove(TypedDict, total=False):
    """What a move changes; None, or what is not given, stays.

    Attributes:
        queue, priority: as of an enqueue.
        delay: how long it waits from now; 0: it is ready now.
        at: when it is ready, with a time zone; a time that has come: now.
    """

    queue: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None


def moving(keys: Keys, id: str, changes: Mapping[str, Any]) -> Call[str]:
    """The call that moves a job. Raises OptionsError: nothing is given, or something that cannot be."""
    given = {name: value for name, value in changes.items() if value is not None}
    wrong = given.keys() - JobMove.__annotations__.keys()
    if wrong or not given:
        what = f"there is no {min(wrong)!r} to move" if wrong else "a move changes something"
        raise OptionsError(f"{what}: give queue, priority, delay or at; job.move(delay=0) has it ready now")
    if "delay" in given and "at" in given:
        raise OptionsError("delay and at contradict each other: give the one or the other")
    return produce.move(keys, id, **{name: ROWS[name].check(name, value) for name, value in given.items()})
