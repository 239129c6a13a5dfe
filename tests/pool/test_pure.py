"""What decides without clocks: alerts and restarts. P32, P36, P37, PS10."""

from __future__ import annotations

import pytest

from headrace.errors import OptionsError
from headrace.pool import DeferredResult
from headrace.pool.events import Overrun
from headrace.pool.members import Restarts


def test_without_a_limit_alerts_double_and_nobody_is_killed() -> None:
    overrun = Overrun(1)
    assert [overrun.due(number) for number in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert not any(overrun.last(number) for number in range(1, 50))


def test_with_a_limit_alerts_are_equally_spaced_and_the_last_kills() -> None:
    overrun = Overrun(1, limit=5)
    assert [overrun.due(number) for number in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 5]
    assert [overrun.last(number) for number in (4, 5)] == [False, True]
    assert (Overrun(0.5, limit=2).due(2), Overrun(0.5, limit=2).last(2)) == (1, True)


@pytest.mark.parametrize("arguments", [(0, None), (-1, None), (1, 0)])
def test_an_overrun_without_sense_is_refused(arguments: tuple[float, int | None]) -> None:
    with pytest.raises(OptionsError):
        Overrun(*arguments)


def test_a_few_deaths_are_made_good_at_once_and_a_storm_ever_later() -> None:
    restarts = Restarts(limit=3, period=60)
    now, delays = 0.0, list[float]()
    for _ in range(11):
        delays.append(restarts.delay(now))
        now += delays[-1]
    assert delays == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.late


def test_a_quiet_period_ends_the_storm() -> None:
    restarts = Restarts(limit=1, period=10)
    assert [restarts.delay(now) for now in (0, 0, 1)] == [0, 1, 2]
    assert restarts.delay(30) == 0
    assert not restarts.late


def test_deaths_far_apart_are_no_storm() -> None:
    restarts = Restarts(limit=2, period=10)
    assert [restarts.delay(now) for now in range(0, 100, 6)] == [0] * 17


def test_of_two_answers_at_once_the_first_counts() -> None:
    later: DeferredResult[int] = DeferredResult()
    later.reply(1)
    # As another thread sees it that looked just before.
    later.future.done = lambda: False  # type: ignore[method-assign]
    later.reply(2)
    later.fail(ValueError())
    assert later.future.result() == 1
