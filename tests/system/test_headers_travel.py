"""Headers on real workers: each kind sees them, and what a job makes inherits them."""

from __future__ import annotations

from headrace.model.job import State
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
