from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import SECOND, START, Stage


def put(
    stage: Stage, name: str, data: bytes = b"\xc3", ttl: float = 60, tags: tuple[str, ...] = (), lease: str = ""
) -> bool:
    return stage.run(cache_calls.store(stage.keys, name, data, ttl, tags, lease))


def test_a_value_is_stored_with_its_tags_and_its_end(stage: Stage) -> None:
    assert put(stage, "a", b"\x00\n\xff", tags=("x", "y"))
    assert stage.run(cache_calls.read(stage.keys, "a")) == b"x,y\n\x00\n\xff"
    assert cache_calls.payload(b"x,y\n\x00\n\xff") == b"\x00\n\xff"
    assert 0 < stage.client.pttl(stage.keys.cache("a")) <= 60_000
    for index in ("cached", "tagged:x", "tagged:y"):
        assert stage.members(index) == {"a": START + 60 * SECOND}
        assert 50_000 < stage.client.pttl(stage.keys(index)) <= 60_001


def test_another_value_leaves_the_tags_of_the_one_before(stage: Stage) -> None:
    put(stage, "a", tags=("x", "y"))
    put(stage, "a", tags=("y", "z"))
    assert stage.members("tagged:x") == {}
    assert stage.members("tagged:y").keys() == stage.members("tagged:z").keys() == {"a"}
    put(stage, "a")
    assert set(stage.client.keys("*")) == {stage.keys.cache("a").encode(), stage.keys("cached").encode()}


def test_indexes_live_as_long_as_their_longest_and_let_go_of_what_ended(stage: Stage) -> None:
    put(stage, "long", ttl=100, tags=("x",))
    put(stage, "short", ttl=1, tags=("x",))
    stage.client.delete(stage.keys.cache("short"))  # as its end does
    assert stage.client.pttl(stage.keys("cached")) > 90_000
    stage.now += 2 * SECOND
    put(stage, "other", tags=("x",))
    assert stage.members("cached").keys() == stage.members("tagged:x").keys() == {"long", "other"}


def test_what_ended_leaves_a_bounded_number_at_a_time(stage: Stage) -> None:
    for n in range(150):
        put(stage, f"n{n}", ttl=20)
        stage.client.delete(stage.keys.cache(f"n{n}"))  # as its end does
    stage.now += 21 * SECOND
    put(stage, "a")
    assert len(stage.members("cached")) == 51
    put(stage, "b")
    assert stage.members("cached").keys() == {"a", "b"}


def test_an_alien_value_is_replaced(stage: Stage) -> None:
    stage.client.rpush(stage.keys.cache("a"), "alien")
    assert put(stage, "a")
    assert stage.run(cache_calls.read(stage.keys, "a")) == b"\n\xc3"


def test_a_lease_is_used_up_by_the_first_store(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    assert put(stage, "a", b"\x01", lease=lease)
    assert not put(stage, "a", b"\x02", lease=lease)
    assert stage.run(cache_calls.read(stage.keys, "a")) == b"\n\x01"


def test_a_write_ends_the_lease_of_whoever_computes(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    assert put(stage, "a", b"\x01")
    assert not put(stage, "a", b"\x02", lease=lease)
    assert stage.run(cache_calls.read(stage.keys, "a")) == b"\n\x01"


def test_a_refused_lease_of_before_a_drop_is_not_left_to_refuse_others(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    stage.run(cache_calls.drop(stage.keys, "x", True))
    assert not put(stage, "a", tags=("w", "x"), lease=lease)
    again = stage.run(cache_calls.lease(stage.keys, "a")).lease
    assert again != lease
    assert put(stage, "a", tags=("w", "x"), lease=again)


def test_a_drop_of_another_tag_ends_no_lease(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    stage.run(cache_calls.drop(stage.keys, "y", True))
    assert put(stage, "a", tags=("x",), lease=lease)


def test_a_clear_ends_every_lease(stage: Stage) -> None:
    lease = stage.run(cache_calls.lease(stage.keys, "a")).lease
    stage.run(cache_calls.drop(stage.keys, cache_calls.ALL, True))
    assert not put(stage, "a", lease=lease)
