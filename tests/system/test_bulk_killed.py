"""DS27: a bulk operation whose worker, or whose shell, is killed goes on: each job is touched once, and none is left."""

from __future__ import annotations

import pytest

from headrace import Headrace
from headrace.protocol.operations import BulkOperation, JobFilter
from tests.system.fleet import LEASE, Fleet

pytestmark = pytest.mark.system

# So slow that it lasts until something has been killed, however long a busy machine takes for that.
COUNT, RATE = 600, 60


@pytest.fixture
def lease() -> float:
    """Another worker takes over when the lease of the killed one has ended."""
    return LEASE


def cancelled(app: Headrace) -> None:
    """Cancelled jobs of a queue that no worker serves, so that what is retried stays to be counted."""
    bound = app.by_name("tasks.none", queue="unserved", delay=3600)
    app.enqueue_many(bound.job(n) for n in range(COUNT))
    *_, progress = app.bulk.pieces("cancel", JobFilter("scheduled"))
    assert progress.done == COUNT


def check(app: Headrace, one: BulkOperation) -> None:
    """Each job was retried once: a second time would have been refused, and counted as that."""
    assert (one.state, one.progress.done, one.progress.refused) == ("succeeded", COUNT, {})
    states = app.overview().states
    assert (states["cancelled"], states["ready"]) == (0, COUNT)


def test_a_worker_that_is_killed_leaves_the_rest_of_an_operation_to_another(fleet: Fleet) -> None:
    app = fleet.app
    cancelled(app)
    first = fleet.worker()
    one = app.bulk.start("retry", JobFilter("cancelled"), who="ada", rate=RATE)
    fleet.until(lambda: app.bulk.get(one.id).progress.done > RATE)
    assert app.bulk.get(one.id).running, "it ended before anything was killed"
    first.kill("worker")
    fleet.worker()
    fleet.until(lambda: not app.bulk.get(one.id).running)
    check(app, app.bulk.get(one.id))
    assert app.job(one.id).refresh().crashes == 1
