from __future__ import annotations

import pytest

from headrace.model.ids import OWN_QUEUE, make_id
from headrace.model.job import Claim
from headrace.protocol import consume
from headrace.protocol.operations import store_own
from tests.scripts.stage import KEEP, Stage


def own_id(name: str) -> str:
    return make_id(1_600_000_000_000, int(name))


def store(stage: Stage, name: str) -> str:
    return stage.run(store_own(stage.keys, own_id(name), {"task": "headrace.test", "args": b"\x92\x90\x80"}))


def claim_own(stage: Stage, own: int = 9, owner: str = "w1", number: int = 1, limit: int = 10) -> list[Claim]:
    stage.register(owner)
    call = consume.claim(stage.keys, owner, number, limit, [OWN_QUEUE, "default"], own=own)
    return stage.run(call).jobs


def test_it_lines_up_in_the_queue_of_every_worker(stage: Stage) -> None:
    assert store(stage, "1") == "stored"
    assert store(stage, "1") == "known"
    assert stage.ready(OWN_QUEUE) == list(stage.members("own")) == [own_id("1")]
    assert stage.tokens(OWN_QUEUE) == 1
    (claim,) = claim_own(stage)
    assert (claim.id, claim.task, claim.queue) == (own_id("1"), "headrace.test", OWN_QUEUE)


@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_claim_takes_so_many_of_them_beside_others(stage: Stage, own: int) -> None:
    for n in range(3):
        store(stage, f"{n}")
    stage.put(3)
    claims = claim_own(stage, own) if own else []
    assert [claim.queue for claim in claims] == ([OWN_QUEUE] * own + ["default"] * 3 if own else [])
    assert len(stage.ready(OWN_QUEUE)) == 3 - own


def test_what_has_left_is_listed_no_more(stage: Stage) -> None:
    store(stage, "1")
    (claim,) = claim_own(stage)
    stage.end(claim, "succeeded", b"\xc0", 0)
    store(stage, "2")
    assert list(stage.members("own")) == [own_id("2")]
    assert 0 < stage.client.ttl(stage.keys("own")) <= 30 * 86400


def test_of_too_many_the_oldest_end_before_their_time(stage: Stage) -> None:
    store(stage, "1")
    (claim,) = claim_own(stage)
    stage.end(claim, "failed", b"{}", KEEP)
    for n in range(2, 1002):
        store(stage, f"{n}")
    assert len(stage.members("own")) == 1000
    assert own_id("1") not in stage.members("own")
    assert stage.members("expires")[own_id("1")] == stage.now
