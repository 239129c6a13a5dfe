from __future__ import annotations

import msgspec
import pytest

from headrace.model.form import Form
from headrace.model.ids import make_id
from headrace.model.job import Outcome
from headrace.protocol.consume import reclaim
from headrace.protocol.produce import broadcast, cancel
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, LEVEL, SECOND, Stage

LEASE = 15 * SECOND


def take_over(stage: Stage, victim: str = "w1", known: bool = False, limit: int = 500) -> tuple[str, int]:
    return stage.run(reclaim(stage.keys, victim, known, limit, KEEP))


def test_while_the_lease_runs_nothing_is_touched(stage: Stage) -> None:
    stage.running()
    stage.now += LEASE - 1
    before = stage.everything()
    assert take_over(stage) == ("alive", 0)
    assert stage.everything() == before


@pytest.mark.parametrize("known", [False, True])
def test_a_dead_ones_jobs_run_again_and_count_a_crash(stage: Stage, known: bool) -> None:
    claim = stage.running(priority=1)
    if not known:
        stage.lapse()
    stage.doze()
    assert take_over(stage, known=known) == ("done", 1)
    record = stage.record(claim.id)
    assert (record["st"], record["crashes"]) == (b"ready", b"1")
    error = msgspec.json.decode(record["error"])
    assert (error["type"], error["worker"]) == ("Crashed", "host:w1")
    assert stage.members("ready:default") == {claim.id: stage.now - LEVEL}
    assert stage.tokens() == 1
    assert "w1" not in stage.members("owners")
    assert not stage.client.exists(*(stage.keys(f"{name}:w1") for name in ("owner", "claims", "cancels")))


def test_the_dead_one_had_said_which_budget_its_tasks_have(stage: Stage) -> None:
    stage.register("w1", facts=["budget:add", 1])
    claim = stage.running()
    take_over(stage, known=True)
    assert stage.state(claim.id) == "quarantined"


def test_again_is_done_already(stage: Stage) -> None:
    stage.running()
    take_over(stage, known=True)
    before = stage.everything()
    assert take_over(stage, known=True) == ("done", 0)
    assert stage.everything() == before


def test_the_zombie_is_refused_and_leaves_no_trace(stage: Stage) -> None:
    claim = stage.running("w1")
    stage.lapse()
    take_over(stage)
    (again,) = stage.take("w2")
    assert again.token > claim.token
    before = stage.everything()
    answer = stage.settle(Outcome(claim.id, claim.token, "succeeded", b"late", KEEP), owner="w1")
    assert answer.stale == [claim.id]
    assert not stage.claim("w1").alive
    assert stage.everything() == before
    stage.end_as("w2", again)
    assert stage.state(claim.id) == "succeeded"


@pytest.mark.parametrize("limit", [1, 100, 500])
def test_a_bounded_number_at_a_time_and_no_new_claims_meanwhile(stage: Stage, limit: int) -> None:
    stage.put(1001)
    stage.take(limit=1000)
    begun = stage.now
    stage.lapse()
    assert take_over(stage, limit=limit) == ("some", limit)
    assert len(stage.members("claims:w1")) == 1000 - limit
    stage.now = begun
    assert not stage.claim("w1").alive
    words = [take_over(stage, known=True)[0] for _ in range(3)]
    assert words[-1] == "done"
    assert len(stage.ready()) == 1001


def test_a_used_up_budget_quarantines(stage: Stage) -> None:
    claim = stage.running()
    for _ in range(3):
        take_over(stage, known=True)
        stage.take()
    assert stage.state(claim.id) == "quarantined"
    assert stage.members("expires") == {claim.id: stage.now + KEEP}


def test_a_start_that_may_not_be_repeated_fails(stage: Stage) -> None:
    claim = stage.running(at_most_once=True)
    take_over(stage, known=True)
    assert stage.state(claim.id) == "failed"


def test_a_job_that_was_asked_to_stop_does_not_run_again(stage: Stage) -> None:
    stage.put(600)
    claims = stage.take()
    for claim in claims[:3]:
        stage.run(cancel(stage.keys, claim.id, KEEP))
    assert take_over(stage, known=True)[0] == "some"
    assert {stage.state(claim.id) for claim in claims[:3]} == {"cancelled"}
    assert stage.names("cancels:w1") == set()


def test_a_record_that_is_gone_is_forgotten(stage: Stage) -> None:
    claim = stage.running()
    stage.client.delete(stage.keys.job(claim.id))
    assert take_over(stage, known=True) == ("done", 1)


@pytest.mark.mangles
def test_a_record_of_another_type_does_not_hold_up_the_others(stage: Stage) -> None:
    stage.put(3)
    claims = stage.take()
    stage.client.delete(stage.keys.job(claims[0].id))
    stage.client.set(stage.keys.job(claims[0].id), "alien")
    assert take_over(stage, known=True) == ("done", 3)
    assert stage.ready() == [claims[1].id, claims[2].id]


@pytest.mark.mangles
def test_an_unreadable_broadcast_takes_no_job_with_it(stage: Stage) -> None:
    """Scripts do not roll back: these had left the claims, and were in no queue."""
    claim = stage.running()
    odd, other = (make_id(stage.now // 1000, 100 + n) for n in range(2))
    stage.run(broadcast(stage.keys, Form("add"), b"\x90", [("w1", odd), ("w1", other)]))
    stage.client.set(stage.keys.job(odd), "unreadable")
    assert take_over(stage, known=True) == ("done", 1)
    assert (stage.ready(), stage.state(other)) == ([claim.id], "cancelled")


@pytest.mark.mangles
def test_the_workflow_of_a_record_that_is_gone_goes_on_without_it(stage: Stage) -> None:
    flow = Flow(stage, "a>b a>c:c").started()
    flow.claims()
    stage.client.delete(stage.keys.job(flow["a"]))
    assert take_over(stage, known=True) == ("done", 1)
    flow.tend_all()
    assert (flow.state, flow.states["a"]) == ("failed", "cancelled")


@pytest.mark.mangles
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", ["owner:w1", "claims:w1", "cancels:w1", "slots:w1", "ready:@w1"])
def test_a_key_of_another_type_does_not_keep_a_dead_one(stage: Stage, name: str, known: bool) -> None:
    """Each worker that took over failed at it, again and again."""
    claim = stage.running()
    stage.client.delete(stage.keys(name))
    stage.client.set(stage.keys(name), "alien")
    if not known:
        stage.lapse()
    assert take_over(stage, known=known)[0] == "done"
    assert not stage.client.exists(stage.keys(name))
    assert stage.ready() == ([claim.id] if name != "claims:w1" else [])


def test_an_odd_place_is_still_readable_evidence(stage: Stage) -> None:
    claim = stage.running()
    stage.client.hset(stage.keys("owner:w1"), "place", 'ho"st\\:1\n')
    take_over(stage, known=True)
    assert msgspec.json.decode(stage.record(claim.id)["error"])["worker"] == 'ho"st\\:1\n'


def test_an_incarnation_that_held_nothing(stage: Stage) -> None:
    stage.register()
    stage.lapse()
    assert take_over(stage) == ("done", 0)
    assert not stage.client.exists(stage.keys("owner:w1"))
    assert take_over(stage, "witness", known=True) == ("done", 0)
    assert stage.left() == set()
