from __future__ import annotations

import pytest

from headrace.protocol.operations import JobFilter, count_meant
from tests.scripts.stage import SECOND, Stage


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_pieces_add_up(stage: Stage, limit: int) -> None:
    for n in range(5):
        stage.put(queue="mail" if n % 2 else "default", delay=SECOND)
    matched, looked, after = 0, 0, ("", "", "")
    for _ in range(20):
        piece = stage.run(count_meant(stage.keys, JobFilter("scheduled", queue="mail"), limit, after))
        matched, looked = matched + piece.matched, looked + piece.looked
        if piece.last is None:
            break
        after = piece.last
    assert (matched, looked) == (2, 5)


def test_parked_and_ready_jobs_are_counted_where_they_are(stage: Stage) -> None:
    stage.put(3)
    stage.settle(*(stage.outcome(claim, "parked") for claim in stage.take()))
    stage.put(2, priority=3)
    assert stage.run(count_meant(stage.keys, JobFilter("parked", task="add"), 9)).matched == 3
    assert stage.run(count_meant(stage.keys, JobFilter("ready", queue="default"), 9)).matched == 2
    assert stage.run(count_meant(stage.keys, JobFilter("ready", queue="none"), 9)).matched == 0
