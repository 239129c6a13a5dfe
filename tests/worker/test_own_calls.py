"""The duty that lines up calls of hooks, with replies and a clock by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.admin.event_log import EventHook
from headrace.protocol.operations import DueCall
from headrace.worker.dispatcher.declared_duties import EVERY, OwnCalls
from tests.worker.cranked import arguments
from tests.worker.worker_states import desk_of, worker_state

ROWS = [("1-0", {"kind": "failed", "task": "tasks.a"}), ("2-0", {"kind": "failed", "task": "other.b"})]


def hook(name: str = "tasks.told", task: str = "") -> EventHook:
    return EventHook(name, lambda _: None, ("failed",), task, "")


def duty(*hooks: EventHook, look: Callable[[], None] | None = None) -> OwnCalls:
    worker = worker_state({})
    worker.hooks, worker.look_at_alarms = hooks, look
    return OwnCalls(worker, desk_of(worker))


def stored(made: OwnCalls, now: float) -> list[dict[str, Any]]:
    """The arguments of the jobs, or moves of a cursor, that are stored now."""
    made._worker.now = now
    steps = made.steps(now)
    assert made.at == now
    assert {call.script.name for call, _ in steps} <= {"own_store"}
    for _, read in steps:
        read("stored")
    return [arguments(call) for call, _ in steps]


def test_code_without_hooks_asks_for_nothing() -> None:
    assert duty().at == float("inf")
    assert duty(hook()).at == duty(look=lambda: None).at == 0.0


def test_what_happened_is_stored_as_one_call_with_the_move_of_the_cursor() -> None:
    made = duty(hook())
    ((call, read),) = made.steps(100.0)
    assert call.script.name == "own_calls"
    assert made.at == 100.0 + EVERY
    read([DueCall("0-0", "2-0", ROWS, True)])
    (job,) = stored(made, 100.0)
    assert (job["hook"], job["was"], job["at"]) == ("hook:tasks.told", "0-0", "2-0")
    assert job["key"] == "headrace.hook.tasks.told"
    assert b"1-0" in job["fields"]
    assert b"2-0" in job["fields"]
    assert made.stored
    # Then it sleeps until the next look.
    assert made.at == 100.0 + EVERY
    assert [call.script.name for call, _ in made.steps(made.at)] == ["own_calls"]


@pytest.mark.parametrize(("task", "count"), [("tasks.*", 1), ("none.*", 0)])
def test_events_that_a_hook_does_not_want_only_move_its_cursor(task: str, count: int) -> None:
    made = duty(hook(task=task))
    ((_, read),) = made.steps(100.0)
    read([DueCall("0-0", "2-0", ROWS, True)])
    (job,) = stored(made, 100.0)
    assert (bool(job["id"]), job["at"], made.stored) == (count > 0, "2-0", count > 0)


def test_nothing_is_stored_where_nothing_happened() -> None:
    made = duty(hook())
    ((_, read),) = made.steps(100.0)
    read([DueCall("2-0", "2-0", [], True)])
    assert (made.at, made.stored) == (100.0 + EVERY, False)


def test_a_look_at_alarms_begins_where_the_store_says_that_it_is_due() -> None:
    looks: list[str] = []
    made = duty(hook(), look=lambda: looks.append("look"))
    for now, due in ((100.0, False), (101.0, True)):
        ((_, read),) = made.steps(now)
        read([DueCall("2-0", "2-0", [], True), DueCall("x", "x", [], due)])
        assert (made.at, looks) == (now + EVERY, ["look"] * due)
    assert not made.stored


def test_a_worker_that_stops_lines_up_nothing() -> None:
    made = duty(hook())
    made._worker.phase = "draining"
    assert (made.steps(100.0), made.at) == ([], float("inf"))
