"""How durations and sizes are written: the same in logs, lists, pages and pictures."""

from __future__ import annotations

import pytest

from headrace.model.notation import duration, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0"), (0, "0"), (4e-7, "0"), (0.000007, "7 µs"), (0.00147, "1.47 ms"), (0.999499, "999 ms"),
        (0.9995, "1 s"), (2.06, "2.06 s"), (42, "42 s"), (59.94, "59.9 s"), (59.95, "1 min"), (200, "3 min 20 s"),
        (3599.6, "1 h"), (18_600, "5 h 10 min"), (90_000, "1 d 1 h"), (86_399.6, "1 d"), (1e9, "11,574 d"),
    ],
)  # fmt: skip
def test_a_duration_has_three_digits_or_two_units(seconds: float, words: str) -> None:
    assert duration(seconds * 1e6) == words


def test_each_unit_ends_where_its_three_digits_do() -> None:
    """A thousand of one was once written with an exponent."""
    for exponent in range(-7, 2):
        for digits in (0.9994, 0.9995, 0.9996, 1.0):
            assert "e" not in duration(digits * 10.0**exponent * 1e6)


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.6, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_a_size_is_rounded_into_the_unit_that_fits(amount: float, told: str) -> None:
    assert size(amount) == told
