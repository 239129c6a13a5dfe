from __future__ import annotations

import pytest

from headrace.protocol.consume import Restored, restore
from tests.scripts.stage import SECOND, Stage


def put_back(stage: Stage, *starts: tuple[str, int], owner: str = "w1") -> Restored:
    return stage.run(restore(stage.keys, owner, starts))


def test_what_waits_as_if_it_had_never_been_claimed_runs_again_under_its_token(stage: Stage) -> None:
    ids = stage.put(3)
    stage.register()
    tokens = [stage.now + n for n in range(3)]
    assert put_back(stage, *zip(ids, tokens, strict=True)) == Restored([], [])
    assert stage.ready() == []
    assert stage.members("claims:w1") == dict(zip(ids, tokens, strict=True))
    assert [stage.record(id)["owner"] for id in ids] == [b"w1"] * 3
    assert stage.settle(*(stage.outcome(c) for c in stage.take()), request=99).stale == []


def test_a_repeat_changes_nothing(stage: Stage) -> None:
    (id,) = stage.put()
    stage.register()
    put_back(stage, (id, stage.now))
    before = stage.everything()
    assert put_back(stage, (id, stage.now)) == Restored([], [])
    assert stage.everything() == before


@pytest.mark.parametrize("kind", ["released", "retry"])
def test_a_start_that_the_store_remembers_is_not_brought_back(stage: Stage, kind: str) -> None:
    """It has lined up since: its next start is another one."""
    claim = stage.running()
    stage.end(claim, kind, amount=0)
    assert put_back(stage, (claim.id, claim.token)) == Restored([claim.id], [])
    assert stage.ready() == [claim.id]


def test_a_newer_start_stays_its_owners(stage: Stage) -> None:
    claim = stage.running("w2")
    stage.register()
    before = stage.members("claims:w2")
    assert put_back(stage, (claim.id, claim.token - 1)) == Restored([claim.id], [])
    assert stage.members("claims:w2") == before
    assert stage.members("claims:w1") == {}


def test_what_has_another_state_stays_as_it_is(stage: Stage) -> None:
    first, second = stage.put(2, key="k", ordered=True)
    ended = stage.finished(queue="other")
    answer = put_back(stage, (second, stage.now), (ended, stage.now + SECOND), ("0" * 21, stage.now + 2))
    assert answer == Restored([second, ended], ["0" * 21])
    assert (stage.state(second), stage.state(ended), stage.ready()) == ("blocked", "succeeded", [first])


def test_one_whose_promotion_was_forgotten_too_runs_again(stage: Stage) -> None:
    (id,) = stage.put(delay=SECOND)
    stage.register()
    assert put_back(stage, (id, stage.now)) == Restored([], [])
    assert (stage.members("scheduled"), stage.state(id)) == ({}, "running")


def test_no_token_is_given_out_twice_though_the_clock_is_behind(stage: Stage) -> None:
    """A server that took over may be behind in both: its history and its clock."""
    (id,) = stage.put()
    stage.register()
    told = stage.now + 3600 * SECOND
    put_back(stage, (id, told))
    assert stage.running().token > told


def test_nothing_is_stored_for_an_incarnation_that_is_gone(stage: Stage) -> None:
    (id,) = stage.put()
    assert put_back(stage, (id, stage.now), owner="gone").others == [id]
    assert stage.ready() == [id]
    assert not stage.client.exists(stage.keys("claims:gone"))


@pytest.mark.mangles
def test_a_record_of_another_type_does_not_hold_up_the_others(stage: Stage) -> None:
    alien, id = stage.put(2)
    stage.client.delete(stage.keys.job(alien))
    stage.client.set(stage.keys.job(alien), "alien")
    stage.register()
    assert put_back(stage, (alien, stage.now), (id, stage.now + 1)) == Restored([alien], [])
    assert stage.members("claims:w1") == {id: stage.now + 1}
