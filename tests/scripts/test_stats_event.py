from __future__ import annotations

from headrace.protocol import stats
from headrace.protocol.stats import Applied, Counts
from tests.scripts.stage import SECOND, Stage
from tests.scripts.stats_stage import fresh, held


def event(stage: Stage, id: str, age: int = 0, keep: int = 100) -> Applied:
    counted = Counts({("2099", stage.now // SECOND + 100): {"a": {"n": 1}}}, {})
    return stage.run(
        stats.event(stage.keys, id, stage.now - age * SECOND, keep, b"body " + id.encode(), counted, now=stage.now)
    )


def test_an_event_is_stored_and_counted_once(stage: Stage) -> None:
    """R10."""
    fresh(stage)
    assert [event(stage, id).word for id in ("e1", "e1", "e2")] == ["ok", "known", "ok"]
    assert held(stage, date="2099") == {"n": 2}
    assert stage.members("stat-events") == {"e1": stage.now, "e2": stage.now}
    assert stage.client.ttl(stage.keys.stat_event("e1")) in range(90, 101)
    assert stage.client.ttl(stage.keys("stat-events")) in range(90, 101)


def test_the_index_of_events_forgets_what_is_over(stage: Stage) -> None:
    fresh(stage)
    event(stage, "old", age=40)
    stage.now += 70 * SECOND
    event(stage, "new")
    assert list(stage.members("stat-events")) == ["new"]


def test_an_event_that_is_over_is_only_counted(stage: Stage) -> None:
    fresh(stage)
    assert event(stage, "late", age=200).word == "ok"
    assert not stage.client.exists(stage.keys.stat_event("late"))
    assert not stage.client.exists(stage.keys("stat-events"))
    assert held(stage, date="2099") == {"n": 1}
