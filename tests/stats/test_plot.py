from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.output import number, plot, spark, squeeze

numbers = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300)


def test_sparks() -> None:
    assert spark([0, 1, 2, 3, 4, 5, 6, 7, 8]) == "·▁▂▃▄▅▆▇█"
    assert (spark([]), spark([0, 0]), spark([5])) == ("", "··", "█")
    assert spark([0, 1, 1000]) == "·▁█"
    assert spark([-2, 0, 2]) == "▁·█"


def test_a_plot() -> None:
    assert plot([0, 2, 4], "from", "to", 40, height=2) == ["4 │  █", "0 │ ██", "  └───", "   from  to"]


@given(numbers)
def test_every_series_can_be_drawn(values: list[float]) -> None:
    assert len(spark(values)) == len(values)
    lines = plot(values, "left", "right", 60)
    assert len(lines) == 10
    assert max(map(len, lines)) <= 60


@given(numbers, st.integers(1, 50))
def test_no_peak_is_lost(values: list[float], most: int) -> None:
    found = squeeze(values, most)
    assert max(found) == max(values)
    assert len(found) == min(most, len(values))


def test_numbers_for_people() -> None:
    shown = {0: "0", 0.03456: "0.0346", 12.34: "12.3", 1234: "1,234", 1234.5: "1,234", 2.5e6: "2.5M", -3e9: "-3.0G"}
    assert {n: number(n) for n in shown} == shown
