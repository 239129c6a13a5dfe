"""Schedules with real workers: each tick once, whichever of them die."""

from __future__ import annotations

import time

from headrace import Every
from headrace.model.ids import run_id_of, tick_of
from headrace.protocol.ticks import TickRecord
from tests.deadline import eventually
from tests.servers import Server
from tests.system.fleet import Fleet, NewFleet

SECOND = 1_000_000


def ticked(fleet: Fleet, name: str, least: int) -> list[TickRecord]:
    """The history, oldest first, when it has so many ticks."""

    def rows() -> list[TickRecord]:
        found = fleet.app.schedules[name].ticks(100)
        return found[::-1] if sum(one.count for one in found) >= least else []

    return eventually(rows, 60, what=f"{least} ticks of {name}")


def test_an_idle_worker_wakes_for_each_tick(fleet: Fleet) -> None:
    """The next renewal, which would tell as well, comes after the test; a tick that is late on a busy machine runs too."""
    fleet.settings["lease"] = 600.0
    fleet.worker(kinds="process", processes=1)
    schedule = fleet.app.schedules.put(
        "pulse", Every(1), fleet.app.by_name("process.add"), overlap="allow_all", missed="all"
    )
    rows = ticked(fleet, "pulse", 3)
    assert [one.what for one in rows] == ["ran"] * len(rows)
    assert [one.tick - rows[0].tick for one in rows] == [n * SECOND for n in range(len(rows))]
    assert [tick_of(one.text, "pulse") for one in rows] == [one.tick for one in rows]
    assert len(schedule.next(5)) == 5
    by_hand = schedule.run(overlap="allow_all")
    assert by_hand is not None
    by_hand.result(timeout=60)
    assert schedule.pause("enough")
    assert schedule.read().paused == "enough"
    assert schedule.delete()


def test_a_schedule_of_code_is_declared_by_its_worker(new_fleet: NewFleet, server: Server) -> None:
    fleet = new_fleet(server.url)
    fleet.worker(kinds="process", environ={"HR_EVERY": "1"})
    rows = ticked(fleet, "code", 2)
    assert {one.what for one in rows} == {"ran"}
    assert fleet.app.schedules["code"].read().source == "code"
    again = fleet.worker(kinds="process", environ={"HR_EVERY": "1"})
    version = fleet.app.schedules["code"].read().changed
    ticked(fleet, "code", len(rows) + 2)
    assert fleet.app.schedules["code"].read().changed == version
    assert again.alive


def test_a_schedule_of_code_may_outlive_its_last_tick(new_fleet: NewFleet, server: Server) -> None:
    """Else no program of this code would start once ``until`` has passed."""
    fleet = new_fleet(server.url)
    worker = fleet.worker(kinds="process", environ={"HR_EVERY": "1", "HR_UNTIL": f"{time.time() - 3600:.0f}"})
    code = fleet.app.schedules["code"]
    fleet.until(lambda: any(one.name == "code" and one.read().ended for one in fleet.app.schedules))
    assert (code.ticks(), code.next(3), worker.alive) == ([], [], True)


def test_a_worker_of_other_code_fires_and_the_newest_tick_of_an_outage_runs(fleet: Fleet) -> None:
    """No worker is the one that has to be there: neither a leader nor one that knows the task."""
    other = fleet.worker(kinds="thread")
    fleet.app.schedules.put("pulse", Every(1), fleet.app.by_name("process.add"), overlap="allow_all")
    ticked(fleet, "pulse", 2)
    other.terminate()
    other.wait()
    before = fleet.app.schedules["pulse"].ticks(100)[::-1]
    assert not fleet.ledger.ends(), "it does not know the task"
    back = before[-1].tick // SECOND + 4
    fleet.until(lambda: time.time() > back)
    fleet.worker(kinds="process", processes=1)
    after = ticked(fleet, "pulse", sum(one.count for one in before) + 5)[len(before) :]
    assert [one.what for one in after[:2]] == ["missed", "ran"]
    assert after[0].count >= 3
    ran = {one.text for one in before + after if one.what == "ran"}
    fleet.until(lambda: ran <= {line.id for line in fleet.ledger.ends()})


def test_a_workflow_of_a_tick_keeps_its_turn(fleet: Fleet) -> None:
    fleet.worker(kinds="process", processes=1, queues="builders")
    flow = fleet.app.by_name("workflow:process.inner", queue="builders")
    schedule = fleet.app.schedules.put("flow", Every(3600), flow.job(3))
    job = schedule.run()
    assert job is not None
    # It has made the workflow, whose nodes no worker serves yet.
    fleet.until(lambda: fleet.app.jobs.count("ready"))
    assert schedule.run() is None
    fleet.worker(kinds="process", processes=1)
    job.result(timeout=60)
    run = fleet.app.workflows.get(run_id_of(job.id))
    assert run.state == "succeeded"
    assert job.logs() == [f"workflow {run.id}"]
    # It has ended, and the turn is free.
    assert schedule.run() is not None
