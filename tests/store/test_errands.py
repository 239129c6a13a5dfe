"""Verbs on many jobs: counted, begun, worked off by a worker or by who began them, stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import Headrace
from headrace.admin.errands import Errands, JobCount
from headrace.errors import ErrandNotFound, OptionsError
from headrace.model.errand import JobFilter
from headrace.model.job_record import cause_id
from headrace.testing import Kit

FAILED = JobFilter("failed")


@pytest.fixture
def app(url: str) -> Headrace:
    app = Headrace(url)

    @app.task(name="bad", retries=0)
    def bad(n: int) -> None:
        if n % 2:
            raise ValueError(f"no {n}")
        raise OSError(n)

    return app


@pytest.fixture
def kit(app: Headrace, url: str) -> Iterator[Kit]:
    with Kit(app, url=url) as kit:
        yield kit


def fail(app: Headrace, kit: Kit, count: int) -> None:
    app.enqueue_many(app.tasks["bad"].job(n) for n in range(count))
    kit.drain(raises=False)


def test_small_ones_are_done_at_once(app: Headrace, kit: Kit) -> None:
    fail(app, kit, 10)
    (job,) = app.jobs.page("failed", limit=1)
    which = JobFilter("failed", cause=cause_id("bad", job.error))
    assert app.errands.count("retry", which) == JobCount(5, 10, True)
    errand = app.errands.start("retry", which, who="ada")
    assert (errand.phase, errand.done, errand.total, errand.exact) == ("ended", 5, 5, True)
    assert app.jobs.count("ready") == 5
    assert app.errands.get(errand.id) == errand == app.errands.page()[0]
    assert app.errands.stop(errand.id).phase == "ended"


def test_a_count_looks_at_a_bounded_number_of_jobs(app: Headrace) -> None:
    app.enqueue_many(app.tasks["bad"].options(delay=60).job(n) for n in range(6001))
    before = app.client.store.round_trips
    assert app.errands.count("cancel", JobFilter("scheduled", task="bad")) == JobCount(6000, 6000, False)
    assert app.client.store.round_trips - before <= 16
    assert app.errands.count("cancel", JobFilter("scheduled")) == JobCount(6001, 6001, True)


def test_who_began_it_may_work_it_off(app: Headrace) -> None:
    app.enqueue_many(app.tasks["bad"].options(delay=60).job(n) for n in range(600))
    errand = app.errands.start("delete", JobFilter("scheduled"), who="ada")
    assert (errand.phase, errand.done, errand.total) == ("running", 250, 600)
    assert app.errands.work(errand.id).done == 500
    assert app.errands.stop(errand.id).phase == "stopped"
    assert app.errands.work(errand.id).done == 500
    assert app.jobs.count("scheduled") == 100


async def test_coroutines_do_so_too(app: Headrace, kit: Kit) -> None:
    app.enqueue_many(app.tasks["bad"].options(delay=60).job(n) for n in range(300))
    which = JobFilter("scheduled", task="bad")
    assert (await app.errands.acount("cancel", which)).matched == 300
    errand = await app.errands.astart("cancel", which, who="ada", by="api")
    assert (await app.errands.awork(errand.id)).words == "300 done"
    assert (await app.errands.aget(errand.id)).phase == "ended"
    page = await app.errands.apage()
    assert ([one.id for one in page], page.count, page.next) == ([errand.id], 1, None)
    assert (await app.errands.astop(errand.id)).phase == "ended"
    await app.aclose()


@pytest.mark.parametrize(
    ("verb", "which", "text"),
    [
        ("purge", FAILED, "there is no verb"),
        ("retry", JobFilter("ready", queue="a"), "retry is for jobs that are"),
        ("cancel", JobFilter("failed"), "cancel is for jobs"),
        ("cancel", JobFilter("ready"), "name the queue of the ready jobs"),
        ("cancel", JobFilter("parked"), "name the task of the parked jobs"),
        ("delete", JobFilter("running"), "delete is for"),
        ("retry", JobFilter("failed", cause="x"), "16 hexadecimal"),
        ("retry", JobFilter("succeeded", cause="0" * 16), "only failed"),
        ("retry", JobFilter("failed", key="\udcff"), "key must be a text"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(app: Headrace, verb: str, which: JobFilter, text: str) -> None:
    for call in (app.errands.count, lambda *args: app.errands.start(*args, who="ada")):
        with pytest.raises(OptionsError, match=text):
            call(verb, which)


def test_a_rate_below_nothing_and_unknown_ids_are_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="rate"):
        app.errands.start("retry", FAILED, who="ada", rate=-1)
    for id in ("", "x:y", "0" * 16):
        for verb in (app.errands.get, app.errands.stop, app.errands.work):
            with pytest.raises(ErrandNotFound):
                verb(id)


def test_each_verb_has_its_pair() -> None:
    verbs = {name for name in vars(Errands) if not name.startswith("_")}
    assert {name for name in verbs if f"a{name}" not in verbs} == {f"a{name}" for name in verbs if f"a{name}" in verbs}
