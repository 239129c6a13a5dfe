"""Bulk operations: counted, started, done by a program itself, stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace import Headrace
from headrace.admin.bulk_operations import BulkOperations, JobCount
from headrace.errors import JobNotFound, OptionsError, StoreFull
from headrace.model.job_record import cause_id
from headrace.protocol.operations import JobFilter
from headrace.testing import Kit
from tests.servers import Server

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


def test_a_program_does_the_pieces_itself(app: Headrace, kit: Kit) -> None:
    fail(app, kit, 10)
    (job,) = app.jobs.page("failed", limit=1)
    which = JobFilter("failed", cause=cause_id("bad", job.error))
    assert app.bulk.count("retry", which) == JobCount(5, 10, True)
    (progress,) = app.bulk.pieces("retry", which)
    assert (progress.done, progress.looked, progress.words) == (5, 10, "5 done")
    assert app.jobs.count("ready") == 5
    assert app.bulk.page().rows == []


def test_a_count_looks_at_a_bounded_number_of_jobs(app: Headrace) -> None:
    app.enqueue_many(app.tasks["bad"].options(delay=60).job(n) for n in range(6001))
    before = app.client.store.round_trips
    assert app.bulk.count("cancel", JobFilter("scheduled", task="bad")) == JobCount(4800, 4800, False)
    assert app.client.store.round_trips - before <= 13
    assert app.bulk.count("cancel", JobFilter("scheduled")) == JobCount(6001, 6001, True)
    assert [progress.done for progress in app.bulk.pieces("delete", JobFilter("scheduled"))][:2] == [250, 500]
    assert app.jobs.count("scheduled") == 0


def test_an_operation_is_a_job_that_is_listed_apart(app: Headrace) -> None:
    app.enqueue_many(app.tasks["bad"].options(delay=60).job(n) for n in range(600))
    which = JobFilter("scheduled")
    one = app.bulk.start("delete", which, who="ada")
    assert (one.state, one.request.total, one.words, one.running) == ("ready", 600, "0 done", True)
    assert app.bulk.start("delete", which, who="eve", id=one.id) == app.bulk.get(one.id) == app.bulk.page()[0] == one
    assert [record.id for record in app.jobs.own()] == [one.id]
    assert app.jobs.count("ready") == 0
    assert app.jobs.page("ready").rows == []
    stopped = app.bulk.stop(one.id)
    assert (stopped.state, stopped.running) == ("cancelled", False)
    assert app.jobs.count("cancelled") == 0
    assert app.jobs.page("cancelled").rows == []


async def test_coroutines_do_so_too(app: Headrace) -> None:
    app.enqueue_many(app.tasks["bad"].options(delay=60).job(n) for n in range(300))
    which = JobFilter("scheduled", task="bad")
    assert (await app.bulk.acount("cancel", which)).matched == 300
    one = await app.bulk.astart("cancel", which, who="ada", by="api")
    assert await app.bulk.aget(one.id) == one
    page = await app.bulk.apage()
    assert ([one.id for one in page], page.count, page.next) == ([one.id], 1, None)
    assert [record.id for record in await app.jobs.aown()] == [one.id]
    assert (await app.bulk.astop(one.id)).state == "cancelled"
    await app.aclose()


def test_own_jobs_come_in_pages(app: Headrace) -> None:
    ids = [app.bulk.start("cancel", JobFilter("scheduled"), who="ada").id for _ in range(5)]
    first = app.jobs.own(limit=3)
    rest = app.jobs.own(limit=3, after=first.next)
    assert [record.id for record in (*first, *rest)] == ids[::-1]
    assert (first.count, rest.next) == (5, None)


@pytest.mark.parametrize("name", ["_own", "headrace.bulk", "headrace.x"])
def test_programs_cannot_name_what_is_of_own_jobs(app: Headrace, name: str) -> None:
    def nothing() -> None: ...

    with pytest.raises(OptionsError, match="reserved"):
        if name == "_own":
            app.task(name="x", queue=name)(nothing)
        else:
            app.task(name=name)(nothing)
    with pytest.raises(OptionsError, match="reserved"):
        app.by_name("tasks.add", queue=name) if name == "_own" else app.by_name(name)
    with pytest.raises(OptionsError, match="kind must be one of"):
        app.task(name="x", kind="own")(nothing)  # type: ignore[call-overload]
    if name == "_own":
        with pytest.raises(OptionsError, match="reserved"):
            app.queues[name].purge()


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
    for call in (app.bulk.count, lambda *args: app.bulk.start(*args, who="ada")):
        with pytest.raises(OptionsError, match=text):
            call(verb, which)


def test_a_rate_below_nothing_and_unknown_ids_are_refused(app: Headrace) -> None:
    with pytest.raises(OptionsError, match="rate"):
        app.bulk.start("retry", FAILED, who="ada", rate=-1)
    for id in ("", "x:y", "0" * 21):
        for verb in (app.bulk.get, app.bulk.stop):
            with pytest.raises(JobNotFound):
                verb(id)


def test_each_verb_has_its_pair() -> None:
    verbs = {name for name in vars(BulkOperations) if not name.startswith("_")} - {"pieces"}
    assert {name for name in verbs if f"a{name}" not in verbs} == {f"a{name}" for name in verbs if f"a{name}" in verbs}


def test_a_full_store_is_emptied_by_a_deletion_whose_job_has_no_room(new_server: Callable[..., Server]) -> None:
    server = new_server("valkey-9")
    with Headrace(server.url) as app, pytest.raises(StoreFull):
        server.client().config_set("maxmemory", 16 * 2**20)
        for _ in range(10_000):
            app.by_name("shop.mail").enqueue("x" * 20_000)
    with Headrace(server.url) as app:
        with pytest.raises(StoreFull):
            app.bulk.start("cancel", JobFilter("ready", queue="default"), who="ada")
        waiting = app.jobs.count("ready")
        begun = app.bulk.start("delete", JobFilter("ready", queue="default"), who="ada")
        assert begun.request.total == app.jobs.count("ready") < waiting
        app.by_name("shop.mail").enqueue("there is room again")
