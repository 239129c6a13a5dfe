"""A drain runs a workflow to its end: edges, maps, nodes that add nodes, failures."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Flow, Headrace, current_job
from headrace.model.workflow import Policy
from headrace.testing import DrainError, Kit
from tests.kit import shop
from tests.servers import connect


def test_a_workflow_is_drained_to_its_end(headrace_app: Kit) -> None:
    run = shop.sums.create([1, 2, 3])
    run.start()
    assert headrace_app.drain(run).starts == 4
    assert run.outputs() == {"total": 12}


async def test_it_is_drained_on_an_event_loop(headrace_app: Kit) -> None:
    run = await shop.sums.acreate([1, 2, 3])
    await run.astart()
    await headrace_app.adrain(run)
    assert await run.aoutputs() == {"total": 12}


def test_a_map_adds_its_nodes(headrace_app: Kit) -> None:
    run = shop.mapped.create(4)
    run.start()
    headrace_app.drain(run)
    assert run.outputs() == {"total": 12}


@pytest.mark.parametrize(("count", "result"), [(2, None), (0, [])])
def test_the_node_of_a_map_is_read_like_any_other(headrace_app: Kit, count: int, result: list[int] | None) -> None:
    """What its task returns is in its items."""
    run = shop.mapped.create(count)
    run.start()
    headrace_app.drain(run)
    job = next(node.job for node in run.nodes() if node.facts.map)
    assert (job.result, shop.app.job(job.id).result(0)) == (result, result)
    assert job.arguments


def test_a_node_adds_nodes(headrace_app: Kit) -> None:
    run = shop.growing.create(3)
    run.start()
    headrace_app.drain(run)
    assert run.refresh().counts["succeeded"] == 5
    assert (1, "welcome") in shop.said


def test_the_first_error_of_a_node_is_raised(headrace_app: Kit) -> None:
    run = shop.failing.create()
    run.start()
    with pytest.raises(ValueError, match="broken on purpose"):
        headrace_app.drain(run)
    assert run.state == "failed"


def test_a_workflow_that_waits_for_something_else_is_told(headrace_app: Kit) -> None:
    run = shop.sums.create([1])
    with pytest.raises(DrainError, match=r"is pending after the drain.*was it started"):
        headrace_app.drain(run)
    run.start()
    headrace_app.app.queues["low"].pause()
    with pytest.raises(DrainError, match=r"is running after the drain.*1 ready"):
        headrace_app.drain(run)


def test_one_node_may_be_a_stub(headrace_app: Kit) -> None:
    headrace_app.stub(shop.double, returns=100)
    run = shop.sums.create([1, 2])
    run.start()
    headrace_app.drain(run)
    assert run.outputs() == {"total": 200}


def test_a_last_node_whose_failure_was_said_to_matter_to_nobody_fails_no_workflow(url: str) -> None:
    app = Headrace()

    @app.task(name="fail", retries=0)
    def fail() -> None:
        raise ValueError

    @app.workflow(name="last")
    def last(flow: Flow, policy: Policy) -> None:
        flow.run(fail, on_failure=policy, name="last")

    with Kit(app, url=url) as kit:
        *runs, strict = [last.create(policy) for policy in ("continue", "skip", "stop")]
        for run in (*runs, strict):
            run.start()
        kit.drain(raises=False)
        for run in runs:
            assert (run.state, run.counts["failed"], run.refresh().failed_node) == ("succeeded", 1, "last")
        assert strict.state == "failed"


def test_what_all_items_of_a_map_take_is_stored_once(url: str) -> None:
    big, app = "x" * 100_000, Headrace()

    @app.task(name="pair")
    def pair(a: int, b: str) -> list[Any]:
        return [a, len(b)]

    @app.task(name="numbers")
    def numbers(count: int) -> list[int]:
        return list(range(count))

    @app.task(name="echo")
    def echo(values: Any) -> Any:
        return values

    @app.workflow(name="wide")
    def wide(flow: Flow) -> None:
        known = flow.map(pair, list(range(50)), big, name="known")
        found = flow.map(pair, flow.run(numbers, 50), params={"b": big}, name="found")
        flow.run(echo, [known, found], name="both")

    client: Any
    with Kit(app, url=url) as kit, connect(url) as client:
        run = wide.create()
        run.start()
        kit.drain(run)
        assert run.outputs() == {"both": [[[n, len(big)] for n in range(50)]] * 2}
        # A value is no job, and in no list.
        assert (run.refresh().total, len(list(run.nodes(limit=500)))) == (103, 105)
        assert sum(client.memory_usage(key) for key in client.scan_iter(f"*{run.id[:15]}*")) < 10 * len(big)
        run.delete()
        assert list(client.scan_iter(f"*{run.id[:15]}*")) == []


def test_all_nodes_of_a_workflow_inherit_its_headers(url: str) -> None:
    """Those of a map, of a node that adds others, of a nested workflow and the callback, too."""
    app, mine = Headrace(), {"tenant": "a", "trace": "t"}

    @app.task(name="add")
    def add(a: int, b: int = 0) -> int:
        return a + b

    @app.task(name="told")
    def told(flow: str) -> None: ...

    @app.task(name="numbers")
    def numbers(count: int) -> list[int]:
        return list(range(count))

    @app.task(name="graft")
    def graft() -> None:
        current_job().workflow.run(add, 1, 1, name="inner")

    @app.workflow(name="nested")
    def nested(flow: Flow, count: int) -> None:
        flow.run(add, count, name="total")

    @app.workflow(name="headers", headers=mine, on_success=told)
    def headers(flow: Flow) -> None:
        flow.run(add, 1, name="first")
        flow.map(add, flow.run(numbers, 2), 1, name="many")
        flow.run(graft, name="grown")
        flow.run("workflow:nested", flow.run(add, 1, 1), name="inner")

    with Kit(app, url=url) as kit:
        run = headers.create()
        run.start()
        kit.drain()
        assert run.state == "succeeded"
        jobs = {
            node.facts.name: dict(node.job.headers) for node in run.nodes(limit=500) if node.role in ("", "callback")
        }
    assert {"first", "many[1]", "grown/inner", "inner/total", "(on_success)"} <= jobs.keys()
    assert [name for name, found in jobs.items() if found != mine] == []
