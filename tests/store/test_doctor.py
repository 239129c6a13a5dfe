"""The doctor of the keyspace: each fault that is planted is found under its name, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from headrace import Headrace
from headrace.admin import keyspace
from headrace.admin.doctor import REPAIRED, ROWS, KeyspaceDoctor, findings_of
from headrace.model.environment import Finding
from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.testing import assert_invariants, violations
from tests.scripts import limited_stage as limits
from tests.scripts import test_flow_breaches as flows
from tests.scripts import test_invariants as jobs
from tests.scripts import unique_stage as unique
from tests.scripts.stage import KEEP, Stage

pytestmark = pytest.mark.mangles
Look = Callable[..., list[Finding]]


@pytest.fixture
def stage(client: redis.Redis) -> Iterator[Stage]:
    # Of several shards the first.
    stage = Stage(client, number=os.environ.get("HEADRACE_SHARDS", "1"), guarded=False)
    yield stage
    stage.close()


@pytest.fixture
def look(client: redis.Redis, url: str) -> Iterator[Look]:
    """Look once; what looks wrong is looked at again at once."""
    with Headrace(url) as app:

        def look(*, repair: bool = False) -> list[Finding]:
            walks = [KeyspaceDoctor(part, client, repair=repair, share=1, apart=0) for part in app.store.parts]
            return findings_of([walk.run() for walk in walks])

        yield look


def rows(found: list[Finding]) -> set[str]:
    return {one.id for one in found}


# Each planted fault of the suite's own invariants, and the finding that names it.
OF_JOBS = {
    "a job in two structures": "twice",
    "a job in none": "misplaced",
    "a state of no meaning": "unreadable",
    "a record that is gone": "no-record",
    "another token": "starts",
    "a token from the future": "starts",
    "a cancel flag alone": "starts",
    "a cancel without a flag": "starts",
    "a cancel of what runs elsewhere": "workers",
    "an owner without facts": "workers",
    "bytes": "counters",
    "kept for ever": "misplaced",
    "expires without an end": "misplaced",
    "a waiter of what is over": "waiters",
    "parking of nothing": "queues",
    "parked out of sight": "queues",
    "an end of no pause": "queues",
    "a sender for ever": "unexplained",
    "a job that vanishes": "unexplained",
    "an unknown key": "unexplained",
    "an unknown family": "unexplained",
    "another type": "unreadable",
}
BESIDE_WORKFLOWS = {
    "a waiter of a node that is": "waiters",
    "a held one in no structure": "misplaced",
    "a held one that is ready": "misplaced",
    "a blocked one in a structure": "misplaced",
}
# What harms no job: the doctor leaves it to the suite.
LEFT_OUT = {"a chore of no verb", "a number above the last"}


@pytest.mark.parametrize("name", OF_JOBS)
def test_each_fault_of_jobs_is_found_and_nothing_else(name: str, stage: Stage, look: Look) -> None:
    ids = jobs.scene(stage)
    assert look() == []
    jobs.BREAKS[name][0](stage, ids)
    (found,) = look()
    assert found.id == OF_JOBS[name]
    assert found.evidence
    assert found.count == len(found.evidence)


@pytest.mark.parametrize("name", sorted(flows.BREAKS.keys() - LEFT_OUT))
def test_each_fault_of_workflows_is_found_and_nothing_else(name: str, stage: Stage, look: Look) -> None:
    scene = flows.Scene(stage)
    assert look() == []
    flows.BREAKS[name][0](scene)
    assert rows(look()) == {BESIDE_WORKFLOWS.get(name, "workflow")}


def test_claims_of_no_worker_are_found_and_reclaimed(stage: Stage, look: Look) -> None:
    claim = stage.running()
    stage.client.zrem(stage.keys("owners"), "w1")
    assert rows(look()) == {"claims", "workers"}
    assert look(repair=True) == []
    assert stage.state(claim.id) == "ready"
    assert_invariants(stage.client)


def test_a_worker_that_claims_all_the_time_hides_no_fault(stage: Stage, url: str) -> None:
    class Busy:
        """A client beside which a job is claimed before each of its transactions."""

        def __getattr__(self, name: str) -> Any:
            return getattr(stage.client, name)

        def pipeline(self, **options: Any) -> Any:
            stage.claim("busy", 1)
            return stage.client.pipeline(**options)

    deaf = stage.running("deaf")
    stage.put(500)
    stage.register("busy")
    stage.client.hset(stage.keys.job(deaf.id), "cancel", 1)
    with Headrace(url) as app:
        assert "starts" in rows(KeyspaceDoctor(app.client, Busy(), share=1, apart=0).run())


def test_what_is_too_much_for_one_look_is_unknown_and_the_rest_is_judged(
    stage: Stage, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.declare(stage, {"call": [LimitRule("l", by="account", concurrency=Concurrency(1))]})
    limits.put(stage, *range(30))
    stage.running("deaf", queue="q")
    stage.client.zrem(stage.keys("owners"), "deaf")
    monkeypatch.setattr(keyspace, "MOST", 4)
    assert {one.id: one.severity for one in look()} == {"claims": "error", "workers": "warn", "held": "unknown"}
    monkeypatch.setattr(keyspace, "MOST", 1)
    assert {one.severity for one in look()} == {"unknown"}


def test_what_is_unknown_on_one_shard_hides_nothing_of_another() -> None:
    seen, unseen = Finding("held", "error", "", "", ("a",), 3), Finding("held", "unknown", "", "")
    for shards in ([seen], [unseen]), ([unseen], [seen]):
        (one,) = findings_of(shards)
        assert (one.severity, one.count) == ("error", 3)
    assert [one.severity for one in findings_of([[unseen], [unseen]])] == ["unknown"]


def test_a_turn_of_a_job_that_has_ended_is_found(stage: Stage, look: Look) -> None:
    stage.put(3, key="k", ordered=True)
    assert look() == []
    stage.client.set(stage.keys("turn:k"), stage.finished(queue="q"))
    assert rows(look()) == {"order"}
    stage.client.delete(stage.keys("turn:k"))
    assert rows(look()) == {"order"}


def test_a_slot_and_a_name_of_a_dead_job_are_found(stage: Stage, look: Look) -> None:
    limits.declare(stage, {"call": [LimitRule("l", by="account", concurrency=Concurrency(1))]})
    limits.put(stage, 1, 1)
    (claim,) = stage.take()
    unique.one(stage, queue="q")
    assert look() == []
    raw = stage.client.hget(stage.keys("slots:w1"), claim.id)
    stage.client.hdel(stage.keys("slots:w1"), claim.id)
    assert rows(look()) == {"held"}
    stage.client.hset(stage.keys("slots:w1"), claim.id, raw)
    assert look() == []
    with stage.client.pipeline() as pipe:
        pipe.set(stage.keys("unique:n"), "0" * 21).execute()
    assert rows(look()) == {"held"}
    stage.client.delete(stage.keys("unique:n"))
    assert rows(look()) == {"held"}


def test_jobs_that_no_idle_worker_was_woken_for_are_found(stage: Stage, look: Look, client: redis.Redis) -> None:
    stage.now = -1  # the server's own clock: the worker lives
    stage.register()
    stage.put()
    assert look() == []
    stage.doze()
    assert rows(look()) == {"asleep"}


def test_what_cannot_hurt_is_mended_and_the_rest_is_left(stage: Stage, look: Look) -> None:
    ids = jobs.scene(stage)
    for name in ("a job in none", "kept for ever", "bytes", "parking of nothing"):
        jobs.BREAKS[name][0](stage, ids)
    # Counters are judged when the jobs are where they should be.
    assert rows(look()) == {"misplaced", "queues"}
    assert rows(look(repair=True)) == {"queues"}
    assert rows(look()) == {"queues"}
    assert violations(stage.client) == {"parked:x: is empty, parking names it"}


def test_a_thousand_faults_at_random_are_found_and_mended(stage: Stage, look: Look) -> None:
    dice = random.Random(60)
    ready, scheduled = stage.put(700), stage.put(400, delay=KEEP)
    claims = stage.take(limit=100)
    ended = [claim.id for claim in stage.take(limit=200)]
    stage.settle(*(stage.outcome(claim, "failed", b"{}") for claim in claims))
    planted: dict[str, str] = {}
    ready = [id for id in ready if stage.state(id) == "ready"]
    everything = [*ready, *scheduled, *(claim.id for claim in claims), *ended]
    for id in dice.sample(everything, 1000):
        state = stage.state(id)
        place = {"ready": "ready:default", "running": "claims:w1"}.get(state or "", state or "")
        if state in ("ready", "scheduled") and dice.random() < 0.5:
            stage.client.delete(stage.keys.job(id))
            planted[id] = "no-record"
        else:
            stage.client.zrem(stage.keys(place), id)
            planted[id] = "misplaced"
    told = {one.id: one.count for one in look()}
    assert told == {word: sum(one == word for one in planted.values()) for word in set(planted.values())}
    assert look(repair=True) == []
    assert_invariants(stage.client)
    starts = [claim.id for claim in stage.take(limit=1000)]
    assert len(starts) == len(set(starts))


def test_a_look_changes_nothing(stage: Stage, look: Look) -> None:
    ids = jobs.scene(stage)
    assert look() == []
    jobs.BREAKS["a job in none"][0](stage, ids)
    before = stage.everything()
    look()
    assert stage.everything() == before


def test_the_rows_that_repair_are_those_that_cannot_hurt() -> None:
    assert {row for row, (_, _, command) in ROWS.items() if command == "headrace doctor keyspace --repair"} == {
        *REPAIRED
    }
