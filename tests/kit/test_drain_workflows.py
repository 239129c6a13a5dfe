"""A drain runs a workflow to its end: edges, maps, nodes that add nodes, failures."""

from __future__ import annotations

import pytest

from headrace.testing import DrainError, Kit
from tests.kit import shop


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
