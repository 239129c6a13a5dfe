"""Stacks on demand: of every kind of runner, also while C code holds its interpreter; jobs notice nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from headrace import Headrace
from headrace.dashboard import Dashboard
from headrace.errors import NotFound
from headrace.model.job import State
from headrace.model.stacks import RunnerStacks
from tests.dashboard.asking import ask, operator, viewer
from tests.system.fleet import Fleet

pytestmark = pytest.mark.system

KINDS = ("process", "fork", "thread")
# Runners have more time to write their stacks.
PATIENT = {"HR_STACKS_WAIT": "2"}


def test_runners_of_each_kind_tell_what_they_do_and_go_on(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(kinds="process,fork,thread,async", processes=2, forks=2, threads=2, concurrency=4)
    gate = tmp_path / "open"
    jobs = {kind: fleet.enqueue(f"{kind}.gate", str(gate)) for kind in KINDS}
    for job in jobs.values():
        fleet.started(job)
    for _ in range(2):
        # Those of jobs, one runner more of the first two kinds, and an event loop.
        found = fleet.until(lambda: _all(fleet, worker.place, 6))
        assert sorted(one.kind for one in found if not one.job) == ["async", "fork", "process"]
        for kind, job in jobs.items():
            (own,) = [one for one in found if one.job == job.id]
            assert (own.kind, own.task) == (kind, f"{kind}.gate")
            # The process that runs the job, as workers show has it: not the one that leads the group and forks it.
            assert (os.getpgid(own.pid) == own.pid) == (kind != "fork")
            assert "chores.py" in own.text
            assert " in _hold" in own.text
    gate.touch()
    assert [job.result(timeout=60, allow_wait=True) for job in jobs.values()] == [1] * 3
    # They are no lines of the worker's log.
    assert " in _hold" not in worker.log()


async def _asked(url: str, name: str) -> list[RunnerStacks]:
    async with Headrace(url) as app:
        return await app.workers.astacks(name)


def test_all_who_ask_at_once_are_answered_and_a_worker_that_does_not_answer_is_named(fleet: Fleet) -> None:
    worker = fleet.worker(processes=1, environ=PATIENT)

    async def ask_all() -> list[list[RunnerStacks]]:
        return await asyncio.gather(*(_asked(fleet.url, worker.place) for _ in range(3)))

    first, *others = asyncio.run(ask_all())
    assert [one.kind for one in first] == ["process"]
    assert [[(one.pid, one.place) for one in found] for found in others] == [[(first[0].pid, 0)]] * 2
    # Code that holds the interpreter is seen, too.
    job = fleet.enqueue("process.hog", 20.0)
    fleet.started(job)
    (found,) = asyncio.run(_asked(fleet.url, worker.place))
    assert " in hog" in found.text
    assert fleet.ended(job).state == State.SUCCEEDED
    pid = worker.dispatcher()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(NotFound, match="did not answer"):
            fleet.app.workers.stacks(worker.place, timeout=0.3)
    finally:
        os.kill(pid, signal.SIGCONT)
    with pytest.raises(NotFound):
        fleet.app.workers.stacks("nothing")


def _all(fleet: Fleet, place: str, count: int) -> list[RunnerStacks]:
    """The answers of so many runners, once all of them can answer."""
    found = [one for one in fleet.app.workers.stacks(place) if one.text]
    return found if len(found) == count else []


def test_the_dashboard_shows_those_of_a_job_and_of_a_worker(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(processes=2, environ=PATIENT)
    gate = tmp_path / "open"
    job = fleet.enqueue("process.gate", str(gate))
    fleet.started(job)
    # The other runner may not answer yet.
    fleet.until(lambda: _all(fleet, worker.place, 2))

    async def look() -> None:
        async with Headrace(fleet.url) as app:
            dashboard = Dashboard(app, operator)
            path = f"/jobs/{job.id}/act/stacks"
            assert path in set((await ask(dashboard, f"/jobs/{job.id}")).links())
            shown = await ask(dashboard, path, form={})
            assert shown.text.count('<section class="card"><h2>') == 1
            assert " in _hold" in shown.text
            assert (await ask(Dashboard(app, viewer), path, form={})).status == 403
            owner = (await app.job(job.id).arefresh()).owner
            whole = await ask(dashboard, f"/workers/{owner}/act/stacks", form={})
            assert whole.text.count('<section class="card"><h2>') == 2
            assert [act.verb for act in (await app.acts.apage()).rows] == ["stacks", "stacks", "stacks"]
            gate.touch()
            await app.job(job.id).aresult(timeout=60)
            late = await ask(dashboard, path, form={})
            assert late.headers["location"] == f"/jobs/{job.id}"
            assert "is%20succeeded" in late.cookies["headrace_said"]

    asyncio.run(look())
