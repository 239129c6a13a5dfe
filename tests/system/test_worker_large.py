"""Arguments and results that no socket buffer holds reach the other side, although the dispatcher never waits."""

from __future__ import annotations

from tests.system.fleet import Fleet

SIZE = 700_000


def test_large_arguments_sent_ahead_arrive_whole(fleet: Fleet) -> None:
    fleet.worker(kinds="process", processes=1)
    # Small ones first, so that the task is measured as tiny and the large ones are sent ahead of their turn.
    small = [fleet.enqueue("process.measure", "x") for _ in range(50)]
    assert [job.result(timeout=60) for job in small] == [1] * 50
    large = [fleet.enqueue("process.measure", "x" * SIZE) for _ in range(20)]
    assert [job.result(timeout=60) for job in large] == [SIZE] * 20
    assert fleet.ledger.counts("S") == {job.id: 1 for job in small + large}


def test_a_job_that_is_busy_keeps_nobody_from_being_served(fleet: Fleet) -> None:
    fleet.worker(kinds="process", processes=2)
    slow = fleet.enqueue("process.nap", 1.5)
    large = [fleet.enqueue("process.measure", "x" * SIZE) for _ in range(20)]
    assert [job.result(timeout=60) for job in large] == [SIZE] * 20
    assert slow.result(timeout=60) == 1.5
