from __future__ import annotations

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Applied, Counts
from tests.scripts.stage import Stage
from tests.scripts.stats_stage import fresh, held


def line(stage: Stage, count: int) -> list[str]:
    """So many batches in line; their ids."""
    for number in range(count):
        stage.run(stats_calls.send(stage.keys, "s", number, b"x", 100, hold=False))
    fresh(stage)
    return [id for id, _ in stage.run(stats_calls.peek(stage.keys, 100)).batches]


def consume(stage: Stage, first: str, last: str) -> Applied:
    counted = Counts(
        {("2099", stage.now // 1_000_000 + 100): {"a": {"n": 1}}}, {"": {"a": stage.now // 1_000_000 + 100}}
    )
    return stage.run(stats_calls.consume(stage.keys, first, last, counted))


def test_batches_leave_and_are_counted_as_one(stage: Stage) -> None:
    ids = line(stage, 4)
    assert consume(stage, ids[0], ids[2]).word == "ok"
    left = stage.run(stats_calls.peek(stage.keys, 10))
    assert ([id for id, _ in left.batches], left.taken) == ([ids[3]], stage.now)
    assert held(stage, date="2099") == {"n": 1}


def test_what_was_taken_is_not_taken_again(stage: Stage) -> None:
    """A lost reply and a second consumer look the same, and neither counts twice."""
    ids = line(stage, 4)
    consume(stage, ids[0], ids[1])
    assert consume(stage, ids[0], ids[1]).word == "gone"
    assert consume(stage, ids[0], ids[3]).word == "gone"
    assert consume(stage, ids[2], ids[3]).word == "ok"
    assert held(stage, date="2099") == {"n": 2}


def test_an_empty_line_remembers_its_last_id(stage: Stage) -> None:
    """A batch of the same millisecond must not get the id of one that was taken, and may still be asked for."""
    ids = line(stage, 2)
    consume(stage, ids[0], ids[1])
    assert stage.run(stats_calls.peek(stage.keys)).waiting == 0
    assert stage.client.ttl(stage.keys("stat-stream")) > 6 * 86400
    assert stage.client.xinfo_stream(stage.keys("stat-stream"))["last-generated-id"].decode() == ids[1]
    assert consume(stage, ids[0], ids[1]).word == "gone"
