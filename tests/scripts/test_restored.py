"""A store that was put back to an old copy: no worker claims from it before an operator has decided."""

from __future__ import annotations

import pytest
import redis

from headrace.protocol.consume import restore
from headrace.protocol.operations import restored
from tests.scripts.stage import SECOND, Stage


def test_old_leases_show_an_old_copy(stage: Stage) -> None:
    stage.put(2)
    stage.take(limit=1)
    stage.run(restore(stage.keys, "w1", [], stage.now + 75 * SECOND))
    assert stage.run(restored(stage.keys, go=False)) == 0, "a failover loses seconds"
    promise = stage.now + 3600 * SECOND
    stage.run(restore(stage.keys, "w1", [], promise))
    assert stage.run(restored(stage.keys, go=False)) == 0, "the clock of a new primary is an hour behind"
    stage.now += 3580 * SECOND
    stage.run(restore(stage.keys, "w1", [], promise))
    assert not stage.claim().alive
    with pytest.raises(redis.ResponseError, match=r"RESTORED .* 3585 s before.*headrace restored --live park"):
        stage.register("w2")
    assert stage.run(restored(stage.keys, go=True)) == 3585 * SECOND
    assert stage.run(restored(stage.keys, go=False)) == 0
    stage.register("w2")
    assert len(stage.claim("w2").jobs) == 1


def test_an_empty_store_is_no_copy(stage: Stage) -> None:
    stage.run(restore(stage.keys, "w1", [], stage.now + 3600 * SECOND))
    assert stage.run(restored(stage.keys, go=False)) == 0
