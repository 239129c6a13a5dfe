from __future__ import annotations

from headrace.protocol import stats_calls
from tests.scripts.stage import Stage
from tests.scripts.stats_stage import fresh


def test_an_absent_line_is_an_empty_one(stage: Stage) -> None:
    line = stage.run(stats_calls.peek(stage.keys, 10))
    assert line == stats_calls.Line(stage.now, 0, 0, 0, 0, [])


def test_a_line_tells_how_late_it_is(stage: Stage) -> None:
    """RS15: the lag."""
    for number in range(3):
        stage.run(stats_calls.send(stage.keys, "s", number, b"%d" % number, 10, hold=False))
    fresh(stage)
    line = stage.run(stats_calls.peek(stage.keys, 2).at(stage.now + 60_000_000))
    assert (line.waiting, [batch for _, batch in line.batches]) == (3, [b"0", b"1"])
    assert 59_000_000 < line.now - line.oldest < 75_000_000
