"""How many jobs at once a queue wants: a pure decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admin.queues import wanted


@pytest.mark.parametrize(
    ("ready", "running", "due", "paused", "arrivals", "run", "target", "expected"),
    [
        (0, 0, 0, False, 5.0, 1.0, 30, 0),  # nothing to do now, whatever came lately
        (0, 0, 1, False, 0.0, 1.0, 30, 1),  # one comes due: a worker must be there
        (0, 3, 0, False, 0.0, 1.0, 30, 3),  # what runs, runs on
        (60, 0, 0, False, 0.0, 1.0, 30, 2),
        (60, 4, 0, False, 0.0, 1.0, 30, 6),
        (1, 0, 0, False, 0.0, 0.001, 30, 1),
        (1, 2, 0, False, 10.0, 2.0, 30, 20),  # what keeps up with ten a second
        (7, 1, 0, False, 0.0, 0.0, 30, 8),  # nothing has ended yet: each may take as long as the target
        (900, 2, 5, True, 10.0, 2.0, 30, 2),  # paused
        (900, 0, 5, True, 10.0, 2.0, 30, 0),
    ],
)
def test_a_queue_wants(
    ready: int, running: int, due: int, paused: bool, arrivals: float, run: float, target: float, expected: int
) -> None:
    assert wanted(ready, running, due, paused, arrivals, run, target) == expected


counts, times = st.integers(0, 10**6), st.floats(0, 10**5)


@given(counts, counts, counts, times, times, st.floats(0.001, 10**5))
def test_it_never_wants_nothing_while_there_is_work_nor_less_than_runs(
    ready: int, running: int, due: int, arrivals: float, run: float, target: float
) -> None:
    found = wanted(ready, running, due, False, arrivals, run, target)
    assert found >= running
    assert (found == 0) == (not (ready or running or due))
