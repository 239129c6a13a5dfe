from __future__ import annotations

import pytest

from headrace.protocol import stats_calls
from tests.scripts.stage import Stage


def send(stage: Stage, number: int, most: int = 3, hold: bool = False) -> str:
    return stage.run(stats_calls.send(stage.keys, "s", number, b"batch %d" % number, most, hold)).word


def waiting(stage: Stage) -> list[bytes]:
    return [batch for _, batch in stage.run(stats_calls.peek(stage.keys, 100)).batches]


def test_batches_line_up_once(stage: Stage) -> None:
    assert [send(stage, number) for number in (1, 1, 2)] == ["ok", "repeated", "ok"]
    assert waiting(stage) == [b"batch 1", b"batch 2"]
    assert stage.client.ttl(stage.keys("stat-stream")) > 6 * 86400


def test_a_full_line_drops_the_oldest_and_counts_them(stage: Stage) -> None:
    """RS15."""
    assert [send(stage, number) for number in range(1, 6)] == ["ok"] * 5
    assert waiting(stage) == [b"batch 3", b"batch 4", b"batch 5"]
    assert stage.run(stats_calls.peek(stage.keys)).lost == 2


def test_a_full_line_that_holds_takes_no_more(stage: Stage) -> None:
    """RS15."""
    assert [send(stage, n, hold=True) for n in range(1, 6)] == ["ok", "ok", "ok", "full", "full"]
    assert stage.run(stats_calls.peek(stage.keys)).lost == 0
    assert send(stage, 3, hold=True) == "repeated"
    assert waiting(stage) == [b"batch 1", b"batch 2", b"batch 3"]


@pytest.mark.parametrize("most", [1, 2])
def test_a_smaller_bound_is_kept_at_once(stage: Stage, most: int) -> None:
    for number in range(1, 4):
        send(stage, number)
    send(stage, 4, most)
    assert len(waiting(stage)) == most
