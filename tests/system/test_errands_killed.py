"""DS27: an errand whose worker, or whose shell, is killed amid it goes on: each job is touched once, and none is left."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from headrace import Headrace
from headrace.model.errand import Errand, JobFilter
from tests.deadline import eventually
from tests.program import Program
from tests.servers import connect
from tests.system.fleet import LEASE, Fleet

pytestmark = pytest.mark.system

# So slow that it lasts until something has been killed, however long a busy machine takes for that.
COUNT, RATE = 1200, 60


@pytest.fixture
def lease() -> float:
    """Another worker hears of an errand when it renews its lease."""
    return LEASE


def cancelled(app: Headrace) -> None:
    """Cancelled jobs of a queue that no worker serves, so that what is retried stays to be counted."""
    bound = app.by_name("tasks.none", queue="unserved", delay=3600)
    app.enqueue_many(bound.job(n) for n in range(COUNT))
    app.errands.start("cancel", JobFilter("scheduled"), who="ada")
    while (errand := app.errands.page()[0]).phase == "running":
        app.errands.work(errand.id)


def amid(app: Headrace, id: str) -> Errand | None:
    """The errand, once others than who began it have done a piece, and before it has ended."""
    errand = app.errands.get(id)
    assert errand.phase == "running", "it ended before anything was killed"
    return errand if errand.done > 250 else None


def hasten(app: Headrace, id: str) -> None:
    """Let the rest be done as fast as can be."""
    client: redis.Redis
    with connect(str(app.settings.url)) as client:
        client.hset(app.client.keys(f"errand:{id}"), "rate", 0)


def check(app: Headrace, errand: Errand) -> None:
    """Each job was retried once: a second time would have been refused, and counted as that."""
    assert (errand.phase, errand.looked, errand.done, errand.refused) == ("ended", COUNT, COUNT, {})
    states = app.overview().states
    assert (states["cancelled"], states["ready"]) == (0, COUNT)


def test_a_worker_that_is_killed_amid_an_errand_leaves_the_rest_to_another(fleet: Fleet) -> None:
    app = fleet.app
    cancelled(app)
    first = fleet.worker()
    errand = app.errands.start("retry", JobFilter("cancelled"), who="ada", rate=RATE)
    fleet.until(lambda: amid(app, errand.id))
    first.kill("worker")
    left = app.errands.get(errand.id)
    assert left.phase == "running"
    hasten(app, errand.id)
    fleet.worker()
    fleet.until(lambda: app.errands.get(errand.id).phase == "ended")
    check(app, app.errands.get(errand.id))


def test_a_shell_that_is_killed_amid_an_errand_is_followed_by_the_same_verb(url: str, tmp_path: Path) -> None:
    headrace = Program(tmp_path, url)
    verb = ("jobs", "retry", "--all", "--state", "cancelled", "--yes")
    with Headrace(url) as app:
        cancelled(app)
        with headrace.start(*verb, "--rate", str(RATE)) as shell:
            (begun,) = eventually(lambda: [one for one in app.errands.page() if one.verb == "retry"], 60)
            eventually(lambda: amid(app, begun.id), 60)
            shell.kill()
            shell.wait(60)
        left = app.errands.get(begun.id)
        assert left.phase == "running"
        # No worker lives: what the next shell begins is another errand, which finds what the first has left.
        headrace(*verb)
        second = app.errands.page()[0]
        assert (second.id != begun.id, second.phase, second.done) == (True, "ended", COUNT - left.done)
        hasten(app, begun.id)
        while (first := app.errands.work(begun.id)).phase == "running":
            assert first.done == left.done
        assert (first.done, first.refused) == (left.done, {})
        assert app.overview().states["ready"] == COUNT


def test_several_that_tend_one_errand_touch_each_job_once(fleet: Fleet) -> None:
    app = fleet.app
    cancelled(app)
    fleet.worker()
    fleet.worker()
    errand = app.errands.start("retry", JobFilter("cancelled"), who="ada")

    def work() -> None:
        while app.errands.work(errand.id).phase == "running":
            pass

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(work) for _ in range(4)]:
            one.result(30)
    check(app, app.errands.get(errand.id))
