from __future__ import annotations

from headrace.protocol.operations import begin_errand, read_errands
from headrace.worker.dispatcher.dispatcher_events import HURRY
from tests.scripts.stage import Stage


def test_the_same_again_changes_nothing_and_workers_hear_of_it(stage: Stage) -> None:
    stage.register("w1")
    ear = stage.subscribe(stage.keys.mail("w1"))
    first = stage.run(begin_errand(stage.keys, "e", {"verb": "retry", "state": "failed"}))
    stage.now += 5
    assert stage.run(begin_errand(stage.keys, "e", {"verb": "delete", "state": "failed"})) == first
    assert first is not None
    assert (first.verb, first.phase, first.bound_us) == ("retry", "running", stage.now - 5)
    assert ear.get_message(timeout=20)["data"] == HURRY.encode()
    assert ear.get_message(timeout=0) is None
    ear.close()


def test_a_thousand_are_kept(stage: Stage) -> None:
    stage.client.zadd(stage.keys("errands"), {f"o{n}": n + 1 for n in range(1000)})
    stage.client.zadd(stage.keys("chores"), {"errand:o0": 1})
    stage.client.hset(stage.keys("errand:o0"), "verb", "retry")
    stage.run(begin_errand(stage.keys, "e", {"verb": "retry", "state": "failed"}))
    assert len(stage.members("errands")) == 1000
    assert not stage.client.exists(stage.keys("errand:o0"))
    assert list(stage.members("chores")) == ["errand:e"]
    assert [one.id for one in stage.run(read_errands(stage.keys))] == ["e"]
