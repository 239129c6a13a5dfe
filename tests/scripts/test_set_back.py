"""set_back.lua: what began while the server's clock was ahead ends when its length is over."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import consume, operations
from headrace.protocol.limit_verbs import read_limits
from headrace.protocol.overviews import overview
from tests.scripts.limited_stage import LEASE, change, declare, hold, ids, look, promote, put
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import put as put_unique

HOUR = 3600 * SECOND
ONE = LimitRule("one", concurrency=Concurrency(1), by="account")


def set_back(stage: Stage, who: str) -> None:
    """The clock is where it should be, and a worker sees it: one that renews, or the first one after all have left."""
    if who == "one that lives":
        stage.now -= HOUR
        assert stage.run(consume.renew(stage.keys, "w1", LEASE)).alive
    else:
        stage.run(consume.retire(stage.keys, "w1"))
        stage.now -= HOUR
        stage.register("w1", LEASE)


def ran(stage: Stage) -> None:
    """A job starts and ends: the store knows this time."""
    stage.put(task="other", queue="other")
    for claim in stage.take("w1", queues=["other"]):
        stage.end(claim)


@pytest.fixture(params=["one that lives", "one that starts"])
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_pause_of_a_queue(stage: Stage, who: str) -> None:
    stage.register("w1", LEASE)
    ran(stage)
    stage.run(operations.pause(stage.keys, "default", 4 * SECOND))
    stage.run(operations.pause(stage.keys, "low", 0))
    set_back(stage, who)
    assert stage.run(consume.renew(stage.keys, "w1", LEASE)).resumes == stage.now + 4 * SECOND
    stage.now += 4 * SECOND
    stage.run(operations.resume_due(stage.keys, 10))
    assert {queue.name for queue in stage.run(overview(stage.keys)).queues if queue.paused} == {"low"}
    stage.run(operations.resume(stage.keys, "low"))
    assert not stage.client.exists(stage.keys("pauses"))


@pytest.mark.parametrize("value", [None, "x"])
def test_what_an_operator_said_of_a_limit(stage: Stage, who: str, value: str | None) -> None:
    declare(stage, {"call": [ONE]})
    ran(stage)
    jobs = put(stage, "x", "x")
    change(stage, "one", paused=True, value=value, duration=4 * SECOND)
    change(stage, "one", Concurrency(2), value=value, duration=9 * SECOND)
    assert stage.take("w1") == []
    set_back(stage, who)
    promote(stage)
    state = look(stage, "one", "x")
    assert (state.paused, state.opens) == (True, stage.now + 4 * SECOND)
    stage.now += 4 * SECOND
    promote(stage)
    assert ids(stage.take("w1")) == jobs
    stage.now += 5 * SECOND
    promote(stage)
    (page,) = stage.run(read_limits(stage.keys, ["one"])).rows
    assert (page.overrides, page.concurrency) == ((), Concurrency(1))


def test_a_hold_of_a_program_that_was_killed(stage: Stage, who: str) -> None:
    declare(stage, {"call": [ONE]})
    ran(stage)
    (job,) = put(stage, "x")
    assert hold(stage, "one", "x", "killed.15000000").word == "held"
    assert stage.take("w1") == []
    set_back(stage, who)
    promote(stage)
    stage.now += 15 * SECOND
    promote(stage)
    assert ids(stage.take("w1")) == [job]


def test_a_hold_where_no_worker_is_there(stage: Stage) -> None:
    declare(stage, {"call": [ONE]})
    assert hold(stage, "one", "x", "killed.15000000").word == "held"
    stage.now -= HOUR
    assert hold(stage, "one", "x", "next.5000000", 5 * SECOND).word == "closed"
    stage.now += 15 * SECOND
    assert hold(stage, "one", "x", "next.5000000", 5 * SECOND).word == "held"


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (UniqueRule("n", "within", span=4 * SECOND), 4_000),
        (UniqueRule("n", "window", "existing", span=4 * SECOND), 4_000),
        (UniqueRule("n", "window", "trailing", span=4 * SECOND), 8_000),
    ],
)
def test_a_name_that_is_held_for_a_time(stage: Stage, rule: UniqueRule, most: int) -> None:
    """The server itself lets the name expire, by its clock."""
    put_unique(stage, rule)
    stage.client.pexpire(stage.keys("unique:n"), 3_600_000)
    put_unique(stage, rule)
    assert 0 < stage.client.pttl(stage.keys("unique:n")) <= most
