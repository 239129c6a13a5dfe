"""What is asked of a drain, and what it did: records, and the words for one that did not come to its end. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.errors import HeadraceError, OptionsError
from headrace.protocol.overviews import Overview

_WAITING = ("ready", "scheduled", "blocked", "parked", "running")


class DrainError(HeadraceError, AssertionError):
    """A drain did not come to its end: its limit was reached, or what was to end waits for something else."""


class Drained(msgspec.Struct, frozen=True):
    """What a drain did.

    Attributes:
        starts: how many starts of jobs it ran.
        ends: how they ended, by outcome: ``succeeded``, ``failed``, ``retry``, ``snoozed``, ``cancelled``,
            ``crashed``, ``interrupted``, ``parked``, ...
        left: jobs that are stored and have not ended, by state.
    """

    starts: int
    ends: Mapping[str, int]
    left: Mapping[str, int]


class Wishes(msgspec.Struct, frozen=True):
    """How to drain.

    Attributes:
        queue: only this one; empty: all.
        scheduled: let time pass until what is scheduled is due.
        retries: let time pass until the retries of what ran here are due.
        limit: most starts.
        raises: end with the first error of a job.
    """

    queue: str = ""
    scheduled: bool = False
    retries: bool = False
    limit: int = 1000
    raises: bool = True


def waiting(seen: Overview) -> dict[str, int]:
    """Jobs that have not ended, by state."""
    states = dict(seen.states)
    return {state: states[state] for state in _WAITING if states.get(state)}


def wishes(
    queue: str | None, scheduled: bool | None, retries: bool | None, limit: int, *, whole: bool, raises: bool
) -> Wishes:
    """What a caller asks for; ``whole``: of a workflow, to its end."""
    if limit < 1:
        raise OptionsError(f"limit must be at least 1, not {limit!r}")
    return Wishes(
        queue or "", whole if scheduled is None else scheduled, whole if retries is None else retries, limit, raises
    )


def check_ended(workflow: str, state: str, drained: Drained) -> None:
    """Raises DrainError unless the workflow, named for people, has ended."""
    if state not in ("succeeded", "failed", "cancelled"):
        left = ", ".join(f"{count:,} {word}" for word, count in drained.left.items())
        raise DrainError(
            f"workflow {workflow} is {state} after the drain, and nothing is left that could run "
            f"({left or 'no job waits'}): was it started, is it stopped, does a queue pause?"
        )
