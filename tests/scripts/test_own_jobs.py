"""The included script ``own_jobs``: counts and lists of the application's jobs leave built-in jobs out."""

from __future__ import annotations

import pytest

from headrace.protocol.index_pages import walk
from headrace.protocol.overviews import overview
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.test_own_store import claim_own, store


@pytest.mark.parametrize("kind", ["running", "snoozed", "parked", "failed", "succeeded"])
def test_counts_and_lists_leave_them_out(stage: Stage, kind: str) -> None:
    store(stage, "1")
    (claim,) = claim_own(stage)
    state = {"snoozed": "scheduled"}.get(kind, kind)
    if kind != "running":
        stage.end(claim, kind, b"{}", SECOND if kind == "snoozed" else KEEP)
    assert stage.state(claim.id) == state
    seen = stage.run(overview(stage.keys))
    assert (set(seen.states.values()), [queue.name for queue in seen.queues], seen.parked) == ({0}, ["default"], {})
    structure = {"running": "claims:w1", "parked": "parked:headrace.test"}.get(state, state)
    part = stage.run(walk(stage.keys, [structure], 9))
    assert part.rows == []
    own = stage.run(walk(stage.keys, ["own"], 9))
    assert [id for id, _ in own.rows] == [claim.id]
