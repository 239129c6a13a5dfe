"""Jobs whose calls are refused, and jobs that turn out dearer, in real workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Headrace
from tests.deadline import eventually
from tests.program import Worker

pytestmark = pytest.mark.system

CODE = """
import os, time
from headrace import Concurrency, Headrace, Rate, RateLimited, current_job
from pathlib import Path

app = Headrace()
account = app.limit("account", Concurrency(50), by="account")
tokens = app.limit("tokens", Rate(1, per=1000))

@app.task(limits=[account], retries=0)
def call(account: str, number: int) -> int:
    with open("notes", "a") as file:
        file.write(f"{account} {number}\\n")
    if account == "x" and not Path("ok").exists():
        raise RateLimited("account", after=10)
    return number

@app.task(limits=[account], retries=0)
def refuse(account: str) -> None:
    raise RateLimited("account", after=600)

@app.task
def where() -> int:
    return os.getpid()

@app.task(limits=[tokens])
def think(units: int) -> None:
    current_job().spend(tokens, units)
"""


@pytest.fixture
def three_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SHARDS", "3")


def test_a_refused_account_waits_while_others_go_on_and_no_retry_is_used(
    worker: Callable[..., Worker], app: Headrace, tmp_path: Path
) -> None:
    worker("--processes", "2", text=CODE)
    x = [app.by_name("tasks.call").enqueue("x", n) for n in range(20)]
    y = [app.by_name("tasks.call").enqueue("y", n) for n in range(20)]
    assert [job.result(timeout=60) for job in y] == list(range(20))
    eventually(lambda: any(job.refresh().limited for job in x))
    (tmp_path / "ok").touch()
    assert [job.result(timeout=60) for job in x] == list(range(20))
    records = [job.refresh() for job in x]
    assert {record.failures for record in records} == {0}
    refused = [record for record in records if record.limited]
    assert [one.outcome for one in refused[0].attempts][:1] == ["limited"]
    # What was claimed beside the refused one, and had not begun, came back instead of calling.
    assert len(refused) <= 4


def test_home_hears_what_jobs_of_other_shards_spend_and_are_refused(
    three_shards: None, worker: Callable[..., Worker], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(text=CODE)
    with Headrace(url) as app:
        monkeypatch.setattr(app.client, "shard_for", lambda _: 2)
        app.by_name("tasks.think").enqueue(40).result(timeout=60)
        app.by_name("tasks.refuse").enqueue("x")
        for limit, value, least in (("tokens", None, 40_000), ("account", "x", 500)):

            def opens(limit: str = limit, value: str | None = value) -> int:
                return app.limits[limit].state(value).opens or 0

            eventually(lambda opens=opens, least=least: opens() / 1e6 - time.time() > least)
