"""Code that was written for Celery: ``shared_task`` and its calls, as ours."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import Headrace, Retry
from headrace.contrib import celery
from headrace.contrib.celery import shared_task
from headrace.errors import OptionsError
from headrace.registry import Tasks


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    own = Tasks()
    monkeypatch.setattr(celery, "tasks", own)
    return own


def test_a_shared_task_runs_and_is_enqueued(url: str, tasks: Tasks) -> None:
    @shared_task(name="shop.add")
    def add(x: int, y: int = 1) -> int:
        return x + y

    @shared_task(name="mail", queue="mails", time_limit=60, soft_time_limit=50, acks_late=True, ignore_result=True)
    def send(to: str) -> None: ...

    with Headrace(url) as app:
        app.include(tasks)
        assert add(1, 2) == 3
        with pytest.warns(DeprecationWarning, match=r"shop\.add\.delay\(\.\.\.\) is Celery's way: write \.enqueue"):
            job = add.delay(1, y=2)
        assert app.jobs.get(job.id).refresh().arguments == {"x": 1, "y": 2}
        at = datetime(2031, 1, 1, tzinfo=UTC)
        with pytest.warns(DeprecationWarning, match="apply_async"):
            later = send.apply_async(("a@b",), eta=at.replace(tzinfo=None), priority=5, task_id="one", expires=at)
        with pytest.warns(DeprecationWarning, match="apply_async"):
            again = send.apply_async(kwargs={"to": "a@b"}, countdown=60, task_id="one")
        record = app.jobs.get(later.id).refresh()
        assert (record.task, record.queue, record.priority, record.due) == ("mail", "mails", 5, at)
        assert again.state == "scheduled"
        assert app.jobs.count("scheduled") == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            add.enqueue(5)


def test_its_options_become_ours() -> None:
    @shared_task(name="a", autoretry_for=(OSError,), max_retries=5, default_retry_delay=7)
    def plain() -> None: ...

    @shared_task(
        name="b", autoretry_for=(OSError,), retry_backoff=2, retry_backoff_max=60, retry_kwargs={"max_retries": 9}
    )
    def backing() -> None: ...

    @shared_task(name="c", max_retries=5)
    def unasked() -> None: ...

    assert plain.defaults.retries == Retry(max=5, delay=7, factor=1, on=(OSError,))
    assert backing.defaults.retries == Retry(max=9, delay=2, factor=2, max_delay=60, on=(OSError,))
    assert unasked.defaults.retries.max == 0
    assert shared_task(ignore_result=True, name="quiet")(unasked.function).defaults.result_ttl == 0
    assert shared_task(expires=30, name="short")(unasked.function).task.name == "short"


@pytest.mark.parametrize(
    ("options", "instead"),
    [({"bind": True}, "current_job"), ({"rate_limit": "10/m"}, "app.limit"), ({"base": object}, "base")],
)
def test_an_option_without_a_counterpart_says_what_to_write(options: dict[str, Any], instead: str) -> None:
    with pytest.raises(OptionsError, match=instead):
        shared_task(**options)(lambda: None)


def test_there_is_no_canvas() -> None:
    @shared_task(name="shop.add")
    def add(x: int) -> int:
        return x

    for call in (lambda: add.s(1), lambda: add.si(1), lambda: celery.chain(add), lambda: celery.group([add]),
                 lambda: celery.chord([add])):  # fmt: skip
        with pytest.raises(OptionsError, match="write a workflow"):
            call()
    with pytest.warns(DeprecationWarning, match="apply_async"), pytest.raises(OptionsError, match="workflow"):
        add.apply_async((1,), link=add)


def test_times_that_have_no_zone_are_utc(url: str, tasks: Tasks) -> None:
    @shared_task(name="shop.add")
    def add(x: int) -> int:
        return x

    with Headrace(url) as app:
        app.include(tasks)
        ends = datetime.now(UTC) + timedelta(hours=1)
        with pytest.warns(DeprecationWarning, match="apply_async"):
            job = add.apply_async((1,), expires=ends.replace(tzinfo=None))
        record = app.jobs.get(job.id).refresh()
        assert record.expires is not None
        assert abs(record.expires - ends) < timedelta(seconds=30)
