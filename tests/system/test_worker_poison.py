"""Bad jobs among good ones: the bad end with their evidence, the good are all done, each started once."""

from __future__ import annotations

import pytest

from headrace.errors import JobFailed, JobQuarantined
from tests.system.fleet import Fleet

GOOD = 1000


@pytest.mark.slow
def test_a_thousand_good_jobs_outlive_every_bad_one(fleet: Fleet) -> None:
    half = [(n, n) for n in range(GOOD // 2)]
    good = fleet.enqueue_many("process.add", half)
    bad = [fleet.enqueue("process.crash", how, max_crashes=2) for how in ("exit", "segfault", "kill")]
    flood = fleet.enqueue("process.flood", 4)
    deep = fleet.enqueue("process.recurse")
    forks = fleet.enqueue("process.many_children", 50)
    closed = fleet.enqueue("process.close_all", max_crashes=2)
    left = fleet.enqueue("process.leave_thread")
    stuck = fleet.enqueue("process.stubborn", 60, timeout=0.3)
    endless = fleet.enqueue("process.hog", 60, timeout=0.3)
    good += fleet.enqueue_many("process.add", half)
    worker = fleet.worker(processes=2)
    fleet.drained(150)
    assert [job.result(timeout=1) for job in good] == [2 * a for a, _ in half * 2]
    counts = fleet.ledger.counts()
    assert {counts[job.id] for job in good} == {1}
    assert flood.result(timeout=1) == 4
    assert forks.result(timeout=1) == 50
    assert left.result(timeout=1) >= 2
    with pytest.raises(JobFailed, match="RecursionError"):
        deep.result(timeout=1)
    for job in (*bad, closed):
        with pytest.raises(JobQuarantined):
            job.result(timeout=1)
        assert counts[job.id] == 2
    for job in (stuck, endless):
        with pytest.raises(JobFailed, match="TimeLimit"):
            job.result(timeout=1)
    worker.terminate()
    # The children and threads that the jobs left behind are gone with it.
    assert worker.wait() == 0


def test_mates_of_a_crash_are_suspected_once_and_never_condemned(fleet: Fleet) -> None:
    """Threads and coroutines share a process, so nobody can tell who took it down: suspects get one of their own."""
    fleet.worker(kinds="thread,async", threads=12, concurrency=12)
    bad = [fleet.enqueue(f"{kind}.crash", "exit", max_crashes=3) for kind in ("thread", "async")]
    mates = [fleet.enqueue(f"{kind}.nap", 0.2) for kind in ("thread", "async") for _ in range(10)]
    for job in bad:
        with pytest.raises(JobQuarantined):
            job.result(timeout=60)
    for job in mates:
        job.result(timeout=60)
    assert max(job.refresh().crashes for job in mates) <= 1
    # Those of their own leave again.
    fleet.until(lambda: len(fleet.workers[0].runners()) == 2)
