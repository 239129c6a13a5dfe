"""lane_exit.lua: jobs that are cancelled or purged leave their lanes."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import operations, produce
from tests.scripts.limited_stage import ACCOUNT, declare, gate, put
from tests.scripts.stage import Stage


def test_cancelled_and_purged_jobs_leave_their_lanes(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    one, *_ = put(stage, "x", "x", "y")
    assert stage.run(produce.cancel(stage.keys, one, 0)) == "cancelled"
    assert stage.run(operations.purge(stage.keys, "default", 1000)) == (2, 0)
    for name in ("lane:default|account=|x", "class:default|account=", "classes:default", "ready:default"):
        assert not stage.client.exists(stage.keys(name)), name


@pytest.mark.parametrize("by", ["account", ""])
@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_what_has_no_jobs_any_more_is_behind_no_gate(stage: Stage, verb: str, by: str) -> None:
    """The gate said that something waits for it; once more might run at once, it was open and said so still."""
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by=by)]})
    _, waits = put(stage, "x", "x")
    (runs,) = stage.take()
    name = f"one:{'x' if by else ''}"
    assert gate(stage, name)[1:] == (1, True)
    if verb == "cancel":
        stage.run(produce.cancel(stage.keys, waits, 0))
    else:
        assert stage.run(operations.purge(stage.keys, "default", 1000)) == (1, 0)
    assert gate(stage, name)[1:] == (1, False)
    assert not stage.client.exists(stage.keys(f"behind:{name}"))
    stage.end(runs, amount=0)


def test_a_lane_that_leaves_lets_others_wait(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1), by="account")]})
    put(stage, "x", "x")
    (runs,) = stage.take()
    put(stage, "x", queue="low")
    assert stage.run(operations.purge(stage.keys, "default", 1000)) == (1, 0)
    assert stage.names("behind:one:x") == {"low|one=|x"}
    assert gate(stage, "one:x")[1:] == (1, True)
    stage.end(runs, amount=0)
    assert len(stage.claim(queues=["low"]).jobs) == 1
