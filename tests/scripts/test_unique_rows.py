"""unique_rows.lua: rows of one call of which some are stored at once, some are not, and some follow a rule."""

from __future__ import annotations

import msgspec
import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import produce
from tests.scripts.limited_stage import declare, ids
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import RAISING, holder, one


def rule(clash: str = "existing") -> UniqueRule:
    """A rule alone: jobs with names of their own are in one batch."""
    return msgspec.structs.replace(UniqueRule(), clash=clash)


def arguments(n: int) -> bytes:
    return msgspec.msgpack.encode([[n], {}])


@pytest.mark.parametrize("delay", [0, SECOND])
def test_what_is_stored_between_names_that_are_held_keeps_its_arguments_and_its_name(stage: Stage, delay: int) -> None:
    held = {name: one(stage, rule(), name=name) for name in ("x", "y")}
    names = ["a", "x", "b", "y", "x", "c", "a", "d", "b"]
    jobs = [stage.job(unique=rule(), name=name, args=arguments(n), delay=delay) for n, name in enumerate(names)]
    answer = stage.enqueue(*jobs)
    first = {name: job.id for name, job in reversed(list(zip(names, jobs, strict=True)))} | held
    assert answer.duplicates == {
        job.id: first[name] for name, job in zip(names, jobs, strict=True) if job.id != first[name]
    }
    for n, name in enumerate(names):
        if jobs[n].id == first[name]:
            record = stage.record(jobs[n].id)
            assert (record["args"], record["unique"], holder(stage, name)) == (arguments(n), name.encode(), jobs[n].id)
        else:
            assert stage.state(jobs[n].id) is None
    stage.register()
    if delay:
        assert stage.members("scheduled").keys() == {jobs[n].id for n in (0, 2, 5, 7)}
    else:
        assert ids(stage.take()) == [*held.values(), *(jobs[n].id for n in (0, 2, 5, 7))]


@pytest.mark.parametrize("clash", ["replace", "latest", "cancel"])
def test_rows_behind_a_clash_go_by_their_rule_among_new_ones(stage: Stage, clash: str) -> None:
    running = one(stage, rule(clash), name="x")
    stage.take()
    names = ["a", "b", "x", "c", "b", "x", "d"]
    jobs = [stage.job(unique=rule(clash), name=name, args=arguments(n)) for n, name in enumerate(names)]
    answer = stage.enqueue(*jobs)
    follower = running if clash == "replace" else jobs[2].id
    expected = {jobs[4].id: jobs[1].id, jobs[5].id: follower}
    assert answer.duplicates == (expected | {jobs[2].id: running} if clash == "replace" else expected)
    assert ids(stage.take()) == [jobs[n].id for n in (0, 1, 3, 6)]
    assert stage.record(jobs[1].id)["args"] == arguments(4)
    if clash != "replace":
        assert (stage.state(follower), stage.record(follower)["args"]) == ("blocked", arguments(5))


def test_request_ids_name_what_stands_for_each_row(stage: Stage) -> None:
    held = one(stage, rule(), name="x")
    jobs = [stage.job(unique=rule(), name=name) for name in ("a", "x", "a", "b")]
    call = produce.enqueue(stage.keys, jobs, "p", 1, ["r0", "r1", "", "r3"]).at(stage.now)
    assert stage.run(call).duplicates == {jobs[1].id: held, jobs[2].id: jobs[0].id}
    again = [stage.job(unique=rule(), name=name) for name in ("c", "d", "e")]
    call = produce.enqueue(stage.keys, again, "p", 2, ["r0", "r1", "r3"]).at(stage.now)
    made = dict(zip((job.id for job in again), (jobs[0].id, held, jobs[3].id), strict=True))
    assert stage.run(call).duplicates == made
    assert [holder(stage, name) for name in ("c", "d", "e")] == [None] * 3


def test_only_those_that_may_not_clash_refuse_a_call_of_several_rules(stage: Stage) -> None:
    held = [one(stage, rule(), name=name) for name in ("n", "x")]
    jobs = [
        stage.job(unique=rule(), name="x"),
        stage.job(unique=RAISING),
        stage.job(unique=rule(), name="a"),
        stage.job(),
    ]
    answer = stage.enqueue(*jobs)
    assert answer.clashes == {jobs[1].id: held[0]}
    assert [stage.state(job.id) for job in jobs] == [None] * 4
    assert holder(stage, "a") is None


@pytest.mark.parametrize("clash", ["existing", "latest"])
def test_rows_of_a_limited_task_wait_in_its_lane(stage: Stage, clash: str) -> None:
    declare(stage, {"call": [LimitRule("one", concurrency=Concurrency(1))]})
    names = ["a", "b", "a", "c"]
    jobs = [stage.job(task="call", unique=rule(clash), name=name, args=arguments(n)) for n, name in enumerate(names)]
    assert stage.enqueue(*jobs).duplicates == {jobs[2].id: jobs[0].id}
    stored = [jobs[n].id for n in (0, 1, 3)]
    (lane,) = {stage.record(id)["lane"].decode() for id in stored}
    assert (stage.ready(), list(stage.members(f"lane:{lane}"))) == (["~one"], stored)
    assert [stage.record(id)["unique"] for id in stored] == [b"a", b"b", b"c"]
    for id in stored:
        (claim,) = stage.take()
        assert claim.id == id
        stage.end(claim, amount=0)
    assert holder(stage, "a") is None
