"""What a running job says of its limits: that a call was refused, and what it spends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headrace import Headrace, Rate, RateLimited, current_job
from headrace.model.ended import RateRefused
from headrace.model.job import Claim, parse_error
from headrace.worker.messages import Done
from tests.worker.rig import Runner

app = Headrace("redis://localhost:1")
api = app.limit("api", Rate(10))
app.limit("slow", Rate(1), queue="slow")
app.limit("other", Rate(1))


@app.task(name="refuse", limits=[api])
def refuse(limit: str, after: Any) -> None:
    try:
        raise RateLimited(limit, after=timedelta(minutes=1) if after == "a minute" else after)
    except Exception:  # noqa: BLE001 - it must pass
        return


@app.task(name="spend", limits=[api])
def spend(units: Any) -> int:
    job = current_job()
    job.spend(api, units)
    job.spend("slow", units)
    job.spend(api, 0)
    return job.cost


@pytest.fixture
def run() -> Iterator[Callable[..., tuple[Done, Runner]]]:
    runner = Runner(app=app)

    def start(task: str, *args: Any) -> tuple[Done, Runner]:
        claim = Claim("id1", 1, "slow", 5, task, msgspec.msgpack.encode((args, {})), 1, cost=3)
        return runner.one(claim), runner

    yield start
    runner.close()


@pytest.mark.parametrize(
    ("limit", "after", "delay"),
    [("api", None, 0), ("slow", 2.5, 2_500_000), ("api", 0, 0), ("api", "a minute", 60_000_000)],
)
def test_a_refused_call_names_a_limit_of_the_job(run: Callable[..., Any], limit: str, after: Any, delay: int) -> None:
    done, _ = run("refuse", limit, after)
    assert done.ended == RateRefused(limit, delay)


@pytest.mark.parametrize(
    ("limit", "after", "text"),
    [
        ("other", 1, "jobs of refuse have no limit 'other': theirs are api, slow"),
        ("api", "soon", "RateLimited: after must be seconds or a timedelta, not str"),
        ("api", -1, "RateLimited: after must be at least 0"),
        ("api", 1e9, "RateLimited: after must be at most a year"),
    ],
)
def test_a_refusal_that_cannot_be_fails_the_job(run: Callable[..., Any], limit: str, after: Any, text: str) -> None:
    done, _ = run("refuse", limit, after)
    assert done.ended.kind == "failed"
    error = parse_error(done.ended.data)
    assert error is not None
    assert text in error.message


def test_what_a_job_spends_is_told_for_its_limits(run: Callable[..., Any]) -> None:
    done, runner = run("spend", 4)
    assert msgspec.msgpack.decode(done.ended.data) == 3
    assert [said.spent for said in runner.said] == [(("api", 4),), (("slow", 4),)]


@pytest.mark.parametrize("units", [1.5, True, "1", 10**10])
def test_what_a_job_spends_is_a_whole_number(run: Callable[..., Any], units: Any) -> None:
    done, _ = run("spend", units)
    assert done.ended.kind == "failed"
    error = parse_error(done.ended.data)
    assert error is not None
    assert "units must be a whole number" in error.message
