"""Recount: a counter becomes what was counted, unless it has changed since."""

from __future__ import annotations

import pytest

from headrace.protocol.operations import recount
from tests.scripts.stage import Stage


@pytest.mark.parametrize("right", [7, 0])
def test_a_counter_becomes_what_was_counted(right: int, stage: Stage) -> None:
    stage.client.hset(stage.keys("totals"), mapping={"bytes": 5, "blocked": 1})
    assert stage.run(recount(stage.keys, "bytes", 5, right))
    assert stage.bytes() == right
    stage.client.delete(stage.keys("totals"))


def test_one_that_has_changed_stays(stage: Stage) -> None:
    assert not stage.run(recount(stage.keys, "bytes", 5, 7))
    assert stage.client.exists(stage.keys("totals")) == 0
