"""The included script ``request_ids``: a request that comes twice makes its jobs once."""

from __future__ import annotations

import pytest

from headrace.model.form import NewJob
from headrace.protocol import produce
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.test_enqueue import send


def test_a_request_id_makes_one_job(stage: Stage) -> None:
    job = stage.job()
    assert send(stage, job, request="order-1").word == "ok"
    again = stage.job()
    assert send(stage, again, number=2, request="order-1").duplicates == {again.id: job.id}
    assert send(stage, stage.job(), number=3, request="order-2").word == "ok"
    assert len(stage.ready()) == 2
    assert 0 < stage.client.pttl(stage.keys("request:order-1")) <= 86_400_000


def test_a_lost_reply_of_a_duplicate_still_names_the_earlier_job(stage: Stage) -> None:
    job, again = stage.job(), stage.job()
    send(stage, job, request="order-1")
    for _ in range(2):
        assert send(stage, again, number=2, request="order-1").duplicates == {again.id: job.id}
    assert stage.state(again.id) is None


def test_a_lost_reply_of_the_first_request_is_no_duplicate(stage: Stage) -> None:
    job = stage.job()
    assert send(stage, job, request="order-1").word == "ok"
    assert send(stage, job, request="order-1") == produce.Accepted("repeated")


@pytest.mark.parametrize("until", ["its record lives", "its mark lives"])
def test_the_same_id_from_another_sender_is_stored_once(stage: Stage, until: str) -> None:
    """What a relay that restarts does: a finished job must not come back beside its own end."""
    job = stage.job()
    assert send(stage, job, request="order-1") == produce.Accepted("ok")
    (claim,) = stage.take()
    stage.end(claim, amount=KEEP if until == "its record lives" else 0)
    if until == "its record lives":
        stage.client.delete(stage.keys("request:order-1"))
    before = (stage.state(job.id), stage.members("succeeded"))
    for number in (1, 2):
        assert send(stage, job, sender="another", number=number, request="order-1").duplicates == {job.id: job.id}
    assert (stage.state(job.id), stage.members("succeeded")) == before
    assert stage.ready() == []


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_by_id_stores_what_is_not_there_yet(stage: Stage, ordered: bool) -> None:
    def of_ids(jobs: list[NewJob], sender: str, number: int) -> produce.Accepted:
        ids = [job.id for job in jobs]
        return stage.run(produce.enqueue(stage.keys, jobs, sender, number, ids))

    old = [stage.job(key="k", ordered=ordered), stage.job(queue="low"), stage.job(delay=SECOND)]
    new = [stage.job(key="k", ordered=ordered), stage.job()]
    assert of_ids(old, "a", 1) == produce.Accepted("ok")
    for _ in range(2):
        answer = of_ids([old[0], new[0], old[1], new[1], old[2]], "b", 1)
        # Of a repeat nobody can tell which of its own ids it stored itself, and nobody need.
        assert answer in (produce.Accepted("ok", {job.id: job.id for job in old}), produce.Accepted("repeated"))
    assert {stage.state(job.id) for job in new} == {"ready", "blocked"} if ordered else {"ready"}
    assert len(stage.ready()) + len(stage.ready("low")) == (3 if ordered else 4)


def test_in_a_batch_only_those_with_a_request_id_are_looked_for(stage: Stage) -> None:
    first, second, third = (stage.job() for _ in range(3))
    send(stage, first, request="r")
    call = produce.enqueue(stage.keys, [second, third], "t", 1, ["", "r"]).at(stage.now)
    assert stage.run(call) == produce.Accepted("ok", {third.id: first.id})
    assert stage.ready() == [first.id, second.id]


def test_the_shortest_window_is_a_millisecond(stage: Stage) -> None:
    call = produce.enqueue(stage.keys, [stage.job()], "s", 1, ["r"], request_id_ttl=1e-9).at(stage.now)
    assert stage.run(call).word == "ok"


@pytest.mark.parametrize("ordered", [False, True])
def test_ordered_jobs_have_request_ids_as_others_do(stage: Stage, ordered: bool) -> None:
    first, second = (stage.job(key="k", ordered=ordered) for _ in range(2))
    assert stage.run(produce.enqueue(stage.keys, [first], "p", 1, ["r"])).word == "ok"
    again = stage.run(produce.enqueue(stage.keys, [second], "p", 2, ["r"]))
    assert again.duplicates == {second.id: first.id}
