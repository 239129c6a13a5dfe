"""Each rule of retries, limits and edges ends alike drained and on a worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Job, Record
from headrace.settings import load
from headrace.testing import Kit
from tests.deadline import eventually
from tests.kit import cases
from tests.nursery import headrace
from tests.servers import Server, connect

pytestmark = pytest.mark.system
Told = dict[str, Any]


def of_record(record: Record | None) -> Told:
    """What must be alike of a job: all but its ids, times and places."""
    if record is None:
        return {"state": "gone"}
    error = record.error
    return {
        "task": record.task,
        "state": str(record.state),
        "counts": (record.failures, record.crashes, record.interruptions, record.snoozes),
        "attempt": record.attempt,
        "result": record.packed_result,
        "error": error and (error.type, error.message, error.attempt, error.signal, error.where),
        "raised": error and [line for line in error.traceback.splitlines() if not line.startswith(" ")],
        "journal": [(one.number, one.outcome, one.error, one.signal) for one in record.attempts],
    }


def of_made(made: cases.Made) -> Told:
    if isinstance(made, Job):
        return of_record(made.refresh())
    whole = made.refresh()
    nodes = {one.facts.name: of_record(one.job) for one in made.nodes(limit=100)}
    return {"state": str(whole.state), "counts": whole.counts, "nodes": nodes}


def told(made: cases.Made | list[cases.Made]) -> list[Told]:
    return [of_made(one) for one in (made if isinstance(made, list) else [made])]


def is_over(made: cases.Made | list[cases.Made]) -> bool:
    many = made if isinstance(made, list) else [made]
    return all(str(one.state) in ("succeeded", "failed", "cancelled", "quarantined", "parked") for one in many)


@pytest.fixture(scope="module")
def on_a_worker(running: Callable[[str], Server]) -> Iterator[dict[str, list[Told]]]:
    """How all cases end on one real worker."""
    server, app = running("valkey-9"), cases.app
    with connect(server.url) as client:
        client.flushall()
    back = app.move(load(os.environ, url=server.url, namespace="worker", max_crashes=2), {})
    made = {name: make() for name, make in cases.CASES.items()}
    environ = {**os.environ, "HEADRACE_URL": server.url, "HEADRACE_NAMESPACE": "worker"}
    words = ("worker", "tests.kit.cases:app", "--processes", "2")
    worker = headrace(environ, *words)

    def all_over() -> bool:
        assert worker.poll() is None
        states = app.overview().states
        return not (states["ready"] or states["running"]) and all(map(is_over, made.values()))

    try:
        eventually(all_over, 150)
        yield {name: told(one) for name, one in made.items()}
    finally:
        worker.terminate()
        worker.wait(30)
        back()


@pytest.fixture(scope="module")
def drained() -> Iterator[dict[str, list[Told]]]:
    """How they end in a drain."""
    with pytest.MonkeyPatch.context() as patch, Kit(cases.app) as kit:
        patch.setattr(cases, "die", kit.crash)
        made = {name: make() for name, make in cases.CASES.items()}
        while kit.drain(retries=True, raises=False).starts:
            kit.clock.advance(1)
        yield {name: told(one) for name, one in made.items()}


@pytest.mark.parametrize("name", cases.CASES)
def test_a_case_ends_alike_drained_and_on_a_worker(
    name: str, drained: dict[str, list[Told]], on_a_worker: dict[str, list[Told]]
) -> None:
    assert drained[name] == on_a_worker[name]


def test_the_cases_come_to_all_ends(drained: dict[str, list[Told]]) -> None:
    """A table in which everything succeeded would show nothing."""
    ends = {one["state"] for many in drained.values() for one in many}
    assert ends == {"succeeded", "failed", "cancelled", "quarantined", "parked"}
