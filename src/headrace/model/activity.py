"""What people did, and what happened that failed or changed: an entry of one of two streams, as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.model.job import number

# Who may have acted by which means.
MEANS = ("dashboard", "cli", "api", "program")
# Characters of each text that an act keeps.
LONGEST = 500


@dataclass(frozen=True, slots=True)
class Act:
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


def time_of(id: str) -> int:
    """When an entry of a stream was written, microseconds; 0 for what is no id."""
    return number(id.partition("-")[0]) * 1000


def act_of(id: str, fields: Mapping[str, str]) -> Act:
    """An act as it is stored; what is missing is empty."""
    names = ("who", "by", "verb", "kind", "name", "scope")
    texts = {name: fields.get(name, "") for name in names}
    return Act(id, time_of(id), **texts, count=number(fields.get("count")), reply=fields.get("reply", ""))
