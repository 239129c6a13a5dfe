from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.model.limit_rules import Concurrency, LimitRule
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import consume, produce
from tests.scripts import limited_stage as limited
from tests.scripts.limited_stage import declare
from tests.scripts.stage import KEEP, SECOND, Stage
from tests.scripts.unique_stage import NAMED, WITHIN, holder, one, only, put


def test_a_record_says_its_name_and_until_when_it_holds_it(stage: Stage) -> None:
    first, second = one(stage), one(stage, UniqueRule("m", "start"))
    assert stage.record(first)["unique"] == b"n"
    assert "hold" not in stage.record(first)
    assert (stage.record(second)["unique"], stage.record(second)["hold"]) == (b"m", b"start")


def test_only_a_name_of_a_time_expires(stage: Stage) -> None:
    one(stage, NAMED, expires=SECOND)
    assert stage.client.ttl(stage.keys("unique:n")) == -1
    one(stage, UniqueRule("m", "within", span=WITHIN.span))
    assert 3500 <= stage.client.ttl(stage.keys("unique:m")) <= 3600


def test_a_new_job_goes_where_others_go(stage: Stage) -> None:
    stage.doze()
    ready = one(stage, queue="low", priority=2)
    assert stage.tokens("low") == 1
    later = one(stage, UniqueRule("m"), delay=SECOND)
    assert [stage.state(ready), stage.state(later)] == ["ready", "scheduled"]
    assert holder(stage, "m") == later


REPLACE = UniqueRule("n", clash="replace")
CANCEL = UniqueRule("n", clash="cancel")
LATEST = UniqueRule("n", clash="latest")
NEW = msgspec.msgpack.encode([["new"], {}])


def becomes(stage: Stage, rule: UniqueRule, id: str, **facts: Any) -> None:
    """One more enqueue of the name is merged into a job."""
    new, answer = put(stage, rule, **{"args": NEW} | facts)
    assert answer.duplicates == {new.id: id}
    assert stage.state(new.id) is None
    assert stage.record(id)["args"] == NEW


@pytest.mark.parametrize("rule", [REPLACE, CANCEL, LATEST])
@pytest.mark.parametrize("where", ["ready", "scheduled", "blocked"])
def test_a_job_that_waits_becomes_the_new_one(stage: Stage, rule: UniqueRule, where: str) -> None:
    if where == "blocked":
        stage.put(key="k", ordered=True)
    ordered: dict[str, Any] = {"key": "k", "ordered": True} if where == "blocked" else {}
    plain = UniqueRule("n", clash="replace") if where == "scheduled" else rule
    first = one(stage, plain, **ordered, **({"delay": SECOND} if where == "scheduled" else {}))
    assert stage.state(first) == where
    becomes(stage, rule, first, priority=3, queue="other", note="new", **ordered)
    record = stage.record(first)
    assert (record["queue"], record["priority"], record["label"]) == (b"other", b"3", b"new")
    assert stage.state(first) == ("blocked" if where == "blocked" else "ready")
    if where == "blocked":
        stage.end(only(stage))
    (claim,) = stage.take(queues=["default", "other"])
    assert (claim.id, claim.args) == (first, NEW)
    stage.end(claim)
    assert holder(stage) is None


def test_a_replaced_job_may_wait_for_another_time(stage: Stage) -> None:
    first = one(stage, REPLACE)
    becomes(stage, REPLACE, first, delay=SECOND)
    assert (stage.state(first), stage.ready()) == ("scheduled", [])
    becomes(stage, REPLACE, first, delay=5 * SECOND)
    assert stage.client.zscore(stage.keys("scheduled"), first) == stage.now + 5 * SECOND


@pytest.mark.parametrize("rule", [REPLACE, CANCEL, LATEST])
def test_one_chunk_ends_with_the_newest(stage: Stage, rule: UniqueRule) -> None:
    jobs = [stage.job(unique=rule, args=msgspec.msgpack.encode([[n], {}]), priority=n) for n in range(5)]
    answer = stage.enqueue(*jobs)
    assert answer.duplicates == {job.id: jobs[0].id for job in jobs[1:]}
    assert only(stage).args == jobs[4].args


def test_an_ordered_job_that_is_replaced_passes_its_turn_on(stage: Stage) -> None:
    first = one(stage, REPLACE, key="k", ordered=True)
    (second,) = stage.put(key="k", ordered=True)
    becomes(stage, REPLACE, first, key="k", ordered=True)
    assert [stage.state(first), stage.state(second)] == ["blocked", "ready"]
    stage.end(only(stage))
    assert only(stage).id == first


