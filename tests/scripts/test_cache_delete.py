from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


def test_values_leave_with_all_that_spoke_of_them(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.run(cache_calls.store(stage.keys, name, b"\xc0", 60, ("x",)))
    assert stage.run(cache_calls.delete(stage.keys, ["a", "b", "absent"])) == 2
    assert stage.members("cached").keys() == stage.members("tagged:x").keys() == {"c"}
    assert stage.run(cache_calls.delete(stage.keys, ["c"])) == 1
    assert stage.client.keys("*") == []


def test_a_deletion_ends_the_lease_of_whoever_computes(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    assert stage.run(cache_calls.delete(stage.keys, ["a"])) == 0
    assert not stage.run(cache_calls.store(stage.keys, "a", b"\xc0", 60, (), lease))
    assert not stage.client.exists(stage.keys.cache("a"))


def test_a_thousand_leave_in_one_call(stage: Stage) -> None:
    names = [f"n{n}" for n in range(cache_calls.CHUNK)]
    for name in names:
        stage.run(cache_calls.store(stage.keys, name, b"\xc0", 60))
    assert stage.run(cache_calls.delete(stage.keys, names)) == cache_calls.CHUNK
    assert stage.client.keys("*") == []
