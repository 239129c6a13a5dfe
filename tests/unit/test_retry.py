from __future__ import annotations

import copy
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionsError, RetryAfter, SoftTimeLimit
from headrace.model import retry
from headrace.model.retry import Retry, policy, with_parts


def test_delays_grow_up_to_the_longest() -> None:
    retry = Retry(max=9, delay=2, factor=3, max_delay=50, jitter=0)
    assert [retry.wait(failures, 0.5) for failures in range(1, 6)] == [2, 6, 18, 50, 50]


def test_jitter_moves_a_delay_by_its_share() -> None:
    retry = Retry(delay=10, jitter=0.2)
    assert [retry.wait(1, dice) for dice in (0.0, 0.5, 1.0)] == [8, 10, 12]


def test_a_list_has_the_delay_before_each_retry_and_says_how_many_there_are() -> None:
    retry = Retry(delay=[10, timedelta(minutes=1), 7200], jitter=0)
    assert (retry.max, retry.delay) == (3, (10, 60, 7200))
    assert [retry.wait(failures, 0.5) for failures in range(1, 6)] == [10, 60, 7200, 7200, 7200]
    assert Retry(delay=[10], jitter=0.2).wait(1, 1.0) == 12
    assert (Retry().max, Retry(max=5, delay=(1, 2)).max) == (3, 5)
    assert with_parts(Retry(delay=[1, 2]), {"max": 1}).delay == (1, 2)
    assert with_parts(Retry(), {"delay": (7200.0,)}).wait(1, 0.5) == 7200


def test_a_job_that_names_its_next_start_is_retried_unless_never_names_that() -> None:
    assert retry.fate(Retry(max=1, on=(OSError,)), 0, RetryAfter(3), "") == "retried"
    assert retry.fate(Retry(max=1, never=(RetryAfter,)), 0, RetryAfter(3), "") == "failed"
    assert retry.fate(Retry(max=1), 1, RetryAfter(3), "") == "failed"
    assert pickle.loads(pickle.dumps(RetryAfter(3))).after == 3
    assert str(RetryAfter(timedelta(seconds=90))) == "run again after 0:01:30"


@given(st.integers(1, 1001), st.floats(0, 1), st.floats(0, 1e6), st.floats(1, 1000), st.floats(0, 1e6), st.floats(0, 1))
def test_a_delay_is_never_negative_nor_longer_than_the_longest(
    failures: int, dice: float, delay: float, factor: float, longest: float, jitter: float
) -> None:
    delay = min(delay, longest)
    wait = Retry(max=1000, delay=delay, factor=factor, max_delay=longest, jitter=jitter).wait(failures, dice)
    assert 0 <= wait <= longest
    assert math.isfinite(wait)


def test_which_exceptions_are_retried() -> None:
    retry = Retry(on=(OSError, ValueError), never=(FileNotFoundError,))
    errors = (OSError(), ConnectionError(), ValueError(), FileNotFoundError(), KeyError(), SoftTimeLimit())
    assert [retry.wants(error) for error in errors] == [True, True, True, False, False, False]
    assert Retry().wants(KeyError())
    assert not Retry().wants(SystemExit())


@pytest.mark.parametrize("on", [[ValueError, OSError], (ValueError, OSError)])
def test_exceptions_may_be_given_as_a_list_or_a_tuple(on: Any) -> None:
    retry = Retry(on=on, never=[FileNotFoundError])
    assert [retry.wants(error) for error in (OSError(), FileNotFoundError(), KeyError())] == [True, False, False]
    assert retry == Retry(on=(ValueError, OSError), never=(FileNotFoundError,))
    assert hash(retry) == hash(Retry(on=(ValueError, OSError), never=(FileNotFoundError,)))


