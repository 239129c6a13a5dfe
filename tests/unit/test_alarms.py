"""Alarms: what may be declared, and when one is raised and cleared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Headrace
from headrace.errors import OptionsError
from headrace.model.activity import (
    CLEAR_US,
    AlarmRule,
    AlarmState,
    fields_of,
    next_state,
    state_of,
)

SECOND = 1_000_000
RULE = AlarmRule("slow", "delay", 60.0, "mail", "", 300 * SECOND)


def played(rule: AlarmRule, values: Sequence[float], every: int = 10 * SECOND) -> list[AlarmState]:
    """The states after looks at these values."""
    states, now = [AlarmState()], SECOND
    for value in values:
        states.append(next_state(rule, states[-1], value, now))
        now += every
    return states[1:]


def changes(states: list[AlarmState]) -> list[int]:
    """After how many looks it was raised or cleared."""
    flags = [False, *(state.raised_us > 0 for state in states)]
    return [n for n, (one, other) in enumerate(itertools.pairwise(flags)) if one != other]


def test_it_is_raised_when_the_figure_was_beyond_the_bound_for_as_long_as_it_says() -> None:
    assert changes(played(RULE, [61] * 30)) == []
    states = played(RULE, [61] * 29 + [70, 90])
    assert changes(states) == [30]
    assert (states[-1].value, states[-1].raised_us) == (90, 301 * SECOND)
    # A look in between begins anew.
    assert changes(played(RULE, [61] * 20 + [60] + [61] * 20)) == []


def test_it_is_cleared_when_the_figure_was_within_the_bound_for_as_long() -> None:
    assert changes(played(RULE, [61] * 31 + [5] * 31)) == [30, 61]
    at_once = AlarmRule("slow", "delay", 60.0, "mail", "", 0)
    assert changes(played(at_once, [61] + [5] * 10)) == [0, 1 + CLEAR_US // (10 * SECOND)]
    assert changes(played(at_once, [61, 5] * 20)) == [0]


def test_fewer_workers_raise_it() -> None:
    rule = AlarmRule("gone", "workers", 1.0, "mail", "", 0)
    assert changes(played(rule, [1, 2, 0])) == [2]
    assert changes(played(rule, [0] + [1] * 7)) == [0, 7]


def test_a_clock_that_is_set_back_puts_no_change_off_for_longer_than_the_alarm_says() -> None:
    state, hour = next_state(RULE, AlarmState(), 61, 3600 * SECOND), 3600 * SECOND
    for seconds in (10, 310):
        state = next_state(RULE, state, 61, seconds * SECOND)
    assert state.raised_us == 310 * SECOND
    state = next_state(RULE, state, 5, hour)
    for seconds in (400, 700):
        state = next_state(RULE, state, 5, seconds * SECOND)
    assert not state.raised_us


@given(st.lists(st.floats(0, 120), max_size=200), st.integers(0, 200))
def test_it_changes_no_more_often_than_it_says(values: list[float], hold: int) -> None:
    rule = AlarmRule("slow", "delay", 60.0, "", "", hold * SECOND)
    states = played(rule, values)
    found = changes(states)
    for one, other in itertools.pairwise(found):
        assert (other - one) * 10 * SECOND >= rule.hold_us
    assert all(
        state_of({k: str(v) for k, v in fields_of(state).items()}).raised_us == state.raised_us for state in states
    )


def test_a_state_that_cannot_be_read_is_a_new_one() -> None:
    assert state_of({"raised": "x", "since": "", "value": "y"}) == AlarmState()
    state = AlarmState(5, 6, 7.25, RULE.words)
    assert state_of({name: str(value) for name, value in fields_of(state).items()}) == state
    assert RULE.words == "delay of mail above 60 s for 300 s"
    assert AlarmRule("x", "failed", 0.05, "", "t", 0).words == "failed of t above 5 % for 0 s"


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({}, "exactly one of"),
        ({"delay": 5, "ready": 5}, "exactly one of"),
        ({"delay": -1}, "delay"),
        ({"delay": "5"}, "delay must be seconds"),
        ({"ready": True}, "ready must be a number"),
        ({"workers": 0}, "never fewer than 0"),
        ({"failed": 1}, "share"),
        ({"failed": 0.5, "queue": "mail"}, "of a task"),
        ({"delay": 5, "task": "t"}, "of a queue"),
        ({"delay": 5, "queue": "a b"}, "queue name"),
        ({"delay": 5, "for_": -1}, "for_"),
    ],
)
def test_what_cannot_be_an_alarm_is_refused_at_the_call(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        Headrace("redis://127.0.0.1:1").alarm("name", **given_)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", 5])
def test_a_name_is_a_text(name: Any) -> None:
    with pytest.raises(OptionsError, match="name of an alarm"):
        Headrace("redis://127.0.0.1:1").alarm(name, ready=5)


@pytest.mark.parametrize(
    ("rule", "value", "shown"),
    [
        (RULE, 61.5, "61.5 s"),
        (AlarmRule("fails", "failed", 0.05, "", "t", 0), 0.0947867, "9.479 %"),
        (AlarmRule("few", "workers", 2, "", "", 0), 1, "1"),
    ],
)
def test_a_figure_is_shown_in_the_unit_of_its_bound(rule: AlarmRule, value: float, shown: str) -> None:
    assert AlarmState(1, 0, value, rule.words).shown == shown


def test_a_name_is_taken_once() -> None:
    app = Headrace("redis://127.0.0.1:1")
    app.alarm("mail is slow", queue="mail", delay=60)
    with pytest.raises(OptionsError, match="already"):
        app.alarm("mail is slow", ready=5)


def test_hooks_are_checked_where_they_are_declared() -> None:
    app = Headrace("redis://127.0.0.1:1")
    with pytest.raises(OptionsError, match="did you mean failed"):
        app.on("faild")
    with pytest.raises(OptionsError, match="one argument"):
        app.on("failed")(no_argument)  # type: ignore[type-var]
    with pytest.raises(OptionsError, match="with a name"):
        app.on("failed")(lambda events: None)
    assert app.on("failed", task="shop.*")(one) is one
    assert list(app.hooks.declared) == [f"{__name__}.one"]
    with pytest.raises(OptionsError, match="already"):
        app.on("quarantined")(one)


def one(events: list[Any]) -> None: ...


def no_argument() -> None: ...
