from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


def test_a_released_lease_is_gone_and_the_next_is_another(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    assert stage.run(cache_calls.release(stage.keys, "a", lease)) == "released"
    assert stage.client.keys("*") == [stage.keys("leases").encode()]
    assert stage.run(cache_calls.release(stage.keys, "a", lease)) == "gone"
    assert not stage.run(cache_calls.store(stage.keys, "a", b"\xc0", 60, (), lease))
    assert stage.run(cache_calls.lease(stage.keys, "a")).lease != lease


def test_a_lease_that_another_one_took_stays(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    stage.run(cache_calls.delete(stage.keys, ["a"]))
    other = stage.run(cache_calls.lease(stage.keys, "a")).lease
    assert stage.run(cache_calls.release(stage.keys, "a", lease)) == "gone"
    assert stage.run(cache_calls.store(stage.keys, "a", b"\xc0", 60, (), other))


def test_a_value_stays(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    stage.client.set(stage.keys.cache("a"), "alien")
    assert stage.run(cache_calls.release(stage.keys, "a", lease)) == "released"
    assert stage.client.get(stage.keys.cache("a")) == b"alien"
    stage.client.delete(stage.keys.cache("a"))
