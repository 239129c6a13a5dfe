from __future__ import annotations

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Counts
from tests.scripts.stage import SECOND, Stage
from tests.scripts.stats_stage import add, fresh


def test_children_are_those_that_hold_something_the_last_to_end_first(stage: Stage) -> None:
    """R32, RS10."""
    fresh(stage)
    now = stage.now // SECOND
    add(stage, 1, Counts({}, {"": {"a": now + 90}, "a": {"x": now + 20, "y:z": now + 40, "w": now + 90}}))

    def children(label: str, offset: int = 0, limit: int = 10) -> list[str]:
        return stage.run(stats_calls.children(stage.keys, label, offset, limit))

    assert (children(""), children("a"), children("b")) == (["a"], ["w", "y:z", "x"], [])
    assert (children("a", 1), children("a", 0, 1)) == (["y:z", "x"], ["w"])
    stage.now += 30 * SECOND
    assert children("a") == ["w", "y:z"]


def test_some_buckets_of_each_come_with_them(stage: Stage) -> None:
    fresh(stage)
    ends = stage.now // SECOND + 3600
    held = {"shop/a": {"n": 3}, "shop/b": {"n": 4, "m": 1}, "c": {"n": 5}}
    add(stage, 1, Counts({("2099", ends): held}, {"shop": {"a": ends, "b": ends}, "": {"shop": ends, "c": ends}}))

    def below(label: str, *dates: str, offset: int = 0, limit: int = 9) -> dict[str, list[dict[str, int]]]:
        return dict(stage.run(stats_calls.held_below(stage.keys, label, dates, offset, limit)))

    assert below("shop", "2099", "2098") == {"a": [{"n": 3}, {}], "b": [{"n": 4, "m": 1}, {}]}
    assert below("", "2099") == {"c": [{"n": 5}], "shop": [{}]}
    assert below("shop") == {"a": [], "b": []}
    assert [*below("shop", "2099", limit=1), *below("shop", "2099", offset=1)] == ["b", "a"]
