from __future__ import annotations

from headrace.protocol import operations
from headrace.protocol.operations import KEPT, LINES, learn, learned
from tests.scripts.stage import SECOND, Stage


def test_what_was_learned_is_told_in_order_until_it_is_a_month_old(stage: Stage) -> None:
    stage.run(learn(stage.keys, ["t b", "t a"]))
    stage.now += SECOND
    stage.run(learn(stage.keys, ["t c", "t b"]))
    assert stage.run(learned(stage.keys)) == ["t a", "t c", "t b"]
    stage.now += KEPT * SECOND
    assert stage.run(learned(stage.keys)) == ["t c", "t b"]
    stage.run(learn(stage.keys, []).at(stage.now + 1000))
    assert stage.client.exists(stage.keys("learned")) == 0


def test_it_ends_and_is_bounded(stage: Stage) -> None:
    for number in range(LINES // operations._AT_ONCE + 1):
        stage.run(learn(stage.keys, [f"{number} {n}" for n in range(1000)]).at(stage.now + number * SECOND))
    lines = stage.run(learned(stage.keys))
    assert len(lines) == LINES
    assert lines[-1] == f"{number} 199"
    assert 0 < stage.client.pttl(stage.keys("learned")) <= KEPT * 1000
    stage.run(learn(stage.keys, ["x" * 10_000]).at(stage.now + 10 * SECOND))
    assert len(stage.run(learned(stage.keys))[-1]) == operations._LONGEST
