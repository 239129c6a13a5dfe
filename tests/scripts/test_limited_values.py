"""limited_values.lua: which limits a job has, and the lane that they give it."""

from __future__ import annotations

import msgspec

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.protocol import produce
from tests.scripts.limited_stage import API, declare
from tests.scripts.stage import SECOND, Stage

FAIR = LimitRule("fair", by="account")


def test_by_key_is_the_key_of_the_job(stage: Stage) -> None:
    declare(stage, {"call": [LimitRule("fair", by="key")]})
    one, two = stage.job(task="call", key="k 1"), stage.job(task="call")
    stage.enqueue(one, two)
    assert stage.record(one.id)["lane"] == b"default|fair=|k%201"
    assert stage.record(two.id)["lane"] == b"default|fair=|"


def test_a_queue_has_limits_too_whatever_the_task(stage: Stage) -> None:
    declare(stage, {"call": [FAIR]})
    declare(stage, {"default": [LimitRule("tenants", by="key")]}, of="queue")
    job = stage.job(task="call", key="acme", args=msgspec.msgpack.encode([["a"], {}]))
    stage.enqueue(job, other := stage.job(task="other", key="acme"))
    assert stage.record(job.id)["lane"] == b"default|tenants=,fair=|acme|a"
    assert stage.record(other.id)["lane"] == b"default|tenants=|acme"


FEW = LimitRule("few", by="account", backlog=3)


def send(
    stage: Stage, *values: str, sender: str = "s", number: int = 0, requests: tuple[str, ...] = (), **facts: object
):
    jobs = [stage.job(task="call", args=msgspec.msgpack.encode([[value], {}]), **facts) for value in values]
    return stage.run(produce.enqueue(stage.keys, jobs, sender, number or stage.next(), requests))


def test_a_lane_takes_as_many_as_its_backlog(stage: Stage) -> None:
    declare(stage, {"call": [FEW]})
    assert send(stage, "x", "x", "x", "y").word == "ok"
    assert send(stage, "x").full == ("few", 3, 3)
    assert send(stage, "y").word == "ok"


def test_nothing_of_a_call_that_is_refused_is_stored(stage: Stage) -> None:
    declare(stage, {"call": [FEW, API]})
    send(stage, "x", "x")
    before = set(stage.client.keys("*"))
    assert send(stage, "y", "x", "x", requests=("a", "b", "")).full == ("few", 3, 2)
    assert set(stage.client.keys("*")) == before


def test_the_same_request_may_come_again_when_there_is_room(stage: Stage) -> None:
    declare(stage, {"call": [FEW]})
    send(stage, "x", "x", "x")
    job = stage.job(task="call", args=msgspec.msgpack.encode([["x"], {}]))
    call = produce.enqueue(stage.keys, [job], "s", 77, ["wish"]).at(stage.now)
    assert stage.run(call).word == "full"
    assert len(stage.take(limit=1)) == 1
    assert stage.run(call).word == "ok"
    assert stage.run(call).word == "repeated"


def test_what_was_accepted_is_never_refused(stage: Stage) -> None:
    declare(stage, {"call": [FEW]})
    send(stage, "x", "x", "x")
    (claim,) = stage.take(limit=1)
    send(stage, "x")
    assert send(stage, "x", delay=SECOND).word == "ok"
    stage.end(claim, "retry", b"{}", 0)
    assert stage.client.zcard(stage.keys("lane:default|few=|x")) == 4


def test_the_smallest_of_several_backlogs_counts(stage: Stage) -> None:
    declare(stage, {"call": [FEW, LimitRule("two", concurrency=Concurrency(9), backlog=2)]})
    assert send(stage, "x", "x", "x").full == ("two", 2, 0)
