"""limited_values.lua: which limits a job has, and the lane that they give it."""

from __future__ import annotations

import msgspec

from headrace.model.limit_rules import LimitRule
from tests.scripts.limited_stage import declare
from tests.scripts.stage import Stage

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
