"""Headers on real workers: each kind sees them, and what a job makes inherits them."""

from __future__ import annotations

from headrace import Flow
from headrace.model.job import State
from headrace.model.workflow import WorkflowState
from tests.system.fleet import KINDS, Fleet

MINE = {"tenant": "a", "trace": "t"}


def test_a_job_sees_its_headers_and_the_jobs_that_it_makes_inherit_them(fleet: Fleet) -> None:
    fleet.worker(kinds=",".join(KINDS))
    again = fleet.enqueue("process.fail", 2, retries=2, delay=0.05, headers=MINE)
    for kind in KINDS:
        assert fleet.enqueue(f"{kind}.headers").result(timeout=60) == {}
        job = fleet.enqueue(f"{kind}.headers", headers=MINE)
        assert job.result(timeout=60) == MINE
        assert dict(job.refresh().headers) == MINE
        maker = fleet.enqueue(f"{kind}.heir", kind, headers=MINE)
        ids = maker.result(timeout=60)
        found = [fleet.app.jobs.get(id).result(timeout=60) for id in ids]
        # What it makes has its correlation, too.
        mine = {**MINE, "correlation": maker.id}
        assert found == [mine, mine, {"trace": "t", "own": "1", "correlation": maker.id}]
    assert again.result(timeout=60) == 3
    again.retry()
    fleet.until(lambda: again.state is State.SUCCEEDED)
    assert dict(again.refresh().headers) == MINE


def test_all_nodes_of_a_workflow_inherit(fleet: Fleet) -> None:
    @fleet.app.workflow(name="test.headers", headers=MINE, on_success="process.told")
    def headers(flow: Flow) -> None:
        flow.run("process.headers", name="first")
        flow.map("process.add", flow.run("process.numbers", 2), 1, name="many")
        flow.run("process.graft", 2, "process", name="grown")
        flow.run("workflow:process.inner", flow.run("process.add", 1, 1), name="inner")

    fleet.worker()
    run = headers.create()
    run.start()
    assert run.wait(60) is WorkflowState.SUCCEEDED
    assert run.node("first").result() == MINE
    nodes = list(run.nodes(limit=500))
    jobs = {node.facts.name: dict(node.job.headers) for node in nodes if node.role in ("", "callback")}
    assert {"many[1]", "grown/inner", "inner/total", "(on_success)"} <= jobs.keys()
    assert [name for name, found in jobs.items() if found != MINE] == []