def test_a_limited_job_that_is_replaced_leaves_its_lane(stage: Stage) -> None:
    stage.client.hset(stage.keys("limited"), "task:add", msgspec.msgpack.encode([["l", "account", 1, ""]]))
    stage.client.hset(stage.keys("limit:l"), mapping={"most": 1, "by": "account"})
    stage.client.zadd(stage.keys("limits"), {"l": 0})
    stage.register()
    first = one(stage, REPLACE, args=msgspec.msgpack.encode([["old"], {}]))
    becomes(stage, REPLACE, first)
    jobs = [stage.job(unique=REPLACE, args=msgspec.msgpack.encode([[f"v{n}"], {}])) for n in range(3)]
    stage.enqueue(*jobs)
    assert only(stage).args == jobs[2].args


@pytest.mark.parametrize("rule", [REPLACE, CANCEL, LATEST])
def test_a_job_that_waits_for_its_retry_keeps_its_time(stage: Stage, rule: UniqueRule) -> None:
    first = one(stage, rule)
    stage.end(only(stage), "retry", b"{}", SECOND)
    becomes(stage, rule, first, priority=5)
    assert stage.state(first) == "scheduled"
    assert stage.record(first)["failures"] == b"1"
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert only(stage).args == NEW


def test_a_parked_job_stays_parked_with_the_new_arguments(stage: Stage) -> None:
    first = one(stage, REPLACE)
    stage.end(only(stage), "parked")
    becomes(stage, REPLACE, first)
    assert stage.state(first) == "parked"
    assert stage.run(consume.unpark(stage.keys, "add", 10, ["default"])) == 1
    assert only(stage).args == NEW


def test_a_job_of_another_kind_of_order_gets_the_arguments_only(stage: Stage) -> None:
    first = one(stage, REPLACE)
    becomes(stage, REPLACE, first, key="k", ordered=True)
    assert only(stage).args == NEW


def test_what_runs_is_not_replaced(stage: Stage) -> None:
    first = one(stage, REPLACE)
    only(stage)
    new, answer = put(stage, REPLACE, args=NEW)
    assert answer.duplicates == {new.id: first}
    assert stage.record(first)["args"] != NEW


@pytest.mark.parametrize("rule", [CANCEL, LATEST])
def test_one_follows_the_one_that_runs(stage: Stage, rule: UniqueRule) -> None:
    one(stage, rule)
    claim = only(stage)
    follower = one(stage, rule)
    assert stage.state(follower) == "blocked"
    becomes(stage, rule, follower)
    becomes(stage, rule, follower, queue="other")
    asked = stage.client.smembers(stage.keys("cancels:w1"))
    assert asked == ({claim.id.encode()} if rule is CANCEL else set())
    stage.end(claim, "cancelled" if rule is CANCEL else "succeeded", b"{}")
    assert (stage.state(follower), holder(stage)) == ("ready", follower)
    (last,) = stage.take(queues=["other"])
    assert last.args == NEW
    stage.end(last)
    assert holder(stage) is None


@pytest.mark.parametrize("kind", ["retry", "crashed", "released"])
def test_a_follower_waits_for_all_starts(stage: Stage, kind: str) -> None:
    first = one(stage, LATEST)
    claim = only(stage)
    follower = one(stage, LATEST)
    stage.end(claim, kind, b"{}", 0)
    assert stage.state(follower) == "blocked"
    again = only(stage)
    assert again.id == first
    stage.end(again, "failed", b"{}", 0)
    assert only(stage).id == follower


def test_the_newest_arguments_follow_a_job_that_waits_for_its_retry(stage: Stage) -> None:
    """The job that waited got them, and its follower ran last, with older ones."""
    one(stage, LATEST)
    claim = only(stage)
    follower = one(stage, LATEST)
    stage.end(claim, "retry", b"{}", SECOND)
    becomes(stage, LATEST, follower)
    assert stage.record(claim.id)["args"] != NEW
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    stage.end(only(stage))
    assert only(stage).args == NEW


def test_a_follower_that_is_cancelled_leaves_the_name(stage: Stage) -> None:
    one(stage, LATEST)
    claim = only(stage)
    follower = one(stage, LATEST)
    assert stage.run(produce.cancel(stage.keys, follower, KEEP)) == "cancelled"
    assert holder(stage) == claim.id
    last = one(stage, LATEST)
    stage.end(claim)
    assert only(stage).id == last


def test_a_follower_whose_record_is_lost_does_not_block_its_name(stage: Stage) -> None:
    one(stage, LATEST)
    claim = only(stage)
    follower = one(stage, LATEST)
    stage.client.delete(stage.keys.job(follower))
    stage.end(claim)
    assert holder(stage) is None


def test_a_follower_of_a_lost_record_goes_on_at_the_next_enqueue(stage: Stage) -> None:
    one(stage, LATEST)
    claim = only(stage)
    follower = one(stage, LATEST)
    stage.client.delete(stage.keys.job(claim.id))
    stage.client.zrem(stage.keys("claims:w1"), claim.id)
    becomes(stage, LATEST, follower)
    assert only(stage).args == NEW


