"""Workflows on real workers: every kind of runner, every kind of graph, and a kill at each step of a node's end."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Flow
from headrace.model.ids import node_id
from headrace.model.job import State
from headrace.model.workflow import NodeRecord, Policy, WorkflowState
from headrace.workflows.run import WorkflowRun
from tests.servers import Server, connect
from tests.system.chaos import BUDGET, Chaos
from tests.system.fleet import LEASE, Fleet, send
from tests.system.tap import Tap

KINDS = ("process", "fork", "thread", "async")
NewFleet = Callable[..., Fleet]
NewServer = Callable[..., Server]


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_runner_takes_fills_fans_out_and_grows(fleet: Fleet, kind: str) -> None:
    def all_of_it(flow: Flow) -> None:
        four = flow.run(f"{kind}.numbers", 4, name="four")
        more = flow.map(f"{kind}.add", four, 10, name="more")
        none = flow.map(f"{kind}.add", flow.run(f"{kind}.numbers", 0), name="none")
        ten = flow.run(f"{kind}.total", more, name="ten")
        flow.run(f"{kind}.add", 1, 1, when=flow.run(f"{kind}.total", none, name="zero"), name="never")
        grown = flow.run(f"{kind}.graft", 3, kind, name="grown", after=ten)
        flow.run(f"{kind}.payloads", name="seen", after=[ten, none, grown])

    fleet.worker(kinds=kind)
    run = create(fleet, all_of_it)
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


def test_a_workflow_is_nested_with_what_is_known_only_at_run_time(fleet: Fleet) -> None:
    def outer(flow: Flow) -> None:
        count = flow.run("process.add", 2, 3, name="five")
        inner = flow.run("workflow:process.inner", count, name="inner")
        flow.run("process.add", inner, 100, name="sum")

    fleet.worker()
    run = create(fleet, outer)
    assert run.wait(60) is WorkflowState.SUCCEEDED, states(run)
    assert run.outputs() == {"sum": 115}


def test_what_follows_a_failure_is_as_its_edge_says(fleet: Fleet) -> None:
    def failing(flow: Flow) -> None:
        bad = flow.run("process.fail", 9, name="bad")
        flow.run("process.payloads", name="waits", after=bad)
        flow.run("process.payloads", name="goes on", after=bad.on_failure("continue"))
        skipped = flow.run("process.payloads", name="skipped", after=bad.on_failure("skip"))
        flow.run("process.payloads", name="skipped too", after=skipped)

    fleet.worker()
    run = create(fleet, failing)
    assert run.wait(60) is WorkflowState.FAILED
    found = states(run)
    assert found == {
        "bad": "failed", "waits": "blocked", "goes on": "succeeded", "skipped": "skipped", "skipped too": "skipped",
    }  # fmt: skip
    assert run.node("goes on").result() == [["bad", "failed", None]]


def test_a_workflow_goes_on_from_its_failed_nodes(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "there"

    def mended(flow: Flow) -> None:
        first = flow.run("process.numbers", 2, name="first")
        wants = [flow.run("process.needs", str(path), after=first, name=f"wants {n}") for n in range(3)]
        flow.run("process.add", 1, 1, after=wants, name="then")

    fleet.worker()
    run = create(fleet, mended)
    assert run.wait(60) is WorkflowState.FAILED
    assert states(run) == {"first": "succeeded", **{f"wants {n}": "failed" for n in range(3)}, "then": "blocked"}
    assert run.refresh().failed_node.startswith("wants")
    path.touch()
    run.retry_failed()
    assert run.wait(60) is WorkflowState.SUCCEEDED
    assert fleet.ledger.counts()[run.node("first").id] == 1
    assert run.outputs() == {"then": 2}
    record = run.refresh()
    assert (record.counts["failed"], record.done, record.failed_node) == (0, 5, "")


def test_what_had_succeeded_is_undone_last_first_and_the_callback_runs(fleet: Fleet) -> None:
    def saga(flow: Flow) -> None:
        one = flow.run("process.add", 1, 0, undo="process.undo", name="one")
        two = flow.run("process.add", one, 1, undo="process.undo", name="two")
        flow.run("process.fail", 9, after=two, name="bad")

    fleet.worker()
    fleet.app.workflow(name="test.saga", on_failure="process.told")(saga)
    run = create(fleet, saga)
    assert run.wait(60) is WorkflowState.FAILED
    fleet.drained()
    found = nodes(run)
    undone = sorted((n for n in found.values() if n.role == "undo"), key=lambda n: n.job.started_us)
    assert [fleet.app.jobs.get(node_id(run.id, n.number)).result(timeout=1) for n in undone] == [-2, -1]
    (callback,) = (n for n in found.values() if n.role == "callback")
    assert fleet.app.jobs.get(node_id(run.id, callback.number)).result(timeout=60) == run.id


def test_every_end_is_told_also_one_that_comes_while_an_earlier_one_is_told(fleet: Fleet) -> None:
    def failing(flow: Flow) -> None:
        flow.run("process.fail", 9, name="bad")

    fleet.worker(processes=2)
    fleet.app.workflow(name="test.failing", on_failure="process.retry_it")(failing)
    run = create(fleet, failing)
    callback = fleet.until(lambda: nodes(run).get("(on_failure)"))
    fleet.started(fleet.app.jobs.get(callback.job.id), times=3)
    fleet.drained()
    assert run.state == "failed"
    assert len(fleet.ledger.starts(callback.job.id)) == 3, "it gave up, and no end came after that"


@pytest.mark.parametrize("policy", ["continue", "skip"])
def test_a_last_node_whose_failure_was_said_to_matter_to_nobody_fails_no_workflow(fleet: Fleet, policy: Policy) -> None:
    def last(flow: Flow) -> None:
        flow.run("thread.fail", 9, after=flow.run("thread.add", 1, 1), on_failure=policy, name="last")

    def strict(flow: Flow) -> None:
        flow.run("thread.fail", 9, name="last")

    fleet.worker(kinds="thread")
    run, other = create(fleet, last), create(fleet, strict)
    assert (run.wait(60), other.wait(60)) == (WorkflowState.SUCCEEDED, WorkflowState.FAILED)
    assert (run.counts["failed"], run.refresh().failed_node) == (1, "last")


def test_a_job_enqueued_by_name_has_the_crash_budget_of_its_task(fleet: Fleet) -> None:
    fleet.worker()
    job = fleet.enqueue("process.frail", "kill")
    assert fleet.ended(job).state is State.QUARANTINED
    assert job.refresh().crashes == 1
    own = fleet.enqueue("process.frail", "kill", 1, max_crashes=2)
    assert (fleet.ended(own).state, own.refresh().crashes) == (State.SUCCEEDED, 1)


def test_what_all_items_of_a_map_take_is_stored_once(fleet: Fleet) -> None:
    big = "x" * 100_000

    def wide(flow: Flow) -> None:
        known = flow.map("thread.pair", list(range(50)), big, name="known")
        found = flow.map("thread.pair", flow.run("thread.numbers", 50), params={"b": big}, name="found")
        flow.run("thread.echo", [known, found], name="both")

    fleet.worker(kinds="thread")
    run = create(fleet, wide)
    assert run.wait(60) is WorkflowState.SUCCEEDED, states(run)
    assert run.outputs() == {"both": [[[[n, len(big), []] for n in range(50)]] * 2]}
    assert (run.refresh().total, len(nodes(run))) == (103, 105), "a value is no job, and in no list"
    client: Any
    with connect(fleet.url) as client:
        assert sum(client.memory_usage(key) for key in client.scan_iter(f"*{run.id[:15]}*")) < 10 * len(big)
        run.delete()
        assert list(client.scan_iter(f"*{run.id[:15]}*")) == []


def test_a_stopped_workflow_starts_nothing_until_it_is_started(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def line(flow: Flow) -> None:
        first = flow.run("process.gate", str(gate), name="first")
        flow.run("process.add", 1, 1, after=first, name="next")
        flow.run("process.add", 1, 1, delay=0.01, after=first, name="later")

    fleet.worker()
    run = create(fleet, line)
    fleet.started(run.node("first"))
    run.stop()
    gate.touch()
    fleet.until(lambda: states(run)["first"] == "succeeded")
    fleet.until(lambda: states(run)["next"] == states(run)["later"] == "stopped")
    assert run.state is WorkflowState.STOPPED
    assert len(fleet.ledger.starts()) == 1
    run.start()
    assert run.wait(60) is WorkflowState.SUCCEEDED


def test_cancelling_ends_what_runs_and_what_waits(fleet: Fleet, tmp_path: Path) -> None:
    def line(flow: Flow) -> None:
        first = flow.run("process.gate", str(tmp_path / "never"), name="first")
        flow.run("process.add", 1, 1, after=first, name="next")

    fleet.worker()
    run = create(fleet, line)
    fleet.started(run.node("first"))
    run.cancel()
    assert run.wait(60) is WorkflowState.CANCELLED
    assert states(run) == {"first": "cancelled", "next": "cancelled"}


def test_a_workflow_that_is_deleted_under_its_running_nodes_leaves_nothing(
    fleet: Fleet, client: redis.Redis, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def line(flow: Flow) -> None:
        first = flow.run("process.say", str(gate), name="first")
        flow.run("process.add", 1, 1, after=first, name="next")

    fleet.worker()
    run = create(fleet, line)
    fleet.started(run.node("first"))
    run.delete()
    gate.touch()
    fleet.drained()
    left = {key.decode() for key in client.scan_iter(match=f"*{run.id[:15]}*")}
    assert not left
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2


def _graph(flow: Flow) -> None:
    first = flow.run("process.numbers", 3, name="first")
    grown = flow.run("process.graft", 2, "process", name="grown", after=first)
    flow.run("process.total", flow.map("process.add", first, 1, name="items"), after=grown, name="end")


@pytest.mark.parametrize("role", ["runner", "dispatcher", "worker"])
@pytest.mark.parametrize(
    ("script", "side"),
    [
        ("outputs", "request"), ("outputs", "reply"), ("reserve", "request"), ("reserve", "reply"),
        ("graft", "request"), ("graft", "reply"), ("settle", "request"), ("settle", "reply"),
    ],
)  # fmt: skip
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
    # What the dead had in flight is lost with them, or reaches the server all the same.
    trap.release() if role == "runner" or side == "reply" else trap.drop()
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
    dice = random.Random(seed)
    chaos = Chaos(fleet, server, seed)
    runs = [create(fleet, wide, number, name="soak") for number in range(flows)]
    jobs = fleet.enqueue_many(
        "process.nap", [(round(dice.random() * 0.004, 6),) for _ in range(3000)], max_crashes=BUDGET
    )
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
    _soak(new_server, new_fleet, flows=40, width=40, seconds=25, seed=7)


def test_a_worker_that_slept_beyond_its_lease_releases_no_child_again(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def line(flow: Flow) -> None:
        first = flow.run("process.gate", str(gate), name="first")
        flow.run("process.add", 1, 1, after=first, name="next")

    sleeper = fleet.worker(settings={"lease": LEASE})
    run = create(fleet, line)
    fleet.started(run.node("first"))
    pids = sleeper.stop_all()
    fleet.worker()
    fleet.started(run.node("first"), 2)
    gate.touch()
    assert run.wait(60) is WorkflowState.SUCCEEDED
    send(pids, signal.SIGCONT)
    assert fleet.enqueue("process.add", 1, 1).result(timeout=60) == 2
    assert len(fleet.ledger.starts(run.node("next").id)) == 1
