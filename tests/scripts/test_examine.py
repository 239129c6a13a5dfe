"""Examine: each contradiction between records and structures is named and, where that is asked for, led back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.protocol import operations
from headrace.protocol.operations import Fault
from headrace.testing import assert_invariants
from tests.scripts.stage import KEEP, SECOND, START, Stage

pytestmark = pytest.mark.mangles


def examine(stage: Stage, place: str, *ids: str, repair: bool = False) -> list[Fault]:
    return stage.run(operations.examine(stage.keys, place, ids, KEEP, repair=repair))[1]


def test_what_is_as_it_should_be_is_not_named(stage: Stage) -> None:
    (ready,), (scheduled,) = stage.put(), stage.put(delay=KEEP)
    running, done = stage.running(queue="q"), stage.finished("failed", queue="q")
    assert examine(stage, "", ready, scheduled, running.id, done, "0" * 21) == []
    assert examine(stage, "ready:default", ready) == examine(stage, "claims:w1", running.id) == []
    assert examine(stage, "failed", done) == examine(stage, "expires", done) == []


def test_results_are_counted_with_their_index(stage: Stage) -> None:
    ids = [stage.finished("succeeded", b"12345") for _ in range(3)]
    assert stage.run(operations.examine(stage.keys, "succeeded", ids, KEEP)) == (15, [])


Break = Callable[[Stage, str], object]
LED_BACK: dict[str, tuple[str, Break, str]] = {
    "a record that is gone": ("ready", lambda s, id: s.client.delete(s.keys.job(id)), "no-record"),
    "ready in no structure": ("ready", lambda s, id: s.client.zrem(s.keys("ready:default"), id), "misplaced"),
    "ready in another": (
        "ready",
        lambda s, id: (s.client.zrem(s.keys("ready:default"), id), s.client.zadd(s.keys("scheduled"), {id: START})),
        "misplaced",
    ),
    "scheduled in none": ("scheduled", lambda s, id: s.client.zrem(s.keys("scheduled"), id), "misplaced"),
    "running without a claim": ("running", lambda s, id: s.client.zrem(s.keys("claims:w1"), id), "misplaced"),
    "parked in none": (
        "parked",
        lambda s, id: (s.client.zrem(s.keys("parked:add"), id), s.client.srem(s.keys("parking"), "add")),
        "misplaced",
    ),
    "ended in none": ("failed", lambda s, id: s.client.zrem(s.keys("failed"), id), "misplaced"),
    "kept for ever": ("failed", lambda s, id: s.client.zrem(s.keys("expires"), id), "misplaced"),
    "ready and to be swept": ("ready", lambda s, id: s.client.zadd(s.keys("expires"), {id: START}), "misplaced"),
}


def made(stage: Stage, state: str) -> tuple[str, str]:
    """A job of a state, and the structure that it is in."""
    if state in ("ready", "scheduled"):
        (id,) = stage.put(delay=KEEP if state == "scheduled" else 0)
        return id, "ready:default" if state == "ready" else state
    claim = stage.running()
    if state == "running":
        return claim.id, "claims:w1"
    stage.end(claim, state, b"{}")
    return claim.id, "parked:add" if state == "parked" else state


@pytest.mark.parametrize("name", LED_BACK)
def test_what_cannot_hurt_is_led_back(name: str, stage: Stage) -> None:
    state, damage, word = LED_BACK[name]
    id, place = made(stage, state)
    damage(stage, id)
    # A second structure is found where its own members are looked at.
    where = "expires" if "swept" in name else "" if word == "misplaced" else place
    (found,) = examine(stage, where, id)
    assert (found.id, found.word, found.repaired) == (id, word, False)
    (found,) = examine(stage, where, id, repair=True)
    assert found.repaired
    assert examine(stage, place, id) == examine(stage, "", id) == []
    assert_invariants(stage.client)


def test_a_job_without_a_claim_crashed(stage: Stage) -> None:
    claim = stage.running()
    stage.client.zrem(stage.keys("claims:w1"), claim.id)
    examine(stage, "", claim.id, repair=True)
    assert stage.state(claim.id) == "ready"
    assert stage.record(claim.id)["crashes"] == b"1"
    assert stage.settle(stage.outcome(claim)).stale == [claim.id]


def test_waiters_of_a_lost_job_are_told(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.zadd(stage.keys("waited"), {id: START + SECOND})
    stage.client.delete(stage.keys.job(id))
    waiter = stage.subscribe(stage.keys.done(id))
    examine(stage, "ready:default", id, repair=True)
    assert waiter.get_message(timeout=20)["data"] == b"lost"
    assert stage.members("waited") == {}


def test_what_may_hurt_is_only_named(stage: Stage) -> None:
    (id,) = stage.put()
    stage.client.zadd(stage.keys("scheduled"), {id: START})
    twice = Fault(id, "twice", "ready:default scheduled", False)
    assert examine(stage, "scheduled", id, repair=True) == [twice]
    (odd,) = stage.put()
    stage.client.hset(stage.keys.job(odd), "st", "odd")
    assert examine(stage, "", odd, repair=True) == [Fault(odd, "unreadable", "state odd", False)]
    claim = stage.running(queue="q")
    stage.client.delete(stage.keys.job(claim.id))
    assert examine(stage, "claims:w1", claim.id, repair=True) == [Fault(claim.id, "no-record", "claims:w1", False)]