def test_an_ordered_follower_waits_for_its_key_too(stage: Stage) -> None:
    one(stage, LATEST)
    claim = only(stage)
    stage.put(key="k", ordered=True)
    follower = one(stage, LATEST, key="k", ordered=True)
    becomes(stage, LATEST, follower, key="k", ordered=True)
    stage.end(claim)
    assert (stage.state(follower), holder(stage)) == ("blocked", follower)
    stage.end(only(stage))
    assert only(stage).id == follower


def test_a_retry_by_hand_is_refused_while_one_runs_and_one_follows(stage: Stage) -> None:
    failed = one(stage, LATEST)
    stage.end(only(stage), "failed", b"{}")
    second = one(stage, LATEST)
    only(stage)
    one(stage, LATEST)
    assert stage.run(produce.rerun(stage.keys, failed, "r")) == f"taken {second}"


# -- debounce and throttle ------------------------------------------------------------------------------------------------

QUIET = UniqueRule("n", "start", "debounce", 10 * SECOND, 25 * SECOND)
WINDOW = UniqueRule("n", "window", span=1000 * SECOND)
TRAILING = UniqueRule("n", "window", "trailing", 1000 * SECOND)


def due(stage: Stage, id: str) -> int:
    """In how many seconds a job becomes ready."""
    return round((stage.client.zscore(stage.keys("scheduled"), id) - stage.now) / SECOND)


def test_each_enqueue_begins_the_wait_anew_up_to_the_longest(stage: Stage) -> None:
    stage.register()
    first = one(stage, QUIET)
    assert due(stage, first) == 10
    for passed, wait in ((7, 10), (7, 10), (7, 4)):
        stage.now += passed * SECOND
        becomes(stage, QUIET, first)
        assert due(stage, first) == wait
    stage.now += 4 * SECOND
    stage.run(consume.promote(stage.keys, 10))
    new, answer = put(stage, QUIET, args=b"\x92\x91\x01\x80")
    assert answer.duplicates == {new.id: first}
    assert stage.state(first) == "ready"
    assert only(stage).args == b"\x92\x91\x01\x80"
    another = one(stage, QUIET)
    assert due(stage, another) == 10


def test_without_a_longest_wait_it_goes_on(stage: Stage) -> None:
    rule = UniqueRule("n", "start", "debounce", 10 * SECOND)
    first = one(stage, rule)
    for _ in range(10):
        stage.now += 9 * SECOND
        becomes(stage, rule, first)
        assert due(stage, first) == 10


def test_a_debounced_job_that_waits_for_its_retry_is_another(stage: Stage) -> None:
    first = one(stage, QUIET)
    stage.now += 10 * SECOND
    stage.register()
    stage.run(consume.promote(stage.keys, 10))
    stage.end(only(stage), "retry", b"{}", SECOND)
    second = one(stage, QUIET)
    assert {stage.state(first), stage.state(second)} == {"scheduled"}


def test_a_window_has_one_job_whatever_becomes_of_it(stage: Stage) -> None:
    first = one(stage, WINDOW)
    stage.end(only(stage), "failed", b"{}", 0)
    new, answer = put(stage, WINDOW)
    assert answer.duplicates == {new.id: first}
    assert 900_000 < stage.client.pttl(stage.keys("unique:n")) <= 1_000_000
    stage.client.delete(stage.keys("unique:n"))  # as its expiry does
    one(stage, WINDOW)


def test_a_window_may_end_with_one_more_which_begins_another(stage: Stage) -> None:
    stage.register()
    first = one(stage, TRAILING)
    assert only(stage).id == first
    last = one(stage, TRAILING)
    assert 900 < due(stage, last) <= 1000
    assert 1_900_000 < stage.client.pttl(stage.keys("unique:n")) <= 2_000_000
    becomes(stage, TRAILING, last)
    assert 900 < due(stage, last) <= 1000
    stage.now += 1000 * SECOND
    stage.client.pexpire(stage.keys("unique:n"), 1_000_000)  # as much later
    stage.run(consume.promote(stage.keys, 10))
    assert only(stage).args == NEW
    third = one(stage, TRAILING)
    assert 900 < due(stage, third) <= 1000


# -- limits by an argument that is not in the name -------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [QUIET, REPLACE, LATEST])
def test_new_arguments_of_a_job_that_waits_are_limited_by_their_own_value(stage: Stage, rule: UniqueRule) -> None:
    declare(stage, {"call": [LimitRule("l", concurrency=Concurrency(1), by="account")]})
    limited.put(stage, "busy")
    stage.take()
    first = one(stage, rule, task="call", args=msgspec.msgpack.encode([["idle"], {}]))
    if rule is QUIET:
        stage.now += 10 * SECOND
        limited.promote(stage)
    else:
        stage.end(only(stage), "interrupted", b"{}")
    assert stage.state(first) == "ready"
    _, answer = put(stage, rule, task="call", args=msgspec.msgpack.encode([["busy"], {}]))
    assert list(answer.duplicates.values()) == [first]
    assert stage.take() == []
