"""The journal of a job: what became of each of its starts, whoever ended it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.system.fleet import Fleet


def test_every_kind_of_end_is_in_the_journal(fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.worker(kinds="process,async")
    gate = tmp_path / "gate"
    job = fleet.enqueue("process.gate", str(gate), retries=3)
    fleet.started(job)
    worker.kill("dispatcher")
    fleet.started(job, 2)
    worker.kill("runner")
    fleet.started(job, 3)
    worker.terminate()
    second = fleet.worker(settings={"shutdown_timeout": 0.1})
    gate.touch()
    assert job.result(timeout=60) == 3 + (len(job.attempts()) - 3)
    attempts = job.attempts()
    assert [one.number for one in attempts] == list(range(1, len(attempts) + 1))
    assert [one.outcome for one in attempts][:2] == ["crashed", "crashed"]
    assert attempts[-1].outcome == "succeeded"
    first, runner_died = attempts[:2]
    assert (first.worker, first.error) == (
        worker.place,
        "Crashed: the dispatcher of its worker died while it held the job",
    )
    assert (runner_died.signal, runner_died.error) == (
        signal.SIGKILL,
        "Crashed: its process was ended by SIGKILL",
    )
    assert attempts[-1].worker in (worker.place, second.place)
    for one in attempts[1:]:
        assert 0 < one.ready_us <= one.started_us <= one.ended_us
    assert [one.ended_us for one in attempts] == sorted(one.ended_us for one in attempts)
