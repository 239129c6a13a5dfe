from __future__ import annotations

import pytest

from headrace.protocol.consume import sweep
from headrace.protocol.produce import watch
from tests.scripts.stage import KEEP, SECOND, START, Stage

MANY = 10**9


def clean(stage: Stage, limit: int = 1000, most: int = MANY, room: int = MANY) -> tuple[int, int, int]:
    return stage.run(sweep(stage.keys, limit, most, room))


def kept(stage: Stage) -> list[str]:
    return list(stage.members("expires"))


def test_who_is_over_leaves(stage: Stage) -> None:
    short = [stage.finished(kind, b"12", SECOND) for kind in ("succeeded", "failed", "cancelled", "corrupt")]
    long = stage.finished(ttl=2 * SECOND, data=b"345")
    assert clean(stage) == (0, START, START + SECOND)
    stage.now += SECOND
    assert clean(stage) == (4, stage.now, START + 2 * SECOND)
    assert {stage.state(id) for id in short} == {None}
    assert (kept(stage), stage.bytes()) == ([long], 3)
    stage.now += SECOND
    assert clean(stage) == (1, stage.now, 0)
    assert clean(stage) == (0, stage.now, 0)
    assert not stage.client.exists(stage.keys("totals"), stage.keys("succeeded"))


def test_too_many_leave_soonest_to_expire_first(stage: Stage) -> None:
    ids = [stage.finished(ttl=KEEP + n) for n in range(5)]
    assert clean(stage, most=3)[0] == 2
    assert kept(stage) == ids[2:]
    assert clean(stage, most=0)[0] == 3


def test_too_large_leave_soonest_to_expire_first(stage: Stage) -> None:
    ids = [stage.finished(ttl=KEEP + n, data=b"x" * 10) for n in range(5)]
    assert clean(stage, room=35)[0] == 2
    assert kept(stage) == ids[2:]
    assert stage.bytes() == 30


@pytest.mark.parametrize("limit", [1, 499, 500, 501, 999, 1000])
def test_no_more_than_the_limit(stage: Stage, limit: int) -> None:
    stage.put(1000)
    for claim in (claims := stage.take()):
        assert claim.token
    stage.settle(*(stage.outcome(c, data=b"xy", amount=SECOND) for c in claims))
    stage.now += SECOND
    assert clean(stage, limit)[0] == limit
    assert len(kept(stage)) == 1000 - limit
    assert stage.bytes() == 2 * (1000 - limit)


def test_waits_that_are_over_are_forgotten(stage: Stage) -> None:
    (id,) = stage.put()
    stage.run(watch(stage.keys, id, SECOND))
    assert stage.members("waited") == {id: START + SECOND}
    stage.now += SECOND
    clean(stage)
    assert stage.members("waited") == {}


def test_a_record_that_is_gone_leaves_every_index(stage: Stage) -> None:
    gone, other = stage.finished(data=b""), stage.finished(ttl=KEEP + 1)
    stage.client.delete(stage.keys.job(gone))
    stage.now += KEEP
    assert clean(stage)[0] == 1
    assert stage.members("succeeded").keys() == {other}


def test_a_record_of_another_type_does_not_hold_up_the_others(stage: Stage) -> None:
    bad, good = stage.finished(data=b""), stage.finished(ttl=KEEP + 1)
    stage.client.delete(stage.keys.job(bad))
    stage.client.set(stage.keys.job(bad), "alien")
    stage.now += KEEP + 1
    assert clean(stage)[0] == 2
    assert not stage.client.exists(stage.keys.job(bad), stage.keys.job(good))
