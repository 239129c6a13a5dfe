"""limit_declare.lua: of workers whose code says different things of a limit, the word of the newest code counts."""

from __future__ import annotations

import pytest

from headrace.model.limit_rules import NO_LIMITS, Concurrency, DeclaredLimits, LimitRule, task_row
from headrace.protocol import consume
from headrace.protocol.limit_verbs import declare_limits
from tests.scripts.limited_stage import LEASE, change, declare, gate, put
from tests.scripts.stage import SECOND, Stage

TWO, FIVE, NINE = (LimitRule("api", concurrency=Concurrency(n)) for n in (2, 5, 9))


def most(stage: Stage) -> int:
    return int(stage.client.hget(stage.keys("limit:api"), "most") or 0)


def limited(stage: Stage) -> list[bytes]:
    return sorted(stage.client.hkeys(stage.keys("limited")))


def leave(stage: Stage, owner: str) -> None:
    assert stage.run(consume.retire(stage.keys, owner))


def test_old_code_that_starts_again_does_not_bring_its_numbers_back(stage: Stage) -> None:
    assert declare(stage, {"call": [TWO]}, "old") == 0
    assert declare(stage, {"call": [FIVE]}, "new") == 0
    assert most(stage) == 5
    assert declare(stage, {"call": [TWO]}, "old-again") == 1
    assert most(stage) == 5


def test_old_code_counts_again_when_no_worker_has_newer_code(stage: Stage) -> None:
    declare(stage, {"call": [TWO]}, "old")
    declare(stage, {"call": [FIVE]}, "new")
    declare(stage, {"call": [NINE]}, "newest")
    assert declare(stage, {"call": [FIVE]}, "new") == 1
    leave(stage, "newest")
    assert declare(stage, {"call": [TWO]}, "old") == 0, "only the code that counts keeps older one from being heard"
    assert most(stage) == 2


def test_code_of_a_worker_that_claims_no_more_does_not_count(stage: Stage) -> None:
    """A number that is changed and changed back while each reload lets the worker before finish its jobs."""
    declare(stage, {"call": [TWO]}, "first")
    declare(stage, {"call": [FIVE]}, "second")
    stage.run(consume.renew(stage.keys, "second", LEASE, ["draining", 1]))
    assert declare(stage, {"call": [TWO]}, "third") == 0
    assert most(stage) == 2


def test_old_code_without_a_limit_does_not_free_its_task(stage: Stage) -> None:
    declare(stage, {"call": [], "other": [FIVE]}, "old")
    declare(stage, {"call": [TWO], "other": [FIVE]}, "new")
    assert declare(stage, {"call": [], "other": [FIVE]}, "old-again") == 1
    assert limited(stage) == [b"task:call", b"task:other"]
    leave(stage, "new")
    assert declare(stage, {"call": [], "other": [FIVE]}, "old-again") == 0
    assert limited(stage) == [b"task:other"]


def test_old_code_with_a_limit_does_not_limit_its_task_again(stage: Stage) -> None:
    declare(stage, {"call": [TWO]}, "old")
    declare(stage, {"call": []}, "new")
    # It says nothing of limits, and finds none.
    declare(stage, {"call": []}, "new-as-well")
    leave(stage, "new")
    assert declare(stage, {"call": [TWO]}, "old-again") == 1
    assert limited(stage) == []


@pytest.mark.parametrize("of", ["task", "queue"])
def test_what_an_operator_says_stays_whatever_code_says(stage: Stage, of: str) -> None:
    declare(stage, {"default": [TWO]}, "old", of=of)
    change(stage, "api", Concurrency(1))
    declare(stage, {"default": [FIVE]}, "new", of=of)
    put(stage, 1, 2, task="default")
    assert len(stage.take("new", 10)) == 1
    assert stage.client.hget(stage.keys("limit:api"), "overrides") == b"1"


def test_the_same_numbers_change_nothing(stage: Stage) -> None:
    declare(stage, {"call": [TWO]}, "old")
    change(stage, "api", Concurrency(1), duration=10)
    put(stage, 1, 2, 3)
    stage.take("old", 10)
    assert gate(stage, "api:")[1:] == (1, True)
    before = stage.client.hgetall(stage.keys("limit:api"))
    declare(stage, {"call": [TWO]}, "new")
    assert stage.client.hgetall(stage.keys("limit:api")) == before
    assert not [name for name in stage.members("timers") if name.startswith("lanes:")]
    assert not stage.client.hexists(stage.keys("superseded"), "limit:api")


def test_a_server_that_was_away_brings_no_numbers_of_old_code_back(stage: Stage) -> None:
    """All leases are over, and each worker may come back; old code asks again each ten seconds."""
    declare(stage, {"call": [TWO]}, "old")
    declare(stage, {"call": [FIVE]}, "new")
    stage.now += LEASE + SECOND
    ours = DeclaredLimits([("api", TWO.fields)], ["task:call", task_row([TWO], ["account", "n"], {})])
    again = declare_limits(stage.keys, "old", ["call"], ours)
    assert (stage.run(again), most(stage)) == (1, 5)
    assert stage.run(consume.reclaim(stage.keys, "new", True, 10, 0)) == ("done", 0)
    assert (stage.run(again), most(stage)) == (0, 2)


def test_what_an_incarnation_says_that_is_gone_is_not_heard(stage: Stage) -> None:
    declare(stage, {"call": [TWO]}, "old")
    leave(stage, "old")
    assert stage.run(declare_limits(stage.keys, "old", ["call"], NO_LIMITS)) == -1
    assert limited(stage) == [b"task:call"]
    assert not stage.client.exists(stage.keys("tasks:old"))


def test_workers_whose_limits_were_replaced_hear_of_it_until_they_declare_them_again(stage: Stage) -> None:
    """A canary came and left, and its numbers stayed until an old worker was restarted."""

    def replaced(owner: str) -> tuple[str, ...]:
        return stage.run(consume.renew(stage.keys, owner, LEASE)).replaced

    declare(stage, {"call": [FIVE]}, "old")
    declare(stage, {"call": [FIVE]}, "other")
    stage.run(consume.renew(stage.keys, "other", LEASE, ["draining", 1]))
    assert replaced("old") == ()
    declare(stage, {"call": [TWO]}, "canary")
    assert (replaced("canary"), replaced("other")) == ((), ()), "one changed them, one claims no more"
    assert (replaced("old"), replaced("old")) == (("limits",), ("limits",)), "the first reply may be lost"
    assert declare(stage, {"call": [FIVE]}, "old") == 1
    assert replaced("old") == ()
    leave(stage, "canary")
    assert declare(stage, {"call": [FIVE]}, "old") == 0
    assert most(stage) == 5
    # Without the limit, and for a moment only.
    declare(stage, {"call": []}, "canary")
    leave(stage, "canary")
    assert (limited(stage), replaced("old")) == ([], ("limits",))
    assert declare(stage, {"call": [FIVE]}, "old") == 0
    assert limited(stage) == [b"task:call"]
    declare(stage, {"call": [TWO]}, "canary")
    leave(stage, "old")
