"""Schedules as programs see them, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from headrace import Cron, Every, Headrace
from headrace.context import CurrentJob
from headrace.errors import (
    ArgumentError,
    NotFound,
    OptionsError,
)
from headrace.model.job import Claim
from tests.schedules.bench_of_ticks import tick_id
from tests.servers import connect

HOUR = timedelta(hours=1)


def report(team: str, size: int = 1) -> None: ...


@pytest.fixture
def app(url: str) -> Iterator[Headrace]:
    with Headrace(url) as app:
        app.task(name="report")(report)
        yield app


def test_what_is_declared_waits_for_a_worker(app: Headrace) -> None:
    task = app.tasks["report"]
    one = app.cron("0 9 * * MON-FRI", task, "sales", timezone="Europe/Berlin", overlap="skip", jitter=30)
    two = app.every(HOUR * 6, task.options(queue="low"), "sales", offset=HOUR, name="nightly")
    assert (one.name, two.name) == ("report", "nightly")
    assert list(app.schedules.declared) == ["report", "nightly"]
    # A module that is imported again declares the same.
    app.every(HOUR * 6, task.options(queue="low"), "sales", offset=HOUR, name="nightly")
    with pytest.raises(OptionsError, match="name="):
        app.every(HOUR, task, "sales")
    with pytest.raises(NotFound):
        one.next(3)


def test_what_cannot_be_is_refused_at_the_call(app: Headrace) -> None:
    task = app.tasks["report"]
    now = datetime.now(UTC)
    with pytest.raises(ArgumentError, match="team"):
        app.cron("* * * * *", task)
    with pytest.raises(OptionsError):
        app.cron("* * * * *", task, "a", timezone="Mars")
    for wrong in (
        {"overlap": "terminate"}, {"missed": "yes"}, {"most": 0}, {"most": 10**30}, {"pause_after": True}, {"jitter": 60},
        {"start": now, "until": now - HOUR}, {"start": now.replace(tzinfo=None)}, {"within": "1h"}, {"queue": "low"},
    ):  # fmt: skip
        with pytest.raises(OptionsError):
            app.cron("* * * * *", task, "a", **wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="no tick"):
        app.schedules.put("x", Cron("* * * * *"), task, "a", until=now - HOUR)
    for job in (task.options(delay=5), task.options(key="k"), task.options(request_id="r")):
        with pytest.raises(OptionsError):
            app.cron("* * * * *", job, "a")
    with pytest.raises(OptionsError, match="arguments already"):
        app.cron("* * * * *", task.job("a"), "b")
    with pytest.raises(OptionsError, match="a task"):
        app.cron("* * * * *", report, "b")  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match="name"):
        app.cron("* * * * *", task, "a", name="no spaces")
    with pytest.raises(OptionsError, match="Cron"):
        app.schedules.put("x", "* * * * *", task, "a")  # type: ignore[arg-type]
    for name in (7, b"x"):
        with pytest.raises(OptionsError, match="schedule name"):
            app.schedules[name]  # type: ignore[index]
    assert app.schedules.declared == {}


def test_a_handle_refuses_what_is_no_number_and_keeps_any_note(app: Headrace) -> None:
    acme = app.schedules.put("acme", Cron("*/5 * * * *"), app.tasks["report"].job("acme"))
    for count in ("3", 1.5, True):
        for refused in (acme.next, acme.ticks):
            with pytest.raises(OptionsError):
                refused(count)  # type: ignore[operator]
    with pytest.raises(OptionsError, match="note must be a text"):
        acme.pause(7)  # type: ignore[arg-type]
    # As a shell gives bytes that are no UTF-8.
    assert acme.pause("\udcff" + "x" * 1000)
    assert acme.read().paused == "\\udcff" + "x" * 499


def test_a_schedule_is_stored_previewed_and_deleted(app: Headrace) -> None:
    task = app.tasks["report"]
    acme = app.schedules.put("acme", Cron("*/5 * * * *"), task.job("acme", size=2), overlap="buffer_one", most=3)
    record = acme.read()
    assert (record.task, record.overlap, record.left, record.source, record.state) == (
        "report", "buffer_one", 3, "stored", "active",
    )  # fmt: skip
    times = acme.next(5)
    assert len(times) == 3
    assert {time.minute % 5 for time in times} == {0}
    assert all(second - first == timedelta(minutes=5) for first, second in pairwise(times))
    assert [one.name for one in app.schedules] == ["acme"]
    job = acme.run()
    assert job is not None
    assert list(job.refresh().args) == ["acme", 2]
    assert job.refresh().headers["headrace-schedule"] == "acme"
    with pytest.raises(OptionsError):
        acme.run(overlap="never")  # type: ignore[arg-type]
    (tick,) = acme.ticks()
    assert (tick.what, tick.text) == ("ran", job.id)
    assert acme.pause("why")
    assert not acme.pause("why not")
    assert acme.resume()
    assert acme.delete()
    for verb in (acme.pause, acme.resume, acme.run, acme.read, acme.ticks, acme.next):
        with pytest.raises(NotFound):
            verb()


def test_a_backfill_is_bounded(app: Headrace) -> None:
    hourly = app.schedules.put("hourly", Every(HOUR), app.tasks["report"], "a")
    end = datetime.now(UTC)
    with pytest.raises(OptionsError, match="more than 10"):
        hourly.backfill(end - 11 * HOUR, end, most=10)
    with pytest.raises(OptionsError, match="end"):
        hourly.backfill(end, end - HOUR)
    jobs = hourly.backfill(end - 11 * HOUR, end, overlap="buffer_all")
    assert len(jobs) == 11
    assert hourly.backfill(end - 11 * HOUR, end, overlap="buffer_all") == []
    assert len(hourly.backfill(end - 2 * HOUR, end, overlap="allow_all", again=True)) == 2


def test_a_backfill_leaves_out_what_is_before_its_start_and_after_its_end(app: Headrace) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    start, until = hour - 2 * HOUR, hour + 2 * HOUR
    hourly = app.schedules.put("hourly", Every(HOUR), app.tasks["report"], "a", start=start, until=until)
    assert len(hourly.backfill(hour - 9 * HOUR, hour + 9 * HOUR, overlap="allow_all")) == 5
    assert hourly.backfill(hour - 9 * HOUR, hour - 5 * HOUR) == []


def test_times_that_cannot_be_read_are_told_as_such(app: Headrace, url: str) -> None:
    one = app.schedules.put("one", Every(60), app.tasks["report"], "a")
    with connect(url) as client:
        client.hset(app.client.keys("schedule:one"), "about", b"\xc1")
    now = datetime.now(UTC)
    with pytest.raises(OptionsError, match="'one' cannot be read"):
        one.next(3)
    with pytest.raises(OptionsError, match="'one' cannot be read"):
        one.backfill(now - HOUR, now)


async def test_each_verb_has_its_pair(app: Headrace) -> None:
    one = await app.schedules.aput("one", Every(60), app.tasks["report"], "a")
    assert len(await one.anext(2)) == 2
    assert await one.apause()
    assert await one.aresume()
    assert (await one.aread()).name == "one"
    assert await one.arun() is not None
    assert len(await one.aticks()) == 1
    end = datetime.now(UTC)
    assert len(await one.abackfill(end - timedelta(minutes=3), end, overlap="allow_all")) == 3
    assert [schedule.name async for schedule in app.schedules] == ["one"]
    assert await one.adelete()


def test_code_and_run_time_share_no_name(app: Headrace) -> None:
    from headrace.protocol import consume, ticks

    app.every(60, app.tasks["report"], "a", name="mine")
    app.client.run(consume.register(app.client.keys, "w", 10_000_000, ["place", "x"]))
    rows = [one.row for one in app.schedules.declared.values()]
    assert app.client.run(ticks.declare(app.client.keys, "w", rows)) == ["created"]
    with pytest.raises(OptionsError, match="code declares"):
        app.schedules.put("mine", Every(60), app.tasks["report"], "a")


def test_the_tick_of_a_job_is_known_to_it_and_to_no_other() -> None:
    headers = b"\x81\xb1headrace-schedule\xa1s"
    moment = 1_700_000_040_000_000
    for ordered in (True, False):
        for nth in (0, 1, 31):
            claim = Claim(tick_id("s", moment, nth, ordered=ordered), 1, "q", 0, "t", b"", headers=headers)
            assert CurrentJob(claim, print).tick == datetime(2023, 11, 14, 22, 14, tzinfo=UTC)
    # A job that it made inherits the header.
    assert CurrentJob(Claim("0" * 21, 1, "q", 0, "t", b"", headers=headers), print).tick is None
    assert CurrentJob(Claim(tick_id("s", moment), 1, "q", 0, "t", b""), print).tick is None
