from __future__ import annotations

import pytest

from headrace.model.job import Outcome
from headrace.protocol.produce import cancel
from tests.scripts.stage import KEEP, LEVEL, SECOND, START, Stage


@pytest.mark.parametrize("kind", ["retry", "released", "snoozed", "parked"])
def test_a_thousand_that_run_again(stage: Stage, kind: str) -> None:
    stage.put(1000)
    claims = stage.take(limit=1000)
    answer = stage.settle(*(Outcome(c.id, c.token, kind, b"", SECOND) for c in claims))
    assert answer.stale == []
    where = {"released": "ready:default", "parked": "parked:add"}.get(kind, "scheduled")
    assert len(stage.members(where)) == 1000


def test_a_failure_counts(stage: Stage) -> None:
    claim = stage.running()
    stage.end(claim, "failed", b"{}")
    assert stage.record(claim.id)["failures"] == b"1"


@pytest.mark.parametrize(("kind", "counter"), [("retry", "failures"), ("snoozed", "snoozes")])
def test_a_start_that_is_repeated_later_waits_for_its_time(stage: Stage, kind: str, counter: str) -> None:
    claim = stage.running()
    stage.end(claim, kind, b'{"type":"E"}', 5 * SECOND)
    record = stage.record(claim.id)
    assert (record["st"], record[counter]) == (b"scheduled", b"1")
    assert "owner" not in record
    assert stage.members("scheduled") == {claim.id: stage.now + 5 * SECOND}
    assert record.get("error") == (b'{"type":"E"}' if kind == "retry" else None)


@pytest.mark.parametrize("kind", ["retry", "snoozed"])
def test_without_a_delay_it_lines_up_at_once(stage: Stage, kind: str) -> None:
    claim = stage.running(priority=1)
    stage.doze()
    stage.now += SECOND
    stage.end(claim, kind, b"", 0)
    assert stage.members("ready:default") == {claim.id: stage.now - LEVEL}
    assert stage.tokens() == 1


@pytest.mark.parametrize("kind", ["retry", "snoozed", "released", "interrupted", "crashed", "parked"])
def test_a_job_that_was_asked_to_stop_is_not_started_again(stage: Stage, kind: str) -> None:
    claim = stage.running()
    assert stage.run(cancel(stage.keys, claim.id, KEEP)) == "asked"
    stage.end(claim, kind, b"{}", KEEP)
    assert stage.state(claim.id) == "cancelled"
    assert "cancel" not in stage.record(claim.id)
    assert stage.names("cancels:w1") == set()


def test_a_released_job_keeps_its_place_and_its_budgets(stage: Stage) -> None:
    (first,) = stage.put()
    stage.now += SECOND
    stage.put()
    claim = stage.take(limit=1)[0]
    stage.now += SECOND
    stage.settle(Outcome(claim.id, claim.token, "released"), ready=claim.ready)
    assert stage.ready()[0] == first
    assert stage.members("ready:default")[first] == START
    assert stage.take(limit=1)[0].attempt == 1


def test_an_interrupted_job_keeps_its_place_and_counts_apart(stage: Stage) -> None:
    claim = stage.running()
    stage.settle(Outcome(claim.id, claim.token, "interrupted"), ready=claim.ready)
    (again,) = stage.take()
    assert (again.interruptions, again.failures, again.crashes) == (1, 0, 0)


def test_a_start_that_may_not_be_repeated_fails_when_interrupted(stage: Stage) -> None:
    claim = stage.running(at_most_once=True)
    stage.end(claim, "interrupted", b'{"type":"Lost"}')
    assert stage.state(claim.id) == "failed"
    assert stage.record(claim.id)["error"] == b'{"type":"Lost"}'


def test_a_start_that_may_not_be_repeated_may_be_handed_back_before_it_began(stage: Stage) -> None:
    claim = stage.running(at_most_once=True)
    stage.settle(Outcome(claim.id, claim.token, "released"), ready=claim.ready)
    assert stage.state(claim.id) == "ready"


def test_an_unknown_task_is_parked_where_people_see_it(stage: Stage) -> None:
    claim = stage.running(task="later.on")
    stage.end(claim, "parked")
    assert stage.members("parked:later.on") == {claim.id: stage.now}
    assert stage.names("parking") == {"later.on"}
    assert "owner" not in stage.record(claim.id)


@pytest.mark.parametrize("kind", ["retry", "snoozed", "interrupted", "failed"])
def test_alien_counters_quarantine_the_job_and_spare_its_batch(stage: Stage, kind: str) -> None:
    stage.put(3)
    one, bad, three = stage.take()
    alien = dict.fromkeys(("failures", "snoozes", "interruptions"), b"\xffalien")
    stage.client.hset(stage.keys.job(bad.id), mapping=alien)
    answer = stage.settle(*(Outcome(c.id, c.token, kind, b"{}", SECOND) for c in (one, bad, three)))
    assert answer.stale == []
    assert stage.state(bad.id) == "quarantined"
    assert b'"Corrupt"' in stage.record(bad.id)["error"]
    assert stage.state(one.id) == stage.state(three.id) != "running"


def test_a_kind_that_nobody_knows_quarantines_the_job_and_spares_its_batch(stage: Stage) -> None:
    stage.put(2)
    one, two = stage.take()
    stage.settle(Outcome(one.id, one.token, "exploded"), Outcome(two.id, two.token, "succeeded", b"r", KEEP))
    assert (stage.state(one.id), stage.state(two.id)) == ("quarantined", "succeeded")


def test_workers_that_know_a_parked_task_and_serve_its_queue_hear_of_it_once(stage: Stage) -> None:
    stage.register("knows", queues="low,q", tasks={"new": "async"})
    stage.register("serves-another", queues="default,qq", tasks={"new": "async"})
    stage.register("knows-another", queues="q", tasks={"add": "process"})
    heard = {name: stage.subscribe(stage.keys.mail(name)) for name in ("knows", "serves-another", "knows-another")}
    stage.register("dead", lease=1, queues="q", tasks={"new": "async"})
    stage.put(3, task="new", queue="q")
    claims = stage.take(queues=["q"])
    stage.settle(*(stage.outcome(claim, "parked") for claim in claims))
    assert heard["knows"].get_message(timeout=20)["data"] == b"parked:new"
    stage.client.publish(stage.keys.mail("knows"), "the end")
    assert heard["knows"].get_message(timeout=20)["data"] == b"the end"
    for name in ("serves-another", "knows-another"):
        stage.client.publish(stage.keys.mail(name), "the end")
        assert heard[name].get_message(timeout=20)["data"] == b"the end"