@pytest.mark.parametrize("name", ["on", "never"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ValueError, r"give {name} a tuple of exception classes: Retry\({name}=\(ValueError,\)\), not <class"),
        ("ValueError", r"Retry\({name}=\(TimeoutError,\)\), not 'ValueError'"),
        (["ValueError"], "'ValueError' is not an exception class"),
        ([ValueError, ValueError()], r"ValueError\(\) is not an exception class"),
        ((int,), "<class 'int'> is not an exception class"),
        (None, "not None"),
        (ValueError(), r"not ValueError\(\)"),
        ({ValueError}, "not {{<class"),
        ((), None),
    ],
)
def test_what_is_no_exception_class_is_refused_where_it_is_written(name: str, value: Any, text: str | None) -> None:
    if text is None:
        assert getattr(Retry(**{name: value}), name) == ()
        return
    with pytest.raises(OptionsError, match=text.format(name=name)):
        Retry(**{name: value})


def test_a_number_is_a_policy() -> None:
    assert policy(5) == Retry(max=5)
    assert policy(Retry(max=2)) == Retry(max=2)
    assert Retry(delay=timedelta(minutes=1)).delay == 60.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max": -1}, "retries must be a whole number from 0 to 1000, not -1"),
        ({"max": 1001}, "retries must be a whole number from 0 to 1000"),
        ({"max": True}, "retries must be a whole number"),
        ({"max": 1.5}, "retries must be a whole number"),
        ({"delay": -1}, "the delay before a retry must be at least 0"),
        ({"delay": []}, r"delay=\[\] lists no delay"),
        ({"delay": [1, -1]}, "each delay before a retry must be at least 0"),
        ({"delay": [1], "max": 1001}, "retries must be a whole number from 0 to 1000"),
        ({"max_delay": "x"}, "the longest delay before a retry must be seconds or a timedelta, not str"),
        ({"factor": 0.5}, "the factor between retries must be from 1 to 1000, not 0.5"),
        ({"factor": float("nan")}, "the factor between retries"),
        ({"factor": "2"}, "the factor between retries"),
        ({"jitter": 1.1}, "jitter is a share of the delay, from 0 to 1"),
        ({"jitter": None}, "jitter is a share of the delay, from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        Retry(**options)


@pytest.mark.parametrize("given", [{"delay": 7200}, {"delay": 10, "max_delay": 9.5}, {"delay": timedelta(hours=2)}])
def test_a_first_delay_above_the_longest_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match=r"delay=.* and max_delay=.* contradict each other.* give max_delay="):
        Retry(max=3, **given)
    Retry(max=3, delay=7200, max_delay=7200)


def test_a_stored_delay_counts_where_the_task_has_a_shorter_longest_one() -> None:
    retry = with_parts(Retry(max=1), {"delay": 7200.0, "max": 3})
    assert (retry.max, retry.delay, retry.max_delay) == (3, 7200, 7200)
    assert with_parts(Retry(delay=5), {"max_delay": 2.0}).max_delay == 5


@pytest.mark.parametrize("name", sorted(retry._ELSEWHERE))
def test_an_argument_of_another_policy_names_the_one_here(name: str) -> None:
    with pytest.raises(OptionsError, match=f"Retry has no argument '{name}': write ") as raised:
        Retry(**{name: 2})
    assert retry._ELSEWHERE[name] in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text"), [("delya", "write delay=$"), ("colour", "write max= or delay= or factor= or max_delay=")]
)
def test_an_unknown_argument_names_those_that_there_are(name: str, text: str) -> None:
    with pytest.raises(OptionsError, match=text):
        Retry(**{name: 2})  # type: ignore[arg-type]


def test_a_policy_takes_no_positional_argument() -> None:
    with pytest.raises(OptionsError, match=r"write Retry\(max=3\)"):
        Retry(3)  # type: ignore[misc]


def test_a_policy_is_a_value() -> None:
    one = Retry(max=2, on=[ValueError])
    assert (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)) == (one, one)
    assert len({one, Retry(max=2, on=(ValueError,))}) == 1
