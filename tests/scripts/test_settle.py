from __future__ import annotations

import pytest

from headrace.model.job import Outcome
from headrace.protocol.produce import cancel
from tests.scripts.stage import KEEP, SECOND, Stage

FINAL = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled", "corrupt": "quarantined"}


@pytest.mark.parametrize(("kind", "state"), FINAL.items())
def test_a_final_outcome_moves_the_job_to_its_state(stage: Stage, kind: str, state: str) -> None:
    claim = stage.running()
    stage.now += SECOND
    stage.end(claim, kind, b"told", KEEP)
    record = stage.record(claim.id)
    assert record["st"] == state.encode()
    assert record["result" if kind == "succeeded" else "error"] == b"told"
    assert int(record["finished"]) == stage.now
    assert "owner" not in record
    assert stage.members(state) == {claim.id: stage.now}
    assert stage.members("expires") == {claim.id: stage.now + KEEP}
    assert stage.members("claims:w1") == {}
    assert stage.bytes() == 4


@pytest.mark.parametrize("kind", FINAL)
def test_what_is_not_kept_leaves_nothing(stage: Stage, kind: str) -> None:
    stage.end(stage.running(), kind, b"told", 0)
    assert stage.left() == {"sender", "owners", "owner", "queues", "wake", "token"}


def test_the_answer_tells_what_is_kept(stage: Stage) -> None:
    stage.finished(data=b"12345")
    claim = stage.running()
    answer = stage.settle(Outcome(claim.id, claim.token, "succeeded", b"678", KEEP))
    assert (answer.repeated, answer.stale, answer.kept, answer.bytes) == (False, [], 2, 8)


def test_the_same_request_again_changes_nothing(stage: Stage) -> None:
    claim = stage.running()
    outcome = Outcome(claim.id, claim.token, "retry", b"{}", 0)
    stage.settle(outcome, request=50)
    (again,) = stage.take()
    before = stage.everything()
    answer = stage.settle(outcome, request=50)
    assert (answer.repeated, answer.stale) == (True, [])
    assert stage.everything() == before
    assert again.failures == 1


def test_an_older_token_is_refused(stage: Stage) -> None:
    old = stage.running()
    stage.end(old, "retry", b"{}", 0)
    (new,) = stage.take()
    before = stage.record(old.id)
    answer = stage.settle(Outcome(old.id, old.token, "succeeded", b"late", KEEP))
    assert answer.stale == [old.id]
    assert stage.record(old.id) == before
    stage.end(new)


def test_anothers_job_is_refused(stage: Stage) -> None:
    claim = stage.running("w1")
    stage.register("w2")
    assert stage.settle(Outcome(claim.id, claim.token, "failed", b"", 0), owner="w2").stale == [claim.id]
    assert stage.state(claim.id) == "running"


def test_what_is_over_leaves_no_trace_of_the_one_who_is_late(stage: Stage) -> None:
    # A worker that was stopped for longer than its lease settles after it was reclaimed: a key written for it
    # now would have no owner and no end.
    claim = stage.running(lease := "w1")
    stage.client.delete(stage.keys(f"claims:{lease}"), stage.keys(f"owner:{lease}"))
    stage.client.zrem(stage.keys("owners"), lease)
    stage.client.delete(stage.keys.job(claim.id))
    before = stage.everything()
    assert stage.settle(Outcome(claim.id, claim.token, "succeeded", b"r", KEEP)).stale == [claim.id]
    assert stage.everything() == before


def test_good_and_stale_in_one_batch(stage: Stage) -> None:
    stage.put(3)
    one, two, three = stage.take()
    stage.end(two)
    answer = stage.settle(
        Outcome(one.id, one.token, "succeeded", b"1", KEEP),
        Outcome(two.id, two.token, "succeeded", b"2", KEEP),
        Outcome(three.id, three.token + 1, "succeeded", b"3", KEEP),
    )
    assert answer.stale == [two.id, three.id]
    assert stage.state(three.id) == "running"
    stage.end(three)


def test_two_outcomes_of_one_start_count_once(stage: Stage) -> None:
    claim = stage.running()
    answer = stage.settle(
        Outcome(claim.id, claim.token, "succeeded", b"12", KEEP), Outcome(claim.id, claim.token, "retry", b"", 9)
    )
    assert answer.stale == [claim.id]
    assert stage.state(claim.id) == "succeeded"
    assert stage.bytes() == 2


def test_nothing_to_settle_is_fine(stage: Stage) -> None:
    stage.register()
    assert stage.settle().stale == []


@pytest.mark.parametrize("count", [1, 499, 500, 501, 999, 1000])
@pytest.mark.parametrize("keep", [0, KEEP])
def test_every_size_of_a_batch_is_settled(stage: Stage, count: int, keep: int) -> None:
    stage.put(count)
    claims = stage.take(limit=1000)
    kinds = ("succeeded", "failed", "cancelled", "corrupt")
    answer = stage.settle(*(Outcome(c.id, c.token, kinds[n % 4], b"x", keep) for n, c in enumerate(claims)))
    assert (answer.stale, answer.kept, answer.bytes) == ([], count if keep else 0, count if keep else 0)
    assert sum(len(stage.members(state)) for state in FINAL.values()) == (count if keep else 0)


def test_a_job_that_was_asked_to_stop_may_finish_first(stage: Stage) -> None:
    claim = stage.running()
    stage.run(cancel(stage.keys, claim.id, KEEP))
    stage.end(claim, "succeeded", b"r")
    assert stage.state(claim.id) == "succeeded"


def test_a_result_replaces_the_error_of_an_earlier_start(stage: Stage) -> None:
    claim = stage.running()
    stage.end(claim, "retry", b'{"type":"E"}', 0)
    (again,) = stage.take()
    stage.end(again, "succeeded", b"fine")
    assert "error" not in stage.record(claim.id)
    assert stage.bytes() == 4


def test_every_byte_of_a_result_survives(stage: Stage) -> None:
    claim = stage.running()
    data = bytes(range(256)) * 300
    stage.end(claim, "succeeded", data)
    assert stage.record(claim.id)["result"] == data
    assert stage.bytes() == len(data)


@pytest.mark.mangles
@pytest.mark.parametrize("kind", ["retry", "succeeded", "released", "crashed", "interrupted", "parked", "failed"])
def test_a_record_of_another_type_spares_its_batch(stage: Stage, kind: str) -> None:
    stage.put(3)
    one, bad, three = stage.take()
    stage.client.delete(stage.keys.job(bad.id))
    stage.client.set(stage.keys.job(bad.id), "alien")
    answer = stage.settle(*(Outcome(c.id, c.token, kind, b"{}", SECOND) for c in (one, bad, three)))
    assert answer.stale == [bad.id]
    assert stage.members("claims:w1") == {}
    assert stage.state(one.id) == stage.state(three.id) != "running"


@pytest.mark.parametrize(
    "kind",
    ["succeeded", "failed", "cancelled", "corrupt", "crashed", "retry", "snoozed", "released", "interrupted", "parked"],
)
def test_a_record_that_was_deleted_is_not_written_anew(stage: Stage, kind: str) -> None:
    claim, mate = stage.running(), stage.running()
    stage.client.delete(stage.keys.job(claim.id))
    stage.settle(stage.outcome(claim, kind, b"data"), stage.outcome(mate, kind, b"data"))
    assert stage.state(claim.id) is None
    assert stage.state(mate.id) is not None
    indexed = [
        name
        for name in ("ready:default", "scheduled", "parked:add", *FINAL.values())
        if claim.id in stage.members(name)
    ]
    assert indexed == []
