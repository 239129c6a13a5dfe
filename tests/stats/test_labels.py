from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionsError
from headrace.protocol.stats_calls import Counts
from headrace.stats.buffer import PIECE, Row, grouped, pieces, spread
from headrace.stats.resolutions import field_of, groups, label_of, layout_of, levels

LAYOUT = layout_of("hour=1d day=9d year=90y")


@pytest.mark.parametrize("text", ["a/b", "/a/b", "a/b/", "//a///b//"])
def test_a_label_is_normalised_once(text: str) -> None:
    """R04, RS1: what was written with a slash in front is what is read without one."""
    assert label_of(text) == "a/b"
    assert levels(label_of(text)) == ("a/b", "a")


def test_the_root_is_part_of_nothing() -> None:
    assert (label_of(""), label_of("/"), levels("")) == ("", "", ("",))


@pytest.mark.parametrize("text", ["a\nb", "a\x00", "\x7f", "a" * 513, "\ud800"])
def test_labels_and_fields_that_cannot_be(text: str) -> None:
    with pytest.raises(OptionsError, match="cannot be used"):
        label_of(text)
    with pytest.raises(OptionsError, match="cannot be used"):
        field_of(text)


@pytest.mark.parametrize("text", ["", "/", "a~1"])
def test_a_field_has_a_name_without_the_mark(text: str) -> None:
    with pytest.raises(OptionsError, match="field"):
        field_of(text)


def test_fields_are_grouped() -> None:
    """R05."""
    assert groups("count/chrome/11") == ("count/chrome/11", "count/chrome", "count")
    assert groups("seconds/fast~-7") == ("seconds/fast~-7", "seconds~-7")
    assert grouped({"count/chrome/11": 2, "/count/firefox/": 1}) == {
        "count/chrome/11": 2, "count/chrome": 2, "count": 3, "count/firefox": 1,
    }  # fmt: skip


def test_a_field_that_is_a_group_too_has_the_sum() -> None:
    """RS12."""
    assert grouped({"count": 5, "count/x": 2}) == {"count": 7, "count/x": 2}


def test_the_cost_rule() -> None:
    """R06: 3 levels, 4 resolutions, 3 fields are 36 increments, and 3 index entries."""
    layout = layout_of("hour=1d day=9d month=90d year=9y")
    counts = spread([Row(layout, "a/b/c", 0, {"n/x/y": 1})])
    assert sum(len(f) for labels in counts.buckets.values() for f in labels.values()) == 36
    assert {parent: list(parts) for parent, parts in counts.index.items()} == {"a/b": ["c"], "a": ["b"], "": ["a"]}


def test_rows_of_one_bucket_are_merged_and_of_different_times_are_not() -> None:
    """RS13."""
    rows = [Row(LAYOUT, "a/b", 0, {"n": 1}), Row(LAYOUT, "a/c", 0, {"n": 2}), Row(LAYOUT, "a/b", 3600, {"n": 4})]
    buckets = {date: labels for (date, _), labels in spread(rows).buckets.items()}
    assert buckets["1970010100"] == {"a/b": {"n": 1}, "a": {"n": 3}, "a/c": {"n": 2}}
    assert buckets["1970010101"] == {"a/b": {"n": 4}, "a": {"n": 4}}
    assert buckets["19700101"]["a"] == buckets["1970"]["a"] == {"n": 7}


def flat(counts: Counts) -> dict[tuple[str, str, str], int]:
    return {
        (date, label, field): n
        for (date, _), labels in counts.buckets.items()
        for label, fields in labels.items()
        for field, n in fields.items()
    }


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9000), st.integers(1, 3000)), max_size=6))
def test_pieces_are_the_whole_and_each_agrees_with_itself(given_rows: list[tuple[int, int, int]]) -> None:
    rows = [Row(LAYOUT, f"a/{a}", t, {f"f{n}": n for n in range(count)}) for a, t, count in given_rows]
    whole, found = spread(rows), Counter[tuple[str, str, str]]()
    index: dict[str, dict[str, int]] = {}
    for piece in pieces(rows):
        counts = flat(piece)
        assert len(counts) < 2 * PIECE
        found.update(counts)
        for parent, parts in piece.index.items():
            index.setdefault(parent, {}).update({k: max(v, index[parent].get(k, 0)) for k, v in parts.items()})
        sums = Counter[tuple[int, str]]()
        for (date, label, _), n in counts.items():
            sums[len(date), "above" if label == "a" else "below"] += n
        assert len(set(sums.values())) == 1, "every resolution and every group holds the same counts"
    assert found == flat(whole)
    assert index == whole.index
