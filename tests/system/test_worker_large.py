"""Arguments and results that no socket buffer holds reach the other side, although the dispatcher never waits."""

from __future__ import annotations

from pathlib import Path

from tests.system.fleet import Fleet, NewFleet

SIZE = 700_000


def test_large_arguments_sent_ahead_arrive_whole_and_a_busy_job_holds_none_up(fleet: Fleet) -> None:
    fleet.worker(kinds="process", processes=2)
    # Small ones first, so that the task is measured as tiny and the large ones are sent ahead of their turn.
    small = [fleet.enqueue("process.measure", "x") for _ in range(50)]
    assert [job.result(timeout=60) for job in small] == [1] * 50
    slow = fleet.enqueue("process.nap", 1.5)
    large = [fleet.enqueue("process.measure", "x" * SIZE) for _ in range(40)]
    assert [job.result(timeout=60) for job in large] == [SIZE] * 40
    assert slow.result(timeout=60) == 1.5
    assert fleet.ledger.counts("S") == {job.id: 1 for job in [*small, slow, *large]}


def test_a_worker_says_which_kind_of_its_runners_is_busy(new_fleet: NewFleet, url: str, tmp_path: Path) -> None:
    """By the sum alone, two long jobs in both processes looked like a worker that claims nothing: 100 slots are free."""
    gate, fleet = tmp_path / "gate", new_fleet(url, lease=10.0)
    fleet.worker(kinds="process,async", processes=2, concurrency=100)
    jobs = fleet.enqueue_many("process.gate", [(str(gate),)] * 3)

    def busy() -> dict[str, int]:
        (worker,) = fleet.app.overview().live
        return worker.busy

    fleet.until(lambda: busy() == {"process": 2, "async": 0})
    gate.touch()
    for job in jobs:
        fleet.ended(job)
    fleet.until(lambda: busy() == {"process": 0, "async": 0})
