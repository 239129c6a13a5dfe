"""Workflows on real workers: every kind of runner, every kind of graph, and a kill at each step of a node's end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Flow
from headrace.model.job import State
from headrace.model.workflow import NodeRecord, WorkflowState
from headrace.workflows.run import WorkflowRun
from tests.system.chaos import BUDGET, Chaos
from tests.system.fleet import KINDS, Fleet, NewFleet, NewServer
from tests.system.tap import Tap


def create(fleet: Fleet, function: Callable[..., object], *args: Any, name: str = "", **options: Any) -> WorkflowRun:
    """Create a workflow and start it; every test defines its own."""
    known = fleet.app.workflow_definitions
    name = name or f"test.{function.__name__.strip('_')}"
    made: Any = known.get(name) or fleet.app.workflow(name=name)(function)
    run: WorkflowRun = made.options(**options).create(*args) if options else made.create(*args)
    run.start()
    return run


def nodes(run: WorkflowRun) -> dict[str, NodeRecord]:
    """All nodes by name."""
    found: dict[str, NodeRecord] = {}
    cursor: str | None = None
    while True:
        page = run.nodes(limit=500, after=cursor)
        found |= {node.facts.name: node for node in page}
        if page.next is None:
            return found
        cursor = page.next


def states(run: WorkflowRun) -> dict[str, str]:
    return {name: node.job.state.value for name, node in nodes(run).items()}


def test_every_kind_of_runner_takes_fills_fans_out_and_grows(fleet: Fleet) -> None:
    def all_of_it(flow: Flow, kind: str) -> None:
        four = flow.run(f"{kind}.numbers", 4, name="four")
        more = flow.map(f"{kind}.add", four, 10, name="more")
        none = flow.map(f"{kind}.add", flow.run(f"{kind}.numbers", 0), name="none")
        ten = flow.run(f"{kind}.total", more, name="ten")
        flow.run(f"{kind}.add", 1, 1, when=flow.run(f"{kind}.total", none, name="zero"), name="never")
        grown = flow.run(f"{kind}.graft", 3, kind, name="grown", after=ten)
        flow.run(f"{kind}.payloads", name="seen", after=[ten, none, grown])

    def nested(flow: Flow) -> None:
        count = flow.run("process.add", 2, 3)
        flow.run("process.add", flow.run("workflow:process.inner", count), 100, name="sum")

    fleet.worker(kinds=",".join(KINDS))
    runs = [create(fleet, all_of_it, kind) for kind in KINDS]
    assert (inner := create(fleet, nested)).wait(60) is WorkflowState.SUCCEEDED, states(inner)
    assert inner.outputs() == {"sum": 115}
    for run in runs:
        assert run.wait(60) is WorkflowState.SUCCEEDED, states(run)
        assert run.outputs()["seen"] == [
            ["ten", "succeeded", 46], ["none", "succeeded", []], ["grown", "succeeded", "grown"],
        ]  # fmt: skip
        found = states(run)
        assert found["never"] == "skipped"
        assert [found[f"more[{n}]"] for n in range(4)] == ["succeeded"] * 4
        assert run.node("grown/inner").result() == 6
        # What was added came before what followed: its end is earlier than the follower's start.
        all_nodes = nodes(run)
        assert all_nodes["grown/inner"].job.finished_us <= all_nodes["seen"].job.started_us


def test_a_job_enqueued_by_name_has_the_crash_budget_of_its_task(fleet: Fleet) -> None:
    fleet.worker()
    job = fleet.enqueue("process.frail", "kill")
    assert fleet.ended(job).state is State.QUARANTINED
    assert job.refresh().crashes == 1
    own = fleet.enqueue("process.frail", "kill", 1, max_crashes=2)
    assert (fleet.ended(own).state, own.refresh().crashes) == (State.SUCCEEDED, 1)


def _graph(flow: Flow) -> None:
    first = flow.run("process.numbers", 3, name="first")
    grown = flow.run("process.graft", 2, "process", name="grown", after=first)
    flow.run("process.total", flow.map("process.add", first, 1, name="items"), after=grown, name="end")


@pytest.mark.parametrize("script", ["outputs", "reserve", "graft", "settle"])
@pytest.mark.parametrize(("role", "side"), [("dispatcher", "reply"), ("worker", "request")])
def test_a_kill_at_each_step_of_a_nodes_end_strands_no_child(
    fleet: Fleet, tap: Tap, role: str, script: str, side: str
) -> None:
    fleet.settings["lease"] = 2.0
    trap = tap.trap(script, side)
    worker = fleet.worker(url=tap.url, ready=False)
    run = create(fleet, _graph)
    assert trap.sprung.wait(60), repr(worker)
    fleet.until(worker.runners)
    worker.kill(role)
    # What the dead had in flight is lost with them, or has reached the server all the same.
    trap.release() if side == "reply" else trap.drop()
    if role == "worker":
        fleet.worker(ready=False)
    assert run.wait(60) is WorkflowState.SUCCEEDED, (states(run), repr(fleet))
    assert run.outputs() == {"end": 6}
    _explained(fleet, run)


def _explained(fleet: Fleet, run: WorkflowRun) -> None:
    """Every start of every node is explained by its record, and the counters agree with the nodes."""
    starts = fleet.ledger.counts("S")
    found = nodes(run)
    for node in found.values():
        record = node.job
        if node.role or node.facts.map:
            continue
        assert record.state is State.SUCCEEDED, record
        assert 1 <= starts[record.id] <= 1 + record.crashes + record.interruptions, record
    flow = run.refresh()
    assert flow.active == 0
    assert (
        flow.done == flow.total == sum(not node.role and node.job.state is not State.BLOCKED for node in found.values())
    )


def _soak(new_server: NewServer, new_fleet: NewFleet, flows: int, width: int, seconds: float, seed: int) -> None:
    """Workflows and plain jobs while everything is killed: each fan-in happens once, each node starts as explained."""

    def wide(flow: Flow, number: int) -> None:
        first = flow.run("process.numbers", width, name="first", options={"max_crashes": BUDGET})
        items = flow.map("process.add", first, number, name="items", options={"max_crashes": BUDGET})
        middle = [flow.run("process.nap", 0.001, after=first, options={"max_crashes": BUDGET}) for _ in range(width)]
        flow.run("process.total", items, after=middle, name="end", options={"max_crashes": BUDGET})

    server = new_server(append_only=True)
    fleet = new_fleet(server.url, lease=2.0, result_ttl=3600)
    dice, chaos = random.Random(seed), Chaos(fleet, server, seed)
    runs = [create(fleet, wide, number, name="soak") for number in range(flows)]
    # Long enough for the kills, however quick the machine is.
    naps = [(round(dice.random() * 0.08, 6),) for _ in range(400)]
    jobs = fleet.enqueue_many("process.nap", naps, max_crashes=BUDGET)
    chaos.run(flows * (2 * width + 3) + len(jobs), seconds, 1, 0.4)
    ends = [run.wait(60) for run in runs]
    assert ends == [WorkflowState.SUCCEEDED] * flows, [
        (run.id, states(run)) for run, end in zip(runs, ends, strict=True) if end != "succeeded"
    ][:1]
    fleet.drained(60)
    for number, run in enumerate(runs):
        assert run.outputs() == {"end": sum(range(width)) + width * number}
        _explained(fleet, run)
    assert chaos.deaths.total >= 5
    for worker in chaos.workers:
        worker.terminate()
    for worker in fleet.workers:
        worker.wait(60)
    fleet.check()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_workflows_survive_every_kind_of_kill(new_server: NewServer, new_fleet: NewFleet) -> None:
    _soak(new_server, new_fleet, flows=12, width=30, seconds=12, seed=7)
