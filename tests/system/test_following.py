"""Jobs that follow others, on real workers: no kill leaves one behind, and none starts before its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.model.job import State
from headrace.tasks.job_handle import Job
from tests.servers import Server
from tests.system.fleet import PATIENCE, Fleet, NewFleet

# Of each job the ids of those that it follows.
Graph = dict[str, list[str]]


def chains(fleet: Fleet, count: int, length: int, **options: Any) -> Graph:
    """Jobs in rows: each follows the one before it and, but for the first row, that one's neighbour."""
    graph: Graph = {}
    row: list[Job[Any]] = []
    for _ in range(length):
        before, row = row, []
        for n in range(count):
            behind = [before[n], before[(n + 1) % count]] if before else []
            row.append(fleet.enqueue("process.nap", 0.01, **(options | ({"after": behind} if behind else {}))))
            graph[row[-1].id] = [job.id for job in behind]
    return graph


def until_all_ended(fleet: Fleet, graph: Graph) -> None:
    for id in graph:
        fleet.until(lambda id=id: fleet.app.job(id).state.final)


def none_before_its_time(fleet: Fleet, graph: Graph) -> None:
    ended: set[str] = set()
    for line in fleet.ledger.lines():
        if line.mark == "S":
            assert ended.issuperset(graph[line.id]), f"{line.id} began too early"
        elif line.mark == "E":
            ended.add(line.id)
    assert ended == graph.keys()


def test_kills_leave_none_behind_and_none_before_its_time(fleet: Fleet) -> None:
    graph = chains(fleet, 4, 24, max_crashes=10)
    fleet.kill_each_role(every=16)
    until_all_ended(fleet, graph)
    none_before_its_time(fleet, graph)
    assert fleet.app.jobs.count("blocked") == 0
    assert {fleet.app.jobs.get(id).state for id in graph} == {State.SUCCEEDED}
    fleet.check()


def test_a_worker_of_another_queue_is_woken_at_once(server: Server, new_fleet: NewFleet, tmp_path: Path) -> None:
    """The next renewal, which would tell as well, comes after the test."""
    fleet = new_fleet(server.url, lease=300)
    go = tmp_path / "go"
    fleet.worker(queues="one")
    fleet.worker(queues="two")
    first = fleet.enqueue("process.gate", str(go), queue="one")
    fleet.started(first)
    second = fleet.enqueue("process.add", 1, 1, after=first, queue="two")
    assert second.state is State.BLOCKED
    why = second.why()
    assert why.code == "waits_for_jobs"
    assert f"it follows job {first.id} is running" in str(why)
    go.touch()
    assert second.result(timeout=PATIENCE) == 2
