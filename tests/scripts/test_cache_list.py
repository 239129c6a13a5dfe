from __future__ import annotations

from headrace.protocol import cache_calls
from tests.scripts.stage import Stage


def store(stage: Stage, name: str, seconds: float, *tags: str) -> None:
    stage.run(cache_calls.store(stage.keys, name, b"\xa5value", seconds, tags))


def test_values_are_told_by_their_end_with_sizes_and_tags(stage: Stage) -> None:
    store(stage, "late", 90)
    store(stage, "soon", 60, "x", "y")
    page = stage.run(cache_calls.page(stage.keys))
    assert [(one.name, one.tags, one.size) for one in page.rows] == [("soon", ("x", "y"), 10), ("late", (), 7)]
    assert [one.end - page.now for one in page.rows] == [60_000_000, 90_000_000]
    assert (page.count, page.next) == (2, None)
    assert [one.name for one in stage.run(cache_calls.page(stage.keys, "y")).rows] == ["soon"]
    assert stage.run(cache_calls.page(stage.keys, "z")).rows == []


def test_pages_follow_each_other_without_a_gap(stage: Stage) -> None:
    for n in range(7):
        # Several end at one time.
        store(stage, f"n~{n}", 60 + n // 3)
    after, found = "", list[str]()
    while True:
        page = stage.run(cache_calls.page(stage.keys, "", after, 2))
        found += [one.name for one in page.rows]
        if page.next is None:
            break
        after = page.next
    assert found == [f"n~{n}" for n in range(7)]


def test_a_value_that_is_gone_is_left_out(stage: Stage) -> None:
    store(stage, "a", 60)
    store(stage, "b", 60)
    stage.client.delete(stage.keys.cache("a"))
    assert [one.name for one in stage.run(cache_calls.page(stage.keys)).rows] == ["b"]
    stage.run(cache_calls.delete(stage.keys, ["a"]))
