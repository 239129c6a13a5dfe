"""What a queue tells autoscalers: never nothing while there is work."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace import Headrace
from headrace.admin.queues import scale_page
from headrace.errors import OptionsError
from headrace.protocol import operations
from headrace.store.client import Client
from tests.scripts.stage import Stage


@pytest.fixture
def stage(client: Any) -> Any:
    made = Stage(client, guarded=False)
    made.now = time.time_ns() // 1000
    yield made
    made.close()


async def test_it_is_read_in_one_round_trip_by_either_pair(app: Headrace, stage: Stage) -> None:
    stage.put(60, queue="mail")
    stage.take(limit=2, queues=["mail"])
    for _ in range(100):
        app.stats.observe("queues/mail", {"run": 1.5})
    app.stats.add("queues/mail", {"enqueued": 60})
    app.stats.flush()
    queue = app.queues["mail"]
    queue.load()
    before = app.client.store.round_trips
    found = queue.load(target=30)
    assert app.client.store.round_trips - before == 1
    assert (found.ready, found.running, found.due, found.paused) == (58, 2, 0, False)
    assert found.run == pytest.approx(1.5, rel=0.02)
    assert 60 / 700 < found.arrivals <= 60 / 540
    assert found.wanted == 5
    assert found.drain == pytest.approx(58 * found.run / 2)
    assert (await queue.aload(target=30)).wanted == 5
    await app.client.aclose()


def test_a_queue_with_work_never_wants_nothing_from_its_first_job_to_the_last(app: Headrace, stage: Stage) -> None:
    def mail() -> int:
        return app.queues["mail"].load().wanted

    assert mail() == 0
    stage.put(queue="mail", delay=30_000_000)
    assert mail() == 1
    stage.client.zadd(stage.keys("scheduled"), dict.fromkeys(stage.client.zrange(stage.keys("scheduled"), 0, -1), 1))
    assert mail() == 1
    from headrace.protocol import consume

    stage.run(consume.promote(stage.keys, 10))
    assert mail() == 1
    (claim,) = stage.take(queues=["mail"])
    assert mail() == 1
    stage.end(claim, "retry", b"{}", 20_000_000)
    assert mail() == 1


def test_a_paused_queue_wants_what_runs(app: Headrace, stage: Stage) -> None:
    stage.put(9, queue="mail")
    stage.take(limit=2, queues=["mail"])
    app.client.run(operations.pause(app.client.keys, "mail"))
    found = app.queues["mail"].load()
    assert (found.paused, found.wanted) == (True, 2)


def test_the_mean_of_a_day_counts_where_nothing_ended_lately(app: Headrace, stage: Stage) -> None:
    stage.put(10, queue="mail")
    app.stats.observe("queues/mail", {"run": 90}, time.time() - 7200)
    app.stats.flush()
    found = app.queues["mail"].load(30)
    assert found.run == pytest.approx(90, rel=0.02)
    assert found.wanted == pytest.approx(30, rel=0.05)


def test_statistics_may_be_on_a_server_of_their_own(url: str) -> None:
    with Headrace(url, stats_url=url, stats_flush_interval=3600) as app:
        assert isinstance(app.stats.client, Client)
        assert app.stats.client is not app.client
        app.stats.observe("queues/mail", {"run": 3})
        app.stats.flush()
        assert app.queues["mail"].load().run == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("target", [0, -1, "x"])
def test_an_unusable_target_is_refused(app: Headrace, target: Any) -> None:
    with pytest.raises(OptionsError, match="target"):
        app.queues["mail"].load(target)


def test_the_page_answers_in_json_and_refuses_what_it_cannot_read(app: Headrace) -> None:
    page = scale_page(app.queues)
    answer = page({"queue": "mail", "target": "10"})
    assert (answer.status, answer.type) == (200, "application/json")
    assert '"wanted":0' in answer.body
    for asked in (
        {},
        {"queue": ""},
        {"queue": "a b"},
        {"queue": "mail", "target": "x"},
        {"queue": "m", "target": "nan"},
    ):
        with pytest.raises(OptionsError):
            page(asked)
