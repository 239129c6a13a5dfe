"""The check of the checks: each way to break the keyspace is named, and a whole one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.admin import keyspace
from headrace.protocol.keys import Keys
from headrace.testing import assert_invariants, violations
from tests.scripts.stage import KEEP, START, Stage

pytestmark = [pytest.mark.any_server, pytest.mark.mangles]


def scene(stage: Stage) -> dict[str, str]:
    """One job of each state, and one of each key; their ids by state."""
    found = {kind: stage.finished(kind, b"data") for kind in ("succeeded", "failed", "cancelled")}
    parked = stage.running(task="later.on")
    stage.end(parked, "parked")
    running = stage.running()
    (scheduled,), (ready,) = stage.put(delay=KEEP), stage.put()
    return found | {"parked": parked.id, "running": running.id, "scheduled": scheduled, "ready": ready}


def k(name: str) -> str:
    return Keys()(name)


Break = Callable[[Stage, dict[str, str]], object]
BREAKS: dict[str, tuple[Break, str]] = {
    "a job in two structures": (
        lambda s, ids: s.client.zadd(k("scheduled"), {ids["ready"]: START}),
        r"its state says ready:default, but it is in ready:default, scheduled",
    ),
    "a job in none": (lambda s, ids: s.client.zrem(k("ready:default"), ids["ready"]), r"but it is in no structure"),
    "a state of no meaning": (
        lambda s, ids: s.client.hset(Keys().job(ids["ready"]), "st", "odd"), r"its state says odd"
    ),
    "a record that is gone": (lambda s, ids: s.client.delete(Keys().job(ids["ready"])), r"but has no record"),
    "another token": (lambda s, ids: s.client.hset(Keys().job(ids["running"]), "token", 5), r"its record says 5"),
    "a token from the future": (lambda s, _: s.client.set(k("token"), 5), r"above the last one, 5"),
    "another owner": (
        lambda s, ids: s.client.hset(Keys().job(ids["running"]), "owner", "w9"), r"its state says claims:w9"
    ),
    "an owner that is left over": (
        lambda s, ids: s.client.hset(Keys().job(ids["ready"]), "owner", "w1"), r"ready, but still names an owner"
    ),
    "a cancel flag alone": (
        lambda s, ids: s.client.hset(Keys().job(ids["running"]), "cancel", 1), r"cancel flag and its owner's cancels"
    ),
    "a cancel without a flag": (
        lambda s, ids: s.client.sadd(k("cancels:w1"), ids["running"]), r"cancel flag and its owner's cancels"
    ),
    "a cancel of what runs elsewhere": (lambda s, _: s.client.sadd(k("cancels:w1"), "x"), r"which it does not run"),
    "a lease that is gone": (lambda s, _: s.client.zrem(k("owners"), "w1"), r"owner:w1: its incarnation is gone"),
    "an owner without facts": (lambda s, _: s.client.delete(k("owner:w1")), r"says nothing of itself"),
    "claims of nobody": (lambda s, _: s.client.zadd(k("claims:w9"), {"x": 1}), r"claims:w9: its incarnation is gone"),
    "bytes": (lambda s, _: s.client.hset(k("totals"), "bytes", 1), r"bytes says 1, kept results and errors take 12"),
    "kept for ever": (lambda s, ids: s.client.zrem(k("expires"), ids["failed"]), r"is in failed, but not in expires"),
    "expires without an end": (
        lambda s, ids: s.client.zadd(k("expires"), {ids["ready"]: 1}), r"in expires, but not in a final state"
    ),
    "another time of finishing": (
        lambda s, ids: s.client.hset(Keys().job(ids["failed"]), "finished", 1), r"its record differs"
    ),
    "a waiter of what is over": (lambda s, ids: s.client.zadd(k("waited"), {ids["failed"]: 1}), r"its waiters were not told"),
    "a queue of no name": (lambda s, _: s.client.srem(k("queues"), "default"), r"is not among queues"),
    "two wake tokens": (lambda s, _: s.client.zadd(k("wake:default"), {"": 0, "x": 0}), r"tokens, one at most"),
    "parking of nothing": (lambda s, _: s.client.sadd(k("parking"), "x"), r"is empty, parking names it"),
    "parked out of sight": (lambda s, _: s.client.delete(k("parking")), r"parking lacks it"),
    "a log of nobody": (lambda s, _: s.client.rpush(k("log:x"), "line"), r"log:x: its job is gone"),
    "a sender for ever": (lambda s, _: s.client.persist(k("sender:sender")), r"never expires"),
    "a job that vanishes": (lambda s, ids: s.client.expire(Keys().job(ids["ready"]), 99), r"expires, which nothing says"),
    "an end of no pause": (lambda s, _: s.client.zadd(k("resumes"), {"x": 1}), r"the end of a pause that is over"),
    "an unknown key": (lambda s, _: s.client.set(k("novel"), 1), r"no key of this form"),
    "an unknown family": (lambda s, _: s.client.set(k("novel:1"), 1), r"no key of this form"),
    "another type": (lambda s, _: (s.client.delete(k("paused")), s.client.set(k("paused"), 1)), r"is a string"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_each_breach_is_named(name: str, stage: Stage) -> None:
    damage, text = BREAKS[name]
    ids = scene(stage)
    assert violations(stage.client) == set()
    damage(stage, ids)
    with pytest.raises(AssertionError, match=text):
        assert_invariants(stage.client)


def test_other_namespaces_and_other_peoples_keys_are_not_ours(stage: Stage) -> None:
    scene(stage)
    stage.client.set("theirs", 1)
    stage.client.set("{other:0}:novel", 1)
    assert_invariants(stage.client)
    with pytest.raises(AssertionError, match="namespace other"):
        assert_invariants(stage.client, "other")


def test_pages_show_what_one_reading_shows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    scene(stage)
    stage.client.zadd(k("waited"), {f"w{n}": n for n in range(9)})

    def stored() -> dict[str, object]:
        (space,) = keyspace.read(stage.client)
        # Of a stream a page is read at most.
        return {
            f"{name}:{hole}": value if isinstance(value, (dict, set)) else None
            for name, values in space.values.items()
            for hole, value in values.items()
        }

    whole = stored()
    monkeypatch.setattr(keyspace, "PAGE", 2)
    assert max(sum(map(len, part.values.values())) for page in keyspace.pages(stage.client) for part in page) <= 2
    assert stored() == whole
    assert violations(stage.client) == set()
