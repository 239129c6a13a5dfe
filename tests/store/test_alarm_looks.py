"""Looks at alarms on a real server: figures, hysteresis over two looks, and what a look costs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace import Headrace
from headrace.admin.alarms import look_at_alarms
from headrace.clock import monotonic
from headrace.protocol import operations
from headrace.stats.resolutions import TASKS
from tests.deadline import eventually
from tests.servers import Server


def add() -> None: ...


@pytest.fixture
def app(url: str) -> Headrace:
    app = Headrace(url)
    app.task(name="add")(add)
    return app


def look(app: Headrace) -> None:
    look_at_alarms(app.client, app.stats, app.alarms.declared.values())


def told(app: Headrace) -> list[tuple[str, str]]:
    events = app.events.page(["alarm_raised", "alarm_cleared"], order="asc").rows
    return [(event.kind, event.facts["alarm"]) for event in events]


def test_a_look_costs_two_round_trips(app: Headrace, loaded: None) -> None:
    for n in range(50):
        app.alarm(f"a{n}", queue=f"q{n}", ready=0, for_=0)
    app.alarm("failures", task="add", failed=0.5)
    look(app)
    look(app)
    before = app.store.round_trips
    for _ in range(10):
        look(app)
    assert app.store.round_trips - before == 20
    app.by_name("add", queue="q7").enqueue()
    before = app.store.round_trips
    for _ in range(10):
        look(app)
    assert app.store.round_trips - before == 20
    assert told(app) == [("alarm_raised", "a7")]


def test_each_figure_raises_an_alarm(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    app.alarm("delay", queue="mail", delay=0, for_=0)
    app.alarm("any delay", delay=0, for_=0)
    app.alarm("ready", queue="mail", ready=1, for_=0)
    app.alarm("served", queue="mail", workers=1, for_=0)
    app.alarm("workers", workers=1, for_=0)
    app.alarm("failed", task="add", failed=0.5, for_=0)
    app.alarm("all failed", failed=0.6, for_=0)
    app.alarm("others", queue="other", ready=0, for_=0)
    for _ in range(2):
        app.by_name("add", queue="mail").enqueue()
    app.stats.add(f"{TASKS}/add", {"started": 20, "failed": 9, "crashed": 2})
    app.stats.flush()
    look(app)
    look(app)
    events = {event.facts["alarm"]: event.facts for event in app.events.page(["alarm_raised"])}
    assert set(events) == {"delay", "any delay", "ready", "served", "workers", "failed"}
    assert (events["any delay"]["queue"], events["ready"]["value"]) == ("mail", "2")
    assert (events["failed"]["task"], events["failed"]["value"]) == ("add", "0.55")
    assert events["served"]["rule"] == "workers of mail below 1 for 0 s"
    monkeypatch.setattr("headrace.model.activity.CLEAR_US", 0)
    app.queues["mail"].pause()
    look(app)
    assert {name for kind, name in told(app) if kind == "alarm_cleared"} == {"delay", "any delay", "ready"}
    found = app.alarms.page()
    assert (found.count, found.next) == (8, None)
    assert [one.name for one in found] == ["failed", "served", "workers", "all failed", "any delay", "delay", "others",
                                           "ready"]  # fmt: skip
    assert time.time() - 60 < found[0].state.raised_us / 1e6 < time.time() + 60
    app.close()


def test_a_few_failures_raise_nothing(app: Headrace) -> None:
    app.alarm("failed", task="add", failed=0.0, for_=0)
    app.stats.add(f"{TASKS}/add", {"started": 9, "failed": 9})
    app.stats.flush()
    look(app)
    look(app)
    assert told(app) == []
    app.close()


def test_two_looks_tell_a_change_once(app: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    app.alarm("ready", queue="mail", ready=0, for_=0)
    app.by_name("add", queue="mail").enqueue()
    look(app)
    look(app)
    assert told(app) == [("alarm_raised", "ready")]
    app.queues["mail"].purge()
    monkeypatch.setattr("headrace.model.activity.CLEAR_US", 0)
    look(app)
    look(app)
    assert told(app) == [("alarm_raised", "ready"), ("alarm_cleared", "ready")]


def test_jobs_of_a_shard_that_is_away_clear_no_alarm(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the other shards were taken for those of all: people were told that the jobs had started."""
    servers = [new_server(append_only=True) for _ in range(3)]
    monkeypatch.setattr("headrace.model.activity.CLEAR_US", 0)
    with Headrace(" ".join(server.url for server in servers), timeout=3) as app:
        app.task(name="add")(add)
        app.alarm("ready", ready=1, for_=0)
        app.alarm("delay", delay=0, for_=0)
        app.alarm("workers", workers=1, for_=0)
        for n in range(20):
            app.by_name("add").options(key=str(n)).enqueue()
        look(app)
        look(app)
        raised = [("alarm_raised", name) for name in ("ready", "delay", "workers")]
        assert told(app) == raised
        servers[1].kill()
        # What home has starts.
        app.store.run(operations.purge(app.client.keys, "default", 1000))
        look(app)
        assert told(app) == raised
        servers[1].start()
        eventually(lambda: not app.client.left_out, 30)
        app.queues["default"].purge()
        look(app)
        assert told(app)[3:] == [("alarm_cleared", name) for name in ("ready", "delay")]


def test_statistics_that_are_slow_to_answer_hide_no_shard_that_is_away(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard was one to ask again by then, so that the figures counted as those of all."""
    servers, counts = [new_server() for _ in range(3)], new_server()
    monkeypatch.setattr("headrace.model.activity.CLEAR_US", 0)
    url = " ".join(server.url for server in servers)
    with Headrace(url, stats_url=counts.url, timeout=20) as app:
        app.task(name="add")(add)
        app.alarm("ready", ready=1, for_=0)
        app.alarm("failures", failed=0.5)
        for n in range(20):
            app.by_name("add").options(key=str(n)).enqueue()
        look(app)
        assert told(app) == [("alarm_raised", "ready")]
        servers[1].kill()
        for shard in (0, 2):
            app.client.run(operations.purge(app.client.shards[shard], "default", 1000))
        app.client.away[1] = monotonic() + 1
        counts.client().client_pause(2000)
        look(app)
        assert told(app) == [("alarm_raised", "ready")]
