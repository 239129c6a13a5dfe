"""What people did, and what happened that failed or changed: an entry of one of two streams, as a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.errors import OptionsError
from headrace.model.job import number

# Who may have acted by which means.
MEANS = ("dashboard", "cli", "api", "program")
# Characters of each text that an act keeps.
LONGEST = 500
# Acts, the newest ones, among which the one is looked for that made something so.
NEWEST = 200


class Act(msgspec.Struct, frozen=True):
    """Something that a person did, or was refused.

    Attributes:
        id: of the record; ids sort by time.
        at_us: when, microseconds of the server's clock.
        who: the visitor's name, or the user and host of a shell.
        by: ``dashboard``, ``cli``, ``api`` (a program with a token) or ``program``.
        verb: such as ``retry``.
        kind: of what it was done to, such as ``jobs``.
        name: of what it was done to; of several, the first ones; empty where ``scope`` says it.
        scope: what the verb was done to all of.
        count: how many it was meant for.
        reply: what the store replied, in words.
    """

    id: str
    at_us: int
    who: str
    by: str
    verb: str
    kind: str
    name: str
    scope: str
    count: int
    reply: str

    @property
    def refused(self) -> bool:
        """Whether nothing was done."""
        return self.reply.startswith(("refused", "Nothing was done"))


# Kinds of events, and what each tells.
KINDS: Mapping[str, str] = {
    "failed": "a job failed for good",
    "quarantined": "a job crashed too often, or cannot be read",
    "parked": "no worker that claims a task's jobs knows the task",
    "cause_new": "a job failed for a cause that was not seen for 30 days",
    "cause_back": "a cause is back that was not seen for a day",
    "worker_started": "a worker began to claim jobs",
    "worker_stopped": "a worker left in order",
    "worker_lost": "a worker died or lost its lease; what it ran was recovered",
    "queue_paused": "a queue was paused",
    "queue_resumed": "a pause was ended, or ended by itself",
    "workflow_failed": "a workflow ended as failed",
    "schedule_missed": "ticks of a schedule made no jobs",
    "schedule_paused": "a schedule was paused, since its jobs failed one after the other",
    "errand_ended": "a verb on many jobs has reached the last of them",
    "alarm_raised": "a figure crossed the bound of an alarm",
    "alarm_cleared": "the figure is back within the bound",
}


class EventRecord(msgspec.Struct, frozen=True):
    """Something that failed or changed.

    Attributes:
        id: of the record; ids sort by time.
        at_us: when, microseconds of the server's clock.
        kind: one of ``KINDS``.
        facts: about what it is, such as ``job``, ``task``, ``queue``, ``error``.
    """

    id: str
    at_us: int
    kind: str
    facts: Mapping[str, str]


# Facts that only tell one record from another.
_HIDDEN = ("kind", "request")


def event_of(id: str, fields: Mapping[str, str]) -> EventRecord:
    """An event as it is stored."""
    facts = {name: text for name, text in fields.items() if name not in _HIDDEN}
    return EventRecord(id, time_of(id), fields.get("kind", ""), facts)


def storable(text: str, most: int = LONGEST) -> str:
    """The first characters of a text, without half surrogate pairs, which a name may hold and no message can."""
    return text[:most].encode("utf-8", "backslashreplace").decode()


def pause_note(note: str | None) -> str:
    """Why something is paused, as it is stored.

    Raises:
        OptionsError: it is no text.
    """
    if note is not None and not isinstance(note, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionsError(f"note must be a text, not {note!r:.80}")
    return storable(note or "")


def time_of(id: str) -> int:
    """When an entry of a stream was written, microseconds; 0 for what is no id."""
    return number(id.partition("-")[0]) * 1000


def act_of(id: str, fields: Mapping[str, str]) -> Act:
    """An act as it is stored; what is missing is empty."""
    names = ("who", "by", "verb", "kind", "name", "scope")
    texts = {name: fields.get(name, "") for name in names}
    return Act(id, time_of(id), **texts, count=number(fields.get("count")), reply=fields.get("reply", ""))


def newest_act(acts: Iterable[Act], verb: str, kind: str, name: str) -> Act | None:
    """The first act that did a verb to a thing, of acts of which the newest is first; None: there is none."""
    return next(
        (one for one in acts if (one.verb, one.kind) == (verb, kind) and name in one.name.split() and not one.refused),
        None,
    )
