from __future__ import annotations

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Counts, Span, Took
from tests.scripts.stage import Stage
from tests.scripts.stats_stage import fresh, held


def take(stage: Stage, *spans: Span, n: int = 1, lost: int | None = None, what: Counts | None = None) -> Took:
    fresh(stage)
    what = what or Counts({("2099", stage.now // 1_000_000 + 100): {"a": {"n": n}}}, {})
    call = stats_calls.take(stage.keys, spans, what, upto=stage.now - 5, lost=lost, window=600).at(stage.now)
    return stage.run(call)


def test_batches_of_several_senders_are_added_as_one(stage: Stage) -> None:
    assert take(stage, Span("a.0", 1, 3), Span("b.0", 7, 7), n=5) == Took({})
    assert held(stage, date="2099") == {"n": 5}
    line = stage.run(stats_calls.peek(stage.keys))
    assert (line.taken, line.upto, line.lost) == (stage.now, stage.now - 5, 0)
    assert 0 < stage.client.ttl(stage.keys("stat-flow")) <= stats_calls.UNUSED


def test_what_reaches_into_what_was_added_adds_nothing(stage: Stage) -> None:
    """The last number of each such sender is told, so that only what is new can be sent again."""
    take(stage, Span("a.0", 1, 3), Span("b.0", 1, 1), n=5)
    assert take(stage, Span("a.0", 3, 9), Span("b.0", 2, 2)) == Took({"a.0": 3})
    assert take(stage, Span("a.0", 1, 2), Span("b.0", 1, 9)) == Took({"a.0": 3, "b.0": 1})
    assert held(stage, date="2099") == {"n": 5}
    assert take(stage, Span("a.0", 4, 9), Span("b.0", 2, 2)) == Took({})
    assert held(stage, date="2099") == {"n": 6}


def test_numbers_are_compared_as_numbers(stage: Stage) -> None:
    take(stage, Span("a.0", 1, 9))
    assert take(stage, Span("a.0", 10, 10)) == Took({})
    assert take(stage, Span("a.0", 9, 9)) == Took({"a.0": 10})


def test_missing_numbers_are_lost_where_a_broker_drops(stage: Stage) -> None:
    def lost() -> int:
        return stage.run(stats_calls.peek(stage.keys)).lost

    take(stage, Span("a.0", 1, 1))
    take(stage, Span("a.0", 5, 5))
    assert lost() == 0
    take(stage, Span("a.0", 8, 9), Span("b.0", 3, 3), Span("b.1", 3, 3), lost=4)
    assert lost() == 2 + 2 + 4
    # What came twice is no loss.
    take(stage, Span("a.0", 9, 12), lost=2)
    assert lost() == 8


def test_a_counter_that_takes_nothing_is_told(stage: Stage) -> None:
    stage.client.set(stage.keys("stat:2099:a"), "alien")
    try:
        assert take(stage, Span("a.0", 1, 1)).refused == ("2099:a n",)
    finally:
        stage.client.delete(stage.keys("stat:2099:a"))
