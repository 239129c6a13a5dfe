from __future__ import annotations

from headrace.protocol.operations import begin_errand, bite, read_errands, stop_errand
from tests.scripts.stage import Stage


def test_one_that_ended_stays_ended(stage: Stage) -> None:
    stage.run(begin_errand(stage.keys, "e", {"verb": "retry", "state": "failed"}))
    stage.run(bite(stage.keys, "e", 9))
    assert stage.run(stop_errand(stage.keys, "e")) == "ended"
    assert stage.run(stop_errand(stage.keys, "none")) == "missing"


def test_one_that_runs_is_stopped(stage: Stage) -> None:
    stage.run(begin_errand(stage.keys, "e", {"verb": "retry", "state": "failed"}))
    stage.now += 7
    for _ in range(2):
        assert stage.run(stop_errand(stage.keys, "e")) == "stopped"
    (one,) = stage.run(read_errands(stage.keys, "e"))
    assert (one.phase, one.ended_us) == ("stopped", stage.now)
    assert stage.members("chores") == {}
