from __future__ import annotations

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Counts
from tests.scripts.stage import Stage
from tests.scripts.stats_stage import add, fresh


def test_buckets_are_read_in_their_order(stage: Stage) -> None:
    fresh(stage)
    ends = stage.now // 1_000_000 + 100
    add(
        stage,
        1,
        Counts({("2098", ends): {"a": {"n": 1, "m": 2}}, ("2099", ends): {"a": {"n": 3}, "ü:b": {"é": -4}}}, {}),
    )
    names = ["2099:a", "2097:a", "2098:a", "2099:ü:b"]
    assert stage.run(stats_calls.read(stage.keys, names)) == [{"n": 3}, {}, {"n": 1, "m": 2}, {"é": -4}]
    assert stage.run(stats_calls.read(stage.keys, names, ["m", "é"])) == [{}, {}, {"m": 2}, {"é": -4}]
    assert stage.run(stats_calls.read(stage.keys, [])) == []


def test_a_thousand_buckets(stage: Stage) -> None:
    assert stage.run(stats_calls.read(stage.keys, ["2099:a"] * 1000)) == [{}] * 1000
