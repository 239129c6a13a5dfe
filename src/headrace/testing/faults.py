"""Faults on demand: what is armed, and whom it meets. Decides; the stores and the drain carry it out."""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from headrace.errors import StoreUnavailable
from headrace.model.job import Claim

Moment = Literal["start", "end"]


class RunnerKilled(BaseException):
    """Ends the code of a start where its process would die: at its hard limit, or at a crash that a test asked for."""


class Crash(msgspec.Struct, frozen=True):
    """The death of a process that runs a job.

    Attributes:
        task: name of the task that it meets; empty: any.
        at: before the code began, or after it returned and before its result was told.
        worker: the whole worker dies, and nothing tells the store.
    """

    task: str
    at: Moment
    worker: bool


def lost_reply(*, give_up: bool) -> Exception:
    """What the caller of the driver sees of a reply that the server gave; ``give_up``: the store does not try again."""
    if give_up:
        return StoreUnavailable("the test kit has lost the reply: the call may or may not have been applied")
    return ConnectionResetError("the test kit has lost the reply")


class Faults:
    """What is armed, each for one occasion.

    Attributes:
        failures: errors of the next calls of the application, which the server never sees.
        crashes: of the next starts that they meet.
        replies: errors of the next calls, which the server has answered.
    """

    def __init__(self) -> None:
        self.failures: deque[Exception] = deque()
        self.replies: deque[Exception] = deque()
        self.crashes: list[Crash] = []

    def crash_of(self, claim: Claim) -> Crash | None:
        """The crash that meets this start, which is disarmed by it."""
        for one in self.crashes:
            if one.task in ("", claim.task):
                self.crashes.remove(one)
                return one
        return None

    def unmet(self) -> list[str]:
        """What was armed and has met nothing: a test that counts on it has shown nothing."""
        crashes = [f"a crash of {one.task or 'any task'}" for one in self.crashes]
        failures = [f"a failure of the store ({type(one).__name__})" for one in self.failures]
        return [*crashes, *failures, *("a lost reply" for _ in self.replies)]
