from __future__ import annotations

import pytest

from headrace.model.job import Claim, Outcome
from headrace.protocol.consume import promote
from headrace.protocol.ticks import run_schedule
from tests.schedules.bench_of_ticks import FIRST, MINUTE, fire, put, row, schedule, tick_id, told
from tests.scripts.stage import Stage


def began(stage: Stage, overlap: str) -> Claim:
    """A schedule whose first job runs."""
    put(stage, row(overlap=overlap))
    fire(stage)
    stage.now = FIRST
    fire(stage)
    (claim,) = stage.take()
    return claim


def after(stage: Stage, minutes: int) -> list[str]:
    """What became of the ticks of so many minutes."""
    for _ in range(minutes):
        stage.now += MINUTE
        fire(stage)
    return [what for _, what, _ in told(stage)][1:]


def test_skip_runs_no_tick_while_the_last_one_is_at_work(stage: Stage) -> None:
    id = began(stage, "skip").id
    assert after(stage, 3) == ["skipped"] * 3
    assert schedule(stage).last[-1].text == id
    # A retry that waits is at work, too.
    token = int(stage.record(id)["token"])
    stage.settle(Outcome(id, token, "retry", b"{}", 10 * MINUTE))
    assert after(stage, 1)[-1:] == ["skipped"]
    stage.run(promote(stage.keys, 10).at(stage.now + 10 * MINUTE))
    (claim,) = stage.take()
    stage.end(claim)
    assert after(stage, 1)[-1:] == ["ran"]


@pytest.mark.parametrize(("overlap", "waiting"), [("buffer_one", 1), ("buffer_all", 3)])
def test_buffered_ticks_wait_for_the_one_at_work(stage: Stage, overlap: str, waiting: int) -> None:
    claim = began(stage, overlap)
    assert after(stage, 3) == ["ran"] * waiting + ["skipped"] * (3 - waiting)
    assert stage.ready() == []
    assert len(stage.members("chain:cron:s")) == waiting
    # One after another they follow.
    for n in range(1, 1 + waiting):
        stage.end(claim)
        (claim,) = stage.take()
        assert claim.id == tick_id("s", FIRST + n * MINUTE)
    stage.end(claim)
    assert stage.members("chain:cron:s") == {}


def test_a_buffer_holds_a_thousand(stage: Stage) -> None:
    began(stage, "buffer_all")
    stage.now = FIRST + 1005 * MINUTE
    moments = [FIRST + n * MINUTE for n in range(1, 1004)]
    rows = [
        row
        for first in range(0, len(moments), 500)
        for row in stage.run(run_schedule(stage.keys, f"b{first}", "s", moments[first : first + 500])) or []
    ]
    assert [word for word, _ in rows] == ["ran"] * 1000 + ["skipped"] * 3
    assert len(stage.members("chain:cron:s")) == 1000


def test_cancel_other_stops_the_one_at_work_and_follows_its_end(stage: Stage) -> None:
    claim = began(stage, "cancel_other")
    after(stage, 2)
    assert stage.names("cancels:w1") == {claim.id}
    # Of those that waited for its end the newest is left.
    assert list(stage.members("chain:cron:s")) == [tick_id("s", stage.now)]
    stage.end(claim, "cancelled")
    assert [claim.id for claim in stage.take()] == [tick_id("s", stage.now)]


def test_allow_all_runs_side_by_side(stage: Stage) -> None:
    began(stage, "allow_all")
    assert after(stage, 2) == ["ran", "ran"]
    assert len(stage.ready()) == 2
