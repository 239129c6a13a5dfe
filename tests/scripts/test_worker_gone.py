"""The included script ``worker_gone``: a death is an event and news; what only the worker could run has ended."""

from __future__ import annotations

import pytest

from headrace.model.form import Form
from headrace.model.ids import make_id
from headrace.protocol import consume, produce
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


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501])
@pytest.mark.parametrize("how", ["retire", "reclaim"])
def test_what_was_not_begun_ends_as_cancelled(stage: Stage, count: int, how: str) -> None:
    stage.register("w1")
    ids = [make_id(stage.now // 1000, 100 + n) for n in range(count)]
    if ids:
        stage.run(produce.broadcast(stage.keys, Form("add"), b"\x90", [("w1", id) for id in ids]))
    calls = {
        "retire": consume.retire(stage.keys, "w1", KEEP).at(stage.now),
        "reclaim": consume.reclaim(stage.keys, "w1", True, 500, KEEP).at(stage.now),
    }
    first = stage.run(calls[how])
    if count > 500:
        assert first in (False, ("some", 0))
        first = stage.run(calls[how])
    assert first in (True, ("done", 0))
    assert {stage.state(id) for id in ids} <= {"cancelled"}
    assert set(stage.members("cancelled")) == set(ids)
    assert not stage.client.exists(stage.keys("owner:w1"), stage.keys("ready:@w1"))
