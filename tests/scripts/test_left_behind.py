"""The included script ``left_behind``: what was broadcast to a worker ends with it, and its line with the last of it."""

from __future__ import annotations

import pytest

from headrace.model.form import Form
from headrace.model.ids import make_id
from headrace.protocol import consume, produce
from tests.scripts.stage import KEEP, Stage


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501])
@pytest.mark.parametrize("how", ["retire", "reclaim"])
def test_what_was_not_begun_ends_as_cancelled(stage: Stage, count: int, how: str) -> None:
    stage.register("w1")
    ids = [make_id(stage.now // 1000, 100 + n) for n in range(count)]
    if ids:
        stage.run(produce.broadcast(stage.keys, Form("add"), b"\x90", [("w1", id) for id in ids]))
    calls = {
        "retire": consume.retire(stage.keys, "w1", KEEP).at(stage.now),
        "reclaim": consume.reclaim(stage.keys, "w1", True, 500, KEEP).at(stage.now),
    }
    first = stage.run(calls[how])
    if count > 500:
        assert first in (False, ("some", 0))
        first = stage.run(calls[how])
    assert first in (True, ("done", 0))
    assert {stage.state(id) for id in ids} <= {"cancelled"}
    assert set(stage.members("cancelled")) == set(ids)
    assert not stage.client.exists(stage.keys("owner:w1"), stage.keys("ready:@w1"))
