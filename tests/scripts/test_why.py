from __future__ import annotations

import pytest

from headrace.protocol.consume import renew
from headrace.protocol.operations import pause
from headrace.protocol.why import MOST_WORKERS, Candidate, Why, why
from tests.scripts.stage import SECOND, START, Stage


def look(stage: Stage, id: str) -> Why:
    before = stage.everything()
    found = stage.run(why(stage.keys, id, stage.now))
    assert stage.everything() == before
    return found


def test_a_ready_job_tells_its_place_and_who_may_run_it(stage: Stage) -> None:
    *_, last = stage.put(3, queue="mail")
    stage.register("w1", queues="default,low", tasks={"other": "thread"})
    stage.register("w2", queues="mail", tasks={"add": "async"})
    said = '[{"kind":"async","holds":3},{"kind":"thread","holds":9}]'
    facts = ["sizes", "async:4 thread:16", "crew", said]
    stage.run(renew(stage.keys, "w2", 16 * SECOND, facts, now=stage.now))
    found = look(stage, last)
    assert (found.state, found.queue, found.task, found.ahead, found.paused) == ("ready", "mail", "add", 2, False)
    assert found.live == 2
    assert found.workers == (Candidate("host:w2", ("mail",), "async", 4, 3), Candidate("host:w1", ("default", "low")))


def test_an_incarnation_whose_lease_is_over_does_not_count(stage: Stage) -> None:
    (id,) = stage.put()
    stage.register(lease=SECOND)
    stage.now += SECOND
    assert look(stage, id).live == 0


def test_a_pause_and_its_end_are_told(stage: Stage) -> None:
    (id,) = stage.put()
    stage.run(pause(stage.keys, "default", 5 * SECOND, stage.now))
    found = look(stage, id)
    assert (found.paused, found.until) == (True, START + 5 * SECOND)


def test_a_scheduled_job_tells_its_time_and_a_running_one_its_worker(stage: Stage) -> None:
    (id,) = stage.put(delay=SECOND)
    assert look(stage, id).due == START + SECOND
    claim = stage.running()
    found = look(stage, claim.id)
    assert (found.state, found.place, found.token) == ("running", "host:w1", claim.token)


def test_no_more_workers_are_looked_at_than_it_says(stage: Stage) -> None:
    (id,) = stage.put()
    for number in range(MOST_WORKERS + 3):
        stage.register(f"w{number}")
    found = look(stage, id)
    assert (found.live, len(found.workers)) == (MOST_WORKERS + 3, MOST_WORKERS)


def test_of_a_job_that_is_not_stored_nothing_is_told(stage: Stage) -> None:
    stage.register()
    found = look(stage, "none")
    assert (found.state, found.workers) == ("", ())


@pytest.mark.mangles
def test_a_record_of_another_type_is_none(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.delete(stage.keys.job(id))
    stage.client.set(stage.keys.job(id), "alien")
    assert look(stage, id).state == ""


def test_alien_facts_of_a_worker_are_read_as_nothing(stage: Stage) -> None:
    (id,) = stage.put()
    stage.register()
    alien = b"\xff\x00{"
    stage.client.hset(stage.keys.owner("w1"), mapping=dict.fromkeys(("place", "queues", "sizes", "crew"), alien))
    stage.client.hset(stage.keys.job(id), mapping={"token": alien})
    (worker,) = look(stage, id).workers
    assert (worker.size, worker.held) == (0, 0)


def test_what_a_worker_with_one_kind_of_runners_holds_is_counted_now(stage: Stage) -> None:
    stage.running()
    (id,) = stage.put()
    for sizes, held in (("process:1", 1), ("process:1 async:100", 0)):
        stage.run(renew(stage.keys, "w1", 16 * SECOND, ["sizes", sizes], now=stage.now))
        stage.client.hset(stage.keys.tasks("w1"), "add", "process")
        (worker,) = look(stage, id).workers
        assert (worker.held, worker.busy) == (held, bool(held))
