from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionsError
from headrace.stats.resolutions import ERROR, Histogram, bucket_of, histogram_of, middle_of

values = st.one_of(
    st.floats(1e-300, 1e300), st.floats(-1e300, -1e-300), st.floats(-1e-9, 1e-9, allow_subnormal=False).filter(lambda x: abs(x) > 1e-300),
    st.just(0.0), st.just(-0.0), st.integers(-10**9, 10**9),
)  # fmt: skip


def of(given_values: list[float]) -> Histogram:
    counts: dict[float, int] = {}
    for value in given_values:
        middle = middle_of(bucket_of(value))
        counts[middle] = counts.get(middle, 0) + 1
    return histogram_of(counts)


@given(values)
def test_a_bucket_is_near_to_each_of_its_values(value: float) -> None:
    assert math.isclose(middle_of(bucket_of(value)), value, rel_tol=ERROR * 1.0001)


@given(st.lists(values, min_size=1, max_size=60), st.floats(0, 100))
def test_a_percentile_is_near_to_the_true_one(found: list[float], percent: float) -> None:
    ranked = sorted(found)
    true = ranked[max(1, math.ceil(len(found) * percent / 100)) - 1]
    assert math.isclose(of(found).percentile(percent), true, rel_tol=ERROR * 1.0001)


@given(st.lists(values), st.lists(values))
def test_two_together_are_one_of_all(some: list[float], others: list[float]) -> None:
    assert of(some) + of(others) == of(some + others)


@pytest.mark.parametrize("value", [sys.float_info.max, -sys.float_info.max, 10**400])
def test_the_largest_numbers_are_told_as_large_ones(value: float) -> None:
    assert abs(middle_of(bucket_of(value))) == sys.float_info.max


def test_mean_and_count() -> None:
    found = of([1.0, 2.0, 3.0])
    assert found.count == 3
    assert math.isclose(found.mean, 2.0, rel_tol=ERROR)
    assert (Histogram({}).mean, Histogram({}).percentile(50), Histogram({}).count) == (0.0, 0.0, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(OptionsError, match="finite number"):
        bucket_of(value)


@pytest.mark.parametrize("percent", [-1, 101, math.nan])
def test_a_percentile_is_of_a_hundred(percent: float) -> None:
    with pytest.raises(OptionsError, match="0 and 100"):
        Histogram({}).percentile(percent)
