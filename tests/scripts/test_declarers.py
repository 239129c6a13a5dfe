"""declarers.lua: ticks of a schedule that no code declares wait, and in the end it is orphaned."""

from __future__ import annotations

import pytest

from headrace.protocol import consume
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule, told
from tests.scripts.stage import SECOND, Stage

TASKS = {"add": "process"}
LEASE = 10_000 * MINUTE


def worker(stage: Stage, owner: str, *names: str) -> None:
    stage.register(owner, LEASE, tasks=TASKS)
    if names:
        put(stage, *(row(name) for name in names), owner=owner)


def drain(stage: Stage, owner: str) -> None:
    assert stage.run(consume.renew(stage.keys, owner, LEASE, ["draining", 1])).alive


def leave(stage: Stage, owner: str) -> None:
    assert stage.run(consume.retire(stage.keys, owner))


@pytest.mark.parametrize("end", [drain, leave])
def test_a_renamed_schedule_ticks_once_after_the_deploy(stage: Stage, end: object) -> None:
    """It ticked under both names for ten minutes."""
    worker(stage, "old", "a")
    fire(stage)
    worker(stage, "new", "b")
    fire(stage)
    assert callable(end)
    end(stage, "old")
    for n in range(5):
        stage.now = FIRST + n * MINUTE
        fire(stage)
    assert [one.runs for one in (schedule(stage, "a"), schedule(stage, "b"))] == [0, 5]


def test_a_worker_that_stops_has_ticks_where_no_other_knows_their_task(stage: Stage) -> None:
    worker(stage, "old", "s")
    stage.register("other", LEASE, tasks={"mail": "process"})
    fire(stage)
    drain(stage, "old")
    stage.now = FIRST
    fire(stage)
    assert schedule(stage).runs == 1


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("latest", [(0, "missed", 4), (240, "ran", 1)]),
        ("all", [(60 * n, "ran", 1) for n in range(5)]),
        ("skip", [(0, "missed", 4), (240, "missed", 1)]),
    ],
)
def test_ticks_wait_for_code_that_comes_back(stage: Stage, missed: str, expected: list[tuple[int, str, int]]) -> None:
    one = row(missed=missed)
    stage.register("other", LEASE)
    worker(stage, "old")
    put(stage, one, owner="old")
    fire(stage)
    leave(stage, "old")
    for n in range(5):
        stage.now = FIRST + n * MINUTE
        assert fire(stage).ran == 0
    stage.now += 31 * SECOND
    worker(stage, "new")
    assert put(stage, one, owner="new") == ["same"]
    assert stage.members("ticking")["s"] == stage.now, "it need not be waited for"
    fire(stage)
    assert told(stage) == expected
    stage.now = FIRST + 5 * MINUTE
    fire(stage)
    assert told(stage)[-1] == (300, "ran", 1)


def test_it_is_orphaned_after_ten_minutes(stage: Stage) -> None:
    worker(stage, "old", "s")
    stage.register("other", LEASE)
    fire(stage)
    leave(stage, "old")
    stage.now = FIRST
    while stage.now < FIRST + 10 * MINUTE:
        fire(stage)
        assert schedule(stage).state == "active"
        stage.now = stage.members("ticking")["s"]
    assert fire(stage).ran == 0
    assert (schedule(stage).state, stage.members("ticking")) == ("orphaned", {"s": stage.now + 7 * 1440 * MINUTE})
    assert stage.now <= FIRST + 10 * MINUTE + 30 * SECOND


def test_a_server_that_was_away_stops_no_ticks(stage: Stage) -> None:
    """All leases are over, and each worker may come back."""
    stage.register("old", 15 * SECOND, tasks=TASKS)
    put(stage, row(), owner="old")
    fire(stage)
    stage.now = FIRST
    fire(stage)
    assert schedule(stage).runs == 1


def test_another_worker_that_declares_it_is_found(stage: Stage) -> None:
    worker(stage, "one", "s")
    worker(stage, "two", "s")
    fire(stage)
    leave(stage, "two")
    stage.now = FIRST
    fire(stage)
    assert schedule(stage).runs == 1
