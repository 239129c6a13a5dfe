from __future__ import annotations

from headrace.protocol import stats_calls
from headrace.protocol.stats_calls import Applied, Counts
from tests.scripts.stage import SECOND, Stage
from tests.scripts.stats_stage import fresh, held


def event(stage: Stage, id: str, age: int = 0, keep: int = 100) -> Applied:
    counted = Counts({("2099", stage.now // SECOND + 100): {"a": {"n": 1}}}, {})
    return stage.run(stats_calls.event(stage.keys, id, stage.now - age * SECOND, keep, b"body " + id.encode(), counted))


def test_an_event_is_stored_and_counted_once(stage: Stage) -> None:
    """R10."""
    fresh(stage)
    assert [event(stage, id).word for id in ("e1", "e1", "e2")] == ["ok", "known", "ok"]
    assert held(stage, date="2099") == {"n": 2}
    assert stage.members("stat-events") == {"e1": stage.now, "e2": stage.now}
    assert stage.client.ttl(stage.keys("stat-event:e1")) in range(90, 101)
    assert stage.client.ttl(stage.keys("stat-events")) in range(90, 101)


def test_the_index_of_events_forgets_what_is_over(stage: Stage) -> None:
    fresh(stage)
    event(stage, "old", age=40)
    stage.now += 70 * SECOND
    event(stage, "new")
    assert list(stage.members("stat-events")) == ["new"]


def test_an_event_of_long_ago_is_counted_once_and_not_listed(stage: Stage) -> None:
    fresh(stage)
    assert [event(stage, "late", age=age).word for age in (200, 200, 90, 0)] == ["ok", "known", "known", "known"]
    assert held(stage, date="2099") == {"n": 1}
    assert not stage.client.exists(stage.keys("stat-events"))
    assert stage.client.ttl(stage.keys("stat-event:late")) in range(90, 101)


def test_an_event_is_known_as_long_after_it_was_told_as_after_it_happened(stage: Stage) -> None:
    fresh(stage)
    assert (event(stage, "past", age=60).word, event(stage, "future", age=-50).word) == ("ok", "ok")
    assert stage.client.ttl(stage.keys("stat-event:past")) in range(90, 101)
    assert stage.client.ttl(stage.keys("stat-event:future")) in range(140, 151)
    assert list(stage.members("stat-events")) == ["past", "future"]
