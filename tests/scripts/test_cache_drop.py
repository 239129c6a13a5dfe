from __future__ import annotations

import pytest

from headrace.protocol import cache_calls
from headrace.protocol.cache_calls import Dropped
from tests.scripts.stage import SECOND, Stage


def fill(stage: Stage, count: int, *tags: str, prefix: str = "n", ttl: float = 60) -> list[str]:
    names = [f"{prefix}{n:04}" for n in range(count)]
    for name in names:
        stage.run(cache_calls.store(stage.keys, name, b"\xc0", ttl, tags))
    return names


@pytest.mark.parametrize("tag", ["x", cache_calls.ALL])
def test_values_leave_a_bounded_number_at_a_time(stage: Stage, tag: str) -> None:
    names = fill(stage, 25, "x", "y")
    gone = stage.run(cache_calls.drop(stage.keys, tag, True, 10))
    assert (sorted(gone.names), gone.left) == (names[:10], 15)
    assert stage.members("tagged:y").keys() == stage.members("cached").keys() == set(names[10:])
    assert stage.run(cache_calls.drop(stage.keys, tag, False, 100)) == Dropped(names[10:], 0)
    assert set(stage.client.keys("*")) == {stage.keys(f"dropped:{tag}").encode(), stage.keys("leases").encode()}
    assert cache_calls.LEASE - 60 < stage.client.ttl(stage.keys(f"dropped:{tag}")) <= cache_calls.LEASE


def test_values_without_the_tag_stay(stage: Stage) -> None:
    kept, gone = fill(stage, 3, "y", prefix="k"), fill(stage, 3, "x")
    assert stage.run(cache_calls.drop(stage.keys, "x", True)) == Dropped(gone, 0)
    assert stage.members("cached").keys() == set(kept)


def test_an_entry_past_its_end_takes_no_newer_value_with_it(stage: Stage) -> None:
    fill(stage, 1, "x", ttl=1)
    stage.now += 2 * SECOND
    stage.client.delete(stage.keys.cache("n0000"))  # as its end does
    fill(stage, 1)
    assert stage.run(cache_calls.drop(stage.keys, "x", True)) == Dropped([], 0)
    assert stage.run(cache_calls.read(stage.keys, "n0000")) == b"\n\xc0"


def test_nothing_is_dropped_where_nothing_is(stage: Stage) -> None:
    assert stage.run(cache_calls.drop(stage.keys, "x", True)) == Dropped([], 0)
