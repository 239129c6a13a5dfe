from __future__ import annotations

import redis

from headrace.protocol import operations
from headrace.protocol.overviews import CountedQueues, StoreLoad, store_load
from tests.scripts.limited_stage import API, declare
from tests.scripts.limited_stage import put as put_limited
from tests.scripts.stage import SECOND, START, Stage


def look(stage: Stage, *queues: str, soon: int = 60, most: int = 100) -> StoreLoad:
    before = stage.everything()
    found = stage.run(store_load(stage.keys, queues, soon * SECOND, most))
    assert stage.everything() == before
    return found


def test_an_empty_store_has_nothing_to_do(stage: Stage) -> None:
    found = look(stage, "default")
    assert (found.now, found.ready, found.paused, found.first_tick) == (START, {"default": 0}, frozenset(), 0)
    assert found.running == found.due == CountedQueues(0, 0, {})
    assert found.memory > 0


def test_what_waits_runs_and_comes_due_is_told_by_queue(stage: Stage) -> None:
    stage.running("w1", queue="mail")
    stage.running("w2", queue="mail")
    stage.running("w2", queue="default")
    stage.put(3, queue="mail")
    stage.put(2, queue="mail", delay=60 * SECOND)
    stage.put(queue="low", delay=59 * SECOND)
    stage.put(queue="low", delay=61 * SECOND)
    stage.run(operations.pause(stage.keys, "low"))
    found = look(stage, "mail", "low")
    assert (found.ready, found.paused) == ({"mail": 3, "low": 0}, frozenset({"low"}))
    assert (found.running.total, found.running.counts) == (3, {"mail": 2, "default": 1})
    assert (found.due.total, found.due.counts) == (3, {"mail": 2, "low": 1})


def test_what_runs_is_counted_from_the_claim_to_the_retry(stage: Stage) -> None:
    claim = stage.running(queue="mail")
    assert (look(stage, "mail").ready["mail"], look(stage).running.of("mail")) == (0, 1)
    stage.end(claim, "retry", b"{}", SECOND)
    found = look(stage, "mail")
    assert (found.running.of("mail"), found.due.of("mail")) == (0, 1)


def test_the_entry_of_timers_is_no_job(stage: Stage) -> None:
    declare(stage, {"call": [API]})
    put_limited(stage, "a", "b", "c")
    stage.take()
    stage.client.zadd(stage.keys("timers"), {"gate:api:": START + SECOND})
    stage.client.zadd(stage.keys("scheduled"), {"~": START + SECOND})
    stage.put(delay=2 * SECOND)
    found = look(stage, "default")
    assert (found.due.total, found.due.looked, found.due.counts) == (1, 1, {"default": 1})
    assert (found.running.total, found.ready["default"]) == (2, 1)


def test_a_look_is_bounded_and_never_guesses_none(stage: Stage) -> None:
    stage.put(40, delay=SECOND)
    stage.put(1, queue="mail", delay=2 * SECOND)
    stage.put(40, queue="low")
    stage.take(queues=["low"])
    found = look(stage, most=20)
    assert (found.due.total, found.due.looked, found.running.total, found.running.looked) == (41, 20, 40, 20)
    assert (found.due.of("default"), found.due.of("mail")) == (41, 1)
    assert (found.running.of("low"), found.running.of("mail")) == (40, 1)


def test_a_record_that_is_none_counts_for_the_default_queue(stage: Stage) -> None:
    claim = stage.running(queue="mail")
    stage.client.delete(stage.keys.job(claim.id))
    stage.client.set(stage.keys.job(claim.id), "x")
    assert stage.run(store_load(stage.keys)).running.counts == {"default": 1}
    stage.client.delete(stage.keys.job(claim.id), stage.keys("claims:w1"))


def test_the_server_tells_what_it_may_use(stage: Stage, client: redis.Redis) -> None:
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 500_000_000)
    try:
        assert look(stage).max_memory == 500_000_000
    finally:
        client.config_set("maxmemory", before)


def test_no_worker_stands_for_all_where_not_all_jobs_are_looked_at(stage: Stage) -> None:
    for owner, queue in (("w1", "mail"), ("w2", "low")):
        stage.put(30, queue=queue)
        stage.take(owner, queues=[queue])
    found = look(stage, most=20).running
    assert (found.total, found.looked, found.of("mail"), found.of("low")) == (60, 20, 30, 30)
