from __future__ import annotations

from headrace.protocol import cache
from tests.scripts.stage import Stage


def test_all_who_compute_now_share_one_lease(stage: Stage) -> None:
    first, second, other = (stage.run(cache.lease(stage.keys, name)) for name in ("a", "a", "b"))
    assert first == second != other
    assert 3500 < stage.client.ttl(stage.keys.filling("a")) <= cache.LEASE


def test_there_is_none_where_there_is_a_value(stage: Stage) -> None:
    stage.run(cache.store(stage.keys, "a", b"\xc0", 60, now=stage.now))
    assert stage.run(cache.lease(stage.keys, "a")) == ""
    assert not stage.client.exists(stage.keys.filling("a"))
