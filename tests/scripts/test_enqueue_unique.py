from __future__ import annotations

from typing import Any

import pytest

from headrace.model.ids import is_ordered, is_unique, shard_of
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import consume, produce
from headrace.protocol.produce import Accepted
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import NAMED, RAISING, holder, one, only, put


def test_a_name_makes_one_job_until_that_has_ended(stage: Stage) -> None:
    first = one(stage, note="first")
    second, answer = put(stage)
    assert answer.duplicates == {second.id: first}
    assert stage.state(second.id) is None
    (claim,) = stage.take()
    assert put(stage)[1].duplicates
    stage.end(claim)
    assert holder(stage) is None
    third = one(stage)
    assert holder(stage) == third
    assert is_unique(third)
    assert not is_ordered(third)
    assert shard_of(third) == 0


def test_names_do_not_mix(stage: Stage) -> None:
    one(stage)
    one(stage, UniqueRule("m"))
    stage.put(3)
    assert len(stage.take()) == 5


def test_one_chunk_has_one_job_of_a_name(stage: Stage) -> None:
    jobs = [stage.job(unique=UniqueRule(f"n{n % 3}")) for n in range(9)] + [stage.job(queue="other")]
    answer = stage.enqueue(*jobs)
    assert answer.duplicates == {job.id: jobs[n % 3].id for n, job in enumerate(jobs) if 3 <= n < 9}
    assert len(stage.take()) == 3


def test_a_unique_job_may_wait_for_its_time(stage: Stage) -> None:
    stage.register()
    first = one(stage, delay=SECOND)
    assert stage.state(first) == "scheduled"
    assert put(stage)[1].duplicates
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert put(stage)[1].duplicates
    assert [claim.id for claim in stage.take()] == [first]


def test_ordered_jobs_of_a_call_with_unique_ones_keep_their_order(stage: Stage) -> None:
    rule = UniqueRule("n")
    jobs = [
        stage.job(unique=rule), *(stage.job(ordered=True, key="k") for _ in range(2)),
        stage.job(unique=UniqueRule("m"), ordered=True, key="k"), stage.job(ordered=True, key="k", delay=SECOND),
        stage.job(unique=rule),
    ]  # fmt: skip
    assert stage.enqueue(*jobs).duplicates == {jobs[5].id: jobs[0].id}
    assert [stage.state(job.id) for job in jobs[:5]] == ["ready", "ready", "blocked", "blocked", "scheduled"]
    for expected in (jobs[:2], jobs[2:3], jobs[3:4]):
        claims = stage.take()
        assert [claim.id for claim in claims] == [job.id for job in expected]
        for claim in claims:
            stage.end(claim)


def test_an_ordered_job_may_be_unique(stage: Stage) -> None:
    first = one(stage, ordered=True, key="k")
    other = one(stage, UniqueRule("m"), ordered=True, key="k")
    assert is_ordered(other)
    assert is_unique(other)
    assert [stage.state(first), stage.state(other)] == ["ready", "blocked"]
    assert put(stage, UniqueRule("m"), ordered=True, key="k")[1].duplicates
    stage.end(only(stage))
    assert stage.state(other) == "ready"
    stage.end(only(stage))
    assert holder(stage, "m") is None


# -- clash=raise ----------------------------------------------------------------------------------------------------


def test_nothing_of_a_refused_call_is_stored(stage: Stage) -> None:
    first = one(stage, RAISING)
    jobs = [stage.job(), stage.job(unique=UniqueRule("m")), stage.job(unique=RAISING)]
    answer = stage.enqueue(*jobs)
    assert answer == Accepted("clash", clashes={jobs[2].id: first})
    assert [stage.state(job.id) for job in jobs] == [None] * 3
    assert holder(stage, "m") is None


def test_two_of_one_chunk_that_may_not_clash_are_refused(stage: Stage) -> None:
    jobs = [stage.job(unique=RAISING) for _ in range(3)]
    answer = stage.enqueue(*jobs)
    assert answer.clashes == {jobs[1].id: jobs[0].id, jobs[2].id: jobs[0].id}
    assert holder(stage) is None


# -- repeats --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [NAMED, RAISING])
def test_a_repeat_is_answered_as_the_first_was(stage: Stage, rule: UniqueRule) -> None:
    one(stage)
    (claim,) = stage.take()
    jobs = [stage.job(unique=rule)]
    call = produce.enqueue(stage.keys, jobs, "p", 7).at(stage.now)
    said = stage.run(call)
    stage.end(claim)
    assert stage.run(call) == stage.run(call) == said
    assert stage.state(jobs[0].id) is None


@pytest.mark.parametrize("rule", [NAMED, RAISING])
def test_a_repeat_of_what_was_stored_makes_nothing(stage: Stage, rule: UniqueRule) -> None:
    jobs = [stage.job(unique=rule), stage.job(unique=UniqueRule("m"))]
    call = produce.enqueue(stage.keys, jobs, "p", 7).at(stage.now)
    assert stage.run(call) == Accepted("ok")
    assert stage.run(call) == Accepted("repeated")
    for claim in stage.take():
        stage.end(claim, amount=0)
    assert stage.run(call) == Accepted("repeated")
    assert holder(stage) is None


def test_a_request_id_names_the_job_that_has_the_name(stage: Stage) -> None:
    first = one(stage)
    job = stage.job(unique=NAMED)
    answer = stage.run(produce.enqueue(stage.keys, [job], "p", 1, ["r"]))
    assert answer.duplicates == {job.id: first}
    (claim,) = stage.take()
    stage.end(claim)
    again = stage.job(unique=NAMED)
    answer = stage.run(produce.enqueue(stage.keys, [again], "p", 2, ["r"]))
    assert answer.duplicates == {again.id: first}


def test_what_a_request_id_made_before_clashes_with_nothing(stage: Stage) -> None:
    job = stage.job(unique=RAISING)
    stage.run(produce.enqueue(stage.keys, [job], "p", 1, ["r"]))
    again = stage.job(unique=RAISING)
    answer = stage.run(produce.enqueue(stage.keys, [again], "q", 1, ["r"]))
    assert answer.duplicates == {again.id: job.id}


# -- cost -----------------------------------------------------------------------------------------------------------


def test_a_unique_job_costs_three_commands_more_than_another(stage: Stage) -> None:
    def cost(**facts: Any) -> int:
        call = produce.enqueue(stage.keys, [stage.job(**facts)], "p", stage.next()).at(stage.now)
        stage.run(call)
        before = stage.commands()
        stage.run(produce.enqueue(stage.keys, [stage.job(**facts)], "p", stage.next()))
        return stage.commands() - before

    plain = cost()
    stage.take()
    fresh = [cost(unique=UniqueRule(f"cost{n}"), name=f"cost{stage.next()}") for n in range(2)]
    assert max(fresh) <= plain + 3
