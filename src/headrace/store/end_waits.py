"""What waits for an end, and what it waits for: the records that the listener keeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from headrace.model.workflow import WorkflowState
from headrace.protocol.keys import Keys
from headrace.protocol.produce import Watched
from headrace.protocol.script import Call
from headrace.store.end_link import EndLink
from headrace.store.raw_connection import Bell

Seen: TypeAlias = Watched | WorkflowState | None
Look: TypeAlias = Callable[[Keys, str, int], Call[Any]]
Tell: TypeAlias = Callable[[Any], object]


def end_of(seen: Seen) -> str:
    """The final state of what was looked at, ``missing`` if nothing is stored; empty when it has not ended."""
    state = seen.state if isinstance(seen, Watched) else seen
    if state is None:
        return "missing"
    return str(state) if state.final else ""


class EndWait(msgspec.Struct):
    """A job or workflow that is waited for, and who is to be told of its end."""

    look: Look
    tells: set[Tell]


class EndQuestion(msgspec.Struct):
    """Calls of one who waits, and who is to be told what came of them."""

    calls: Sequence[Call[Any]]
    tell: Tell


class LinkLife(msgspec.Struct):
    """One thread: what wakes it, whether it is to end, its connection, and how often that failed in a row."""

    bell: Bell = msgspec.field(default_factory=Bell)
    over: threading.Event = msgspec.field(default_factory=threading.Event)
    attempt: int = 0
    link: EndLink | None = None
    thread: threading.Thread | None = None
