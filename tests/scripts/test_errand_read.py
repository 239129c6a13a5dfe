from __future__ import annotations

from headrace.protocol.errand_calls import begin_errand, read_errands
from tests.scripts.stage import Stage


def test_the_newest_come_first_and_what_expired_is_forgotten(stage: Stage) -> None:
    for id in "abc":
        stage.run(begin_errand(stage.keys, id, {"verb": "retry", "state": "failed", "total": 7}))
        stage.now += 1
    stage.client.delete(stage.keys("errand:b"))
    assert [one.id for one in stage.run(read_errands(stage.keys))] == ["c", "a"]
    assert list(stage.members("errands")) == ["a", "c"]
    assert [one.id for one in stage.run(read_errands(stage.keys, limit=1))] == ["c"]
    (one,) = stage.run(read_errands(stage.keys, "a"))
    assert (one.total, one.exact, one.refused, one.words) == (7, False, {}, "0 done")
    assert stage.run(read_errands(stage.keys, "none")) == []
