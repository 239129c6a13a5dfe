"""The included script ``worker_lost``: a death is an event, and news for an hour however much fails beside it."""

from __future__ import annotations

import pytest

from headrace.protocol import consume
from headrace.protocol.operations import told
from tests.scripts.stage import KEEP, Stage


def lose(stage: Stage, owner: str, how: str) -> str:
    """A worker that has work, and one that has none, is lost; why."""
    stage.register(owner)
    if how == "retire":
        assert stage.run(consume.retire(stage.keys, owner, why="its supervisor died"))
        return "its supervisor died"
    assert stage.run(consume.reclaim(stage.keys, owner, True, 500, KEEP)) == ("done", 0)
    return "its process died"


@pytest.mark.parametrize("how", ["retire", "reclaim"])
def test_a_death_is_an_event_and_news_for_an_hour(stage: Stage, how: str) -> None:
    why = lose(stage, "w1", how)
    ((_, event),) = stage.run(told(stage.keys, "events", 9, kinds=["worker_lost"])).rows
    ((_, news),) = stage.run(told(stage.keys, "deaths", 9)).rows
    assert news == event
    assert (news["kind"], news["worker"], news["why"]) == ("worker_lost", "w1", why)
    assert 3500 < stage.client.ttl(stage.keys("deaths")) <= 3600


def test_a_worker_that_leaves_in_order_is_no_news(stage: Stage) -> None:
    stage.register("w1")
    assert stage.run(consume.retire(stage.keys, "w1"))
    assert not stage.client.exists(stage.keys("deaths"))


def test_the_newest_twenty_stay(stage: Stage) -> None:
    for n in range(25):
        lose(stage, f"w{n}", "retire")
    rows = stage.run(told(stage.keys, "deaths", 100)).rows
    assert [fields["worker"] for _, fields in rows] == [f"w{n}" for n in range(24, 4, -1)]
