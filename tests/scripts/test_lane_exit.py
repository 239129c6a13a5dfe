"""lane_exit.lua: jobs that are cancelled or purged leave their lanes."""

from __future__ import annotations

from headrace.protocol import operations, produce
from tests.scripts.limited_stage import ACCOUNT, declare, put
from tests.scripts.stage import Stage


def test_cancelled_and_purged_jobs_leave_their_lanes(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    one, *_ = put(stage, "x", "x", "y")
    assert stage.run(produce.cancel(stage.keys, one, 0)) == "cancelled"
    assert stage.run(operations.purge(stage.keys, "default", 1000)) == (2, 0)
    for name in ("lane:default|account=|x", "class:default|account=", "classes:default", "ready:default"):
        assert not stage.client.exists(stage.keys(name)), name
