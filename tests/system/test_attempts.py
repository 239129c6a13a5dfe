"""The journal of a job: what became of each of its starts, whoever ended it."""

from __future__ import annotations

import asyncio
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


def test_errors_and_snoozes_are_in_the_journal_and_simple_successes_are_not(fleet: Fleet) -> None:
    fleet.worker(kinds="process,async")
    simple, failing = fleet.enqueue("process.add", 1, 1), fleet.enqueue("async.fail", 2, retries=2)
    snoozing = fleet.enqueue("process.snooze", 2)
    assert (simple.result(timeout=60), failing.result(timeout=60), snoozing.result(timeout=60)) == (2, 3, 3)
    assert simple.attempts() == []
    assert "journal" not in simple.refresh().fields
    found = asyncio.run(failing.aattempts())
    assert [(one.outcome, one.error) for one in found] == [
        ("retry", "ValueError: not yet"),
        ("retry", "ValueError: not yet"),
        ("succeeded", ""),
    ]
    assert [one.outcome for one in snoozing.attempts()] == ["snoozed", "snoozed", "succeeded"]


def test_a_node_of_a_workflow_has_a_journal_that_a_retry_adds_to(fleet: Fleet) -> None:
    fleet.worker()

    @fleet.app.workflow
    def once(flow: object) -> None:
        flow.run("process.fail", 1)  # type: ignore[attr-defined]

    run = once.create()
    run.start()
    fleet.until(lambda: run.state.final)
    (node,) = run.nodes()
    assert [one.outcome for one in node.job.attempts] == ["failed"]
    assert run.retry_failed()
    fleet.until(lambda: len(next(iter(run.nodes())).job.attempts) == 2)
    (node,) = run.nodes()
    assert [one.number for one in node.job.attempts] == [1, 2]
