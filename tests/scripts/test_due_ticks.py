"""due_ticks.lua: which of several due ticks run, and what is told of the others."""

from __future__ import annotations

import pytest

from headrace.protocol import ticks
from tests.schedules.bench_of_ticks import FIRST, MINUTE, counts, fire, put, row, schedule, tick_id, told
from tests.scripts.stage import SECOND, Stage


@pytest.mark.parametrize(
    ("missed", "ran", "rest"),
    [
        ("latest", [10 * 60], [(0, "missed", 10), (600, "ran", 1)]),
        ("skip", [], [(0, "missed", 10), (600, "missed", 1)]),
        ("all", [60 * n for n in range(11)], [(60 * n, "ran", 1) for n in range(11)]),
    ],
)  # fmt: skip
def test_what_was_missed_follows_the_policy(
    stage: Stage, missed: str, ran: list[int], rest: list[tuple[int, str, int]]
) -> None:
    put(stage, row(missed=missed))
    fire(stage)
    # Ten minutes later, in the middle of a minute.
    stage.now = FIRST + 10 * MINUTE + 40 * SECOND
    assert fire(stage).ran == len(ran)
    assert told(stage) == rest
    assert set(stage.ready()) == {tick_id("s", FIRST + one * SECOND, ordered=False) for one in ran}
    # And from then on each in its time.
    stage.now += 20 * SECOND
    assert fire(stage).ran == 1


@pytest.mark.parametrize("missed", ["latest", "skip", "all"])
def test_after_a_year_the_newest_ticks_are_found_without_a_long_search(stage: Stage, missed: str) -> None:
    put(stage, row(missed=missed))
    fire(stage)
    stage.now = FIRST + 525_600 * MINUTE + SECOND
    assert fire(stage).ran == {"latest": 1, "skip": 1, "all": 100}[missed]
    assert schedule(stage).last[-1].tick == FIRST + 525_600 * MINUTE


def test_older_than_within_does_not_run(stage: Stage) -> None:
    put(stage, row(missed="all", within=3 * MINUTE))
    fire(stage)
    stage.now = FIRST + 8 * MINUTE + 40 * SECOND
    assert fire(stage).ran == 3
    assert told(stage) == [(0, "missed", 6), (360, "ran", 1), (420, "ran", 1), (480, "ran", 1)]
    put(stage, row("t", within=MINUTE // 2))
    fire(stage)
    stage.now += 5 * MINUTE
    assert [one.what for one in (fire(stage), schedule(stage, "t"))[1].last] == ["missed", "missed"]


def test_what_became_of_ticks_is_counted(stage: Stage) -> None:
    put(stage, row("latest"), row("busy", overlap="skip"), row("quiet"))
    fire(stage)
    stage.now = FIRST
    fire(stage)
    assert counts(stage) == {name: {"ran": 1} for name in ("latest", "busy", "quiet")}
    stage.run(ticks.pause_schedule(stage.keys, "quiet", ""))
    stage.now = FIRST + 4 * MINUTE
    fire(stage)
    latest = schedule(stage, "latest")
    assert (latest.runs, latest.ticks_missed, latest.ticks_skipped, latest.ticks_twice) == (2, 3, 0, 0)
    assert counts(stage) == {
        "latest": {"ran": 2, "missed": 3},
        "busy": {"ran": 1, "missed": 3, "skipped": 1},
        "quiet": {"ran": 1},
    }


def test_a_count_that_is_no_number_stops_no_tick(stage: Stage) -> None:
    put(stage, row("s"), row("t"))
    fire(stage)
    stage.client.hset(stage.keys("schedule:s"), "ticks_missed", "x")
    stage.now = FIRST + 4 * MINUTE
    assert fire(stage).broken == []
    assert counts(stage) == {"s": {"ran": 1}, "t": {"ran": 1, "missed": 4}}


def test_so_many_failures_in_a_row_pause_a_schedule(stage: Stage) -> None:
    put(stage, row(pause_after=2))
    fire(stage)
    kinds = ["failed", "succeeded", "failed", "quarantined"]
    for n, kind in enumerate(kinds):
        stage.now = FIRST + n * MINUTE
        assert fire(stage).ran == 1
        (claim,) = stage.take()
        stage.end(claim, {"quarantined": "corrupt"}.get(kind, kind))
    stage.now += MINUTE
    assert fire(stage).ran == 0
    assert (schedule(stage).state, schedule(stage).paused) == ("paused", "2 jobs failed, one after the other")
    assert stage.members("ticking") == {}
    # A resume begins to count anew.
    stage.run(ticks.resume_schedule(stage.keys, "s"))
    fire(stage)
    stage.now += MINUTE
    assert fire(stage).ran == 1
