"""Asks on a stage why a job does not run, as ``job.why()`` does, by the stage's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from headrace.protocol.consume import renew
from headrace.protocol.overviews import RunnerFacts
from headrace.protocol.script import Call
from headrace.settings import Settings
from headrace.tasks.reasons import Why, explain
from tests.scripts.stage import SECOND, Stage

LEASE = 15 * SECOND


def why(stage: Stage, id: str, trips: int = 2, *, looks: bool = True) -> Why:
    """The answer; it must take at most so many round trips, and change nothing."""
    before = stage.everything() if looks else {}
    steps = explain(cast(Any, SimpleNamespace(keys=stage.keys, settings=Settings())), id)
    asked, replies = next(steps), None
    for _ in range(trips):
        calls = asked if isinstance(asked, list) else [asked]
        replies = [stage.run(_timed(call, stage.now)) for call in calls]
        try:
            asked = steps.send(replies if isinstance(asked, list) else replies[0])
        except StopIteration as end:
            assert not looks or stage.everything() == before
            return cast(Why, end.value)
    raise AssertionError(f"more than {trips} round trips")


def codes(stage: Stage, id: str) -> list[str]:
    """The codes of all reasons, the deciding one first."""
    return [reason.code for reason in why(stage, id).reasons]


def says(stage: Stage, *facts: str | int, owner: str = "w1") -> None:
    """A worker renews its lease, and says this of itself."""
    assert stage.run(renew(stage.keys, owner, LEASE, list(facts))).alive


def runner_facts(*runners: RunnerFacts) -> str:
    """What a worker says of its runners."""
    return msgspec.json.encode(runners).decode()


def _timed(call: Call[Any], now: int) -> Call[Any]:
    if not call.script.header.clock:
        return call
    return Call(call.script, call.keys, (call.args[0], now, *call.args[2:]), call.parse)
