from __future__ import annotations

from headrace.model.ids import MOST_NODES
from headrace.model.job import Claim
from headrace.protocol import consume
from headrace.protocol.graph import reserve
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, Stage


def take(flow: Flow, claim: Claim, amount: int, owner: str = "w1", token: int = 0) -> int:
    return flow.stage.run(reserve(flow.stage.keys, owner, claim.id, token or claim.token, amount))


def test_numbers_follow_those_that_are_given(stage: Stage) -> None:
    flow = Flow(stage, "a b c").started()
    taken = flow.claims()
    assert take(flow, taken["a"], 10) == 4
    assert take(flow, taken["b"], 1) == 14
    assert stage.client.hget(stage.keys.flow(flow.id), "size") == b"14"


def test_a_repeat_gets_the_same_ones_and_a_later_start_too_if_they_suffice(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    claim = flow.claims()["a"]
    assert take(flow, claim, 10) == take(flow, claim, 10) == 2
    stage.end(claim, "retry", b"", 0)
    claim = flow.claims()["a"]
    assert take(flow, claim, 7) == 2
    assert take(flow, claim, 11) == 12
    assert take(flow, claim, 11) == 12


def test_an_older_start_gets_none(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    old = flow.claims()["a"]
    stage.run(consume.reclaim(stage.keys, "w1", True, 10, KEEP))
    new = flow.claims(owner="w2")["a"]
    assert take(flow, old, 3) == take(flow, old, 3, "w2") == take(flow, new, 3, "w1") == 0
    assert take(flow, new, 3, "w2") == 2


def test_what_is_cancelled_or_gone_gives_none(stage: Stage) -> None:
    one, two = Flow(stage, "a").started(), Flow(stage, "a").started()
    claims = {claim.id: claim for claim in stage.take()}
    one.cancel()
    two.delete()
    before = stage.everything()
    assert take(one, claims[one["a"]], 3) == take(two, claims[two["a"]], 3) == 0
    assert stage.everything() == before


def test_no_number_is_given_that_ids_cannot_hold(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    claim = flow.claims()["a"]
    assert take(flow, claim, MOST_NODES) == -1
    assert take(flow, claim, MOST_NODES - 1) == 2
