"""What a script is used for, and what it answers when it is repeated after a lost reply; calls that several uses share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.model.job import Outcome
from headrace.protocol import consume
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from tests.scripts.stage import KEEP, Stage

Again = Callable[[Any, Any], bool]


def same(first: Any, second: Any) -> bool:
    """It states what shall be, or reads."""
    return bool(first == second)


def alike(first: Any, second: Any) -> bool:
    """It reads what the server alone decides, too: ids in streams, and the memory that it uses."""
    return re.sub(r"\d+-\d+|memory=\d+", "", repr(first)) == re.sub(r"\d+-\d+|memory=\d+", "", repr(second))


def fewer(first: Any, second: Any) -> bool:
    """It moves what fits a condition, and counts what this attempt did: nothing was left for the second one."""
    return bool(second[0] == 0 or first == second)


def says(answer: object) -> Again:
    """It says that somebody did so before."""
    return lambda _, second: bool(getattr(second, "word", second) == answer)


@dataclass(frozen=True)
class Play:
    """One use of a script.

    Attributes:
        arrange: sets the scene; returns what the call needs.
        call: with the keys, that, and the time.
        again: whether a repeat may answer so, given the first answer.
        grows: keys of numbers which only say what came first: a repeat takes the next one.
    """

    arrange: Callable[[Stage], Any]
    call: Callable[[Keys, Any, int], Call[Any]]
    again: Again = same
    grows: frozenset[str] = frozenset()


def nothing(_: Stage) -> None:
    """A scene without anything."""


def settle(keys: Keys, rows: list[tuple[Outcome, int]], now: int) -> Call[consume.Settled]:
    return consume.settle(keys, "w1", 99, rows, 0).at(now)


def settled_before(_: Any, second: consume.Settled) -> bool:
    return second.repeated


def claim(keys: Keys, owner: str, now: int) -> Call[consume.Claimed]:
    return consume.claim(keys, owner, 99, 3, ["default"]).at(now)


def claims_alike(first: consume.Claimed, second: consume.Claimed) -> bool:
    return [(c.id, c.token) for c in first.jobs] == [(c.id, c.token) for c in second.jobs]


def reclaim(keys: Keys, _: Any, now: int) -> Call[tuple[str, int]]:
    return consume.reclaim(keys, "w1", True, 500, KEEP).at(now)
