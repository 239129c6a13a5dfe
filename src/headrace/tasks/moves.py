"""What may be changed of a job that waits: its queue, its priority and its time. Checks, and makes the call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from headrace.errors import OptionsError
from headrace.model.options import ROWS
from headrace.protocol import produce
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from headrace.settings import Duration


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
    """The call that moves a job.

    Raises:
        OptionsError: nothing is given, or something that cannot be.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    wrong = given.keys() - JobMove.__annotations__.keys()
    if wrong or not given:
        what = f"there is no {min(wrong)!r} to move" if wrong else "a move changes something"
        raise OptionsError(f"{what}: give queue, priority, delay or at; job.move(delay=0) has it ready now")
    if "delay" in given and "at" in given:
        raise OptionsError("delay and at contradict each other: give the one or the other")
    return produce.move(keys, id, **{name: ROWS[name].check(name, value) for name, value in given.items()})
