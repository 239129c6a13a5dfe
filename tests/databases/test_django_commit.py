"""Work that is stored inside of ``atomic`` is sent after its commit, exactly what was committed, in one round trip."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import redis

from headrace import Flow, Headrace, Secret, Unique
from headrace.errors import JobNotFound, OptionsError
from headrace.model.job import State
from headrace.tasks.bound_task import BoundTask
from headrace.tasks.deferral import Pending, asend
from headrace.workflows.definition import Workflow
from headrace.workflows.run import WorkflowRun
from tests.databases.conftest import fetch
from tests.store.test_app import Worker
from tests.store.test_enqueue_middleware import STORING

# Verbs that store work and wait for no commit, and why.
AT_ONCE = {(Headrace, "enqueue_packed"): "its receipts say what is stored, and an outbox's relay calls it"}


@pytest.fixture
def atomic(django_site: Any) -> Any:
    from django.db import transaction

    return transaction.atomic


def stored(app: Headrace) -> list[str]:
    return sorted(record.id for record in app.jobs.page("ready"))


def trips(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return sum(row["calls"] for name, row in stats.items() if name in ("cmdstat_evalsha", "cmdstat_fcall"))


def act(app: Headrace, client: redis.Redis, kind: type, name: str) -> tuple[Callable[[], Any], Callable[[], int]]:
    """What calls a verb, and what counts the work that it has stored."""
    task = app.tasks["fetch"]
    jobs = [task.job(n) for n in range(3)]
    if kind is Headrace:
        given: Any = [job.pack() for job in jobs] if "packed" in name else jobs
        return lambda: getattr(app, name)(given), lambda: len(stored(app))
    if kind is BoundTask:
        return lambda: getattr(task, name)("[7]" if "json" in name else 7), lambda: len(
            list(client.scan_iter("*job:*"))
        )
    graph = app.workflow_definitions["graph"]
    if kind is Workflow:
        return getattr(graph, name), app.workflows.count
    run = graph.create()
    return getattr(run, name), lambda: app.workflows.count(state="running")


@pytest.mark.parametrize(("kind", "name"), STORING, ids=lambda part: getattr(part, "__name__", part))
def test_each_verb_that_stores_work_waits_for_the_commit(
    shop: Headrace, client: redis.Redis, atomic: Any, kind: type, name: str
) -> None:
    Worker(shop)
    define(shop)
    verb, count = act(shop, client, kind, name)
    before = count()
    if (kind, name) in AT_ONCE:
        with atomic():
            verb()
            assert count() > before
        return
    with pytest.raises(ZeroDivisionError), atomic():
        verb()
        raise ZeroDivisionError
    assert count() == before
    verb, _ = act(shop, client, kind, name)
    before = count()
    with atomic():
        verb()
        assert count() == before
    assert count() > before


class Collected:
    """A tie that keeps everything until the test says that it is committed."""

    def __init__(self) -> None:
        self.works: list[Pending] = []

    def transaction(self, wish: object) -> Collected:
        return self

    def add(self, work: Pending) -> None:
        self.works.append(work)


@pytest.mark.parametrize(("kind", "name"), STORING, ids=lambda part: getattr(part, "__name__", part))
def test_each_awaited_verb_passes_the_same_seam(url: str, client: redis.Redis, kind: type, name: str) -> None:
    with Headrace(url, timeout=20) as app:
        app.task(name="fetch")(fetch)
        define(app)
        Worker(app)
        verb, count = act(app, client, kind, f"a{name}")
        before = count()
        app.client.deferral = tie = Collected()

        async def whole() -> None:
            await verb()
            if (kind, name) not in AT_ONCE:
                assert count() == before
                assert tie.works
            await asend(app.client, tie.works)
            await app.client.aclose()

        asyncio.run(whole())
        assert count() > before


def define(app: Headrace) -> None:
    @app.workflow(name="graph")
    def graph(flow: Flow) -> None:
        flow.run("fetch", 1)


def test_the_handle_is_returned_at_once(shop: Headrace, atomic: Any) -> None:
    with atomic():
        job = shop.tasks["fetch"].enqueue(7)
        assert len(job.id) == 21
        assert not job.fresh
        with pytest.raises(JobNotFound):
            job.refresh()
    assert job.refresh().task == "fetch"


def test_a_savepoint_that_is_rolled_back_drops_exactly_its_jobs(shop: Headrace, atomic: Any) -> None:
    task = shop.tasks["fetch"]
    with atomic():
        kept = [task.enqueue(1)]
        with atomic():
            kept.append(task.enqueue(2))
            with pytest.raises(ZeroDivisionError), atomic():
                task.enqueue(3)
                with atomic():
                    task.enqueue(4)
                shop.enqueue_many([task.job(5), task.job(6)])
                raise ZeroDivisionError
            kept.append(task.enqueue(7))
        with pytest.raises(ZeroDivisionError), atomic(), atomic():
            task.enqueue(8)
            raise ZeroDivisionError
        kept.append(task.enqueue(9))
        assert stored(shop) == []
    assert stored(shop) == sorted(job.id for job in kept)


def test_an_exception_after_the_enqueue_drops_all(shop: Headrace, atomic: Any) -> None:
    task = shop.tasks["fetch"]
    with pytest.raises(ZeroDivisionError), atomic():
        with atomic():
            task.enqueue(1)
        shop.enqueue_many([task.job(2)])
        raise ZeroDivisionError
    with atomic():
        later = task.enqueue(3)
    assert stored(shop) == [later.id]


def test_a_commit_sends_all_in_one_round_trip(shop: Headrace, client: redis.Redis, atomic: Any) -> None:
    from django.db import transaction

    task = shop.tasks["fetch"]
    task.enqueue(0)  # what a first use asks for
    with atomic():
        jobs = [task.enqueue(1)]
        transaction.on_commit(lambda: None)
        with atomic():
            jobs.append(task.enqueue(2))
            shop.enqueue_many([task.job(n) for n in range(3, 6)])
        jobs.append(task.options(queue="other").enqueue(6))
        before = trips(client)
    assert trips(client) == before + 1
    assert sorted(claim.args for claim in Worker(shop).claim()) == [b"\x92\x91%c\x80" % n for n in range(6)]


def test_the_alias_says_which_transaction_is_waited_for(shop: Headrace, atomic: Any) -> None:
    task = shop.tasks["fetch"]
    with atomic(), atomic(using="other"):
        at_once = task.options(after_commit=False).enqueue(1)
        assert at_once.state is State.READY
        other = task.options(after_commit="other").enqueue(2)
        default = task.enqueue(3)
        many = [task.options(after_commit="other").job(4), task.job(5), task.options(after_commit=False).job(6)]
        assert shop.enqueue_many(many) == 3
        assert [job.handle.state for job in many[2:]] == [State.READY]
        assert len(stored(shop)) == 2
    assert len(stored(shop)) == 6
    with atomic(using="other"):
        assert task.enqueue(7).state is State.READY  # no transaction of the default database is open
    with pytest.raises(OptionsError, match="not an alias of a database: there are default, other"):
        task.options(after_commit="nowhere").enqueue(1)
    assert {other.id, default.id} <= set(stored(shop))


def test_a_task_and_an_application_may_say_otherwise(shop: Headrace, atomic: Any) -> None:
    from headrace.contrib import django as tie

    shop.task(name="now", after_commit=False)(lambda: None)
    with atomic():
        assert shop.tasks["now"].enqueue().state is State.READY
    tie.install(shop, after_commit=False)
    with atomic():
        assert shop.tasks["fetch"].enqueue().state is State.READY
        waits = shop.tasks["fetch"].options(after_commit=True).enqueue()
        with pytest.raises(JobNotFound):
            waits.refresh()
    with pytest.raises(OptionsError, match="is not an alias"):
        tie.install(shop, after_commit="nowhere")


def test_without_a_tie_the_option_is_an_error_that_says_how(url: str) -> None:
    with Headrace(url) as app:
        task = app.task(name="fetch")(lambda: None)
        assert task.options(after_commit=False).enqueue().state is State.READY
        with pytest.raises(OptionsError, match=r"needs a tie to a database: docs/django\.md"):
            task.options(after_commit=True).enqueue()
        with pytest.raises(OptionsError, match="needs a tie"):
            app.enqueue_many([task.options(after_commit="outbox").job()])


def test_a_middleware_sees_the_act_when_the_verb_is_called(shop: Headrace, atomic: Any) -> None:
    import contextlib

    seen: list[str] = []

    @shop.enqueue_middleware
    @contextlib.contextmanager
    def stamp(act: Any) -> Any:
        seen.append(act.verb)
        for job in act.jobs:
            job.headers["tenant"] = "acme"
            job.change(priority=7)
        yield

    with atomic():
        job = shop.tasks["fetch"].enqueue(1)
        assert seen == ["enqueue"]
    assert seen == ["enqueue"]
    assert dict(job.refresh().headers) == {"tenant": "acme"}
    assert job.refresh().priority == 7


def test_a_workflow_is_created_and_started_after_the_commit(shop: Headrace, atomic: Any) -> None:
    @shop.workflow(name="graph", key="one")
    def graph(flow: Flow) -> None:
        flow.run("fetch", 1)

    with atomic():
        run = graph.create()
        assert run.start() == "pending"
        assert shop.workflows.count() == 0
    assert run.state == "running"
    with atomic():
        again = graph.create()
        again.start()
    assert (again.id, again.created, run.created) == (run.id, False, True)


def test_what_cannot_be_stored_is_logged_with_its_envelope(
    shop: Headrace, atomic: Any, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    """Callbacks behind it still run, and the envelope stores the job later."""
    from django.db import transaction

    task = shop.tasks["fetch"]

    @shop.task(name="hidden")
    def hidden(token: Secret[str]) -> None: ...

    ran: list[int] = []
    back = None
    with caplog.at_level(logging.WARNING, "headrace"):
        with atomic():
            jobs = [task.enqueue(1), task.options(request_id="once").enqueue(2)]
            secret = hidden.enqueue("hush")
            transaction.on_commit(lambda: ran.append(1))
            import msgspec

            back = shop.move(msgspec.structs.replace(shop.settings, url="redis://127.0.0.1:1", timeout=0.1), {})
        transaction.on_commit(lambda: ran.append(2))
    back()
    assert ran == [1, 2]
    texts = [record.getMessage() for record in caplog.records]
    told = [text for text in texts if "a transaction was committed, and job" in text]
    assert [job.id in text for job, text in zip([*jobs, secret], told, strict=True)] == [True] * 3
    assert "secret arguments" in told[2]
    assert "hush" not in "".join(texts)
    packed = [base64.b64decode(re.search(r"envelope: (\S+)", text)[1]) for text in told[:2]]  # type: ignore[index]
    assert [receipt.stored for receipt in shop.enqueue_packed(packed)] == [True, True]
    assert [job.state for job in jobs] == [State.READY] * 2


def test_one_job_that_is_refused_keeps_no_other_from_the_store(
    shop: Headrace, atomic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    task = shop.tasks["fetch"]
    only = task.options(unique=Unique(clash="raise"))
    only.enqueue(1)
    with caplog.at_level(logging.ERROR, "headrace"), atomic():
        kept = [task.enqueue(2)]
        refused = only.enqueue(1)
        kept.append(task.enqueue(3))
    assert [job.state for job in kept] == [State.READY] * 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert refused.id in told
    assert "DuplicateJob" in told


def test_captured_callbacks_of_django_run_the_jobs(shop: Headrace, django_site: Any) -> None:
    """As ``TestCase.captureOnCommitCallbacks`` and the fixture of pytest-django do it."""
    from django.db import connections, transaction
    from django.test import TestCase

    task = shop.tasks["fetch"]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        before = task.enqueue(1)
        with TestCase.captureOnCommitCallbacks(execute=True):
            inside = [task.enqueue(2), task.enqueue(3)]
            assert stored(shop) == []
        assert stored(shop) == sorted(job.id for job in inside)
        raise ZeroDivisionError
    with pytest.raises(JobNotFound):
        before.refresh()
    assert connections["default"].run_on_commit == []


def test_the_run_of_a_deferred_creation_knows_its_wish(shop: Headrace, atomic: Any) -> None:
    @shop.workflow(name="graph", after_commit=False)
    def graph(flow: Flow) -> None:
        flow.run("fetch", 1)

    with atomic():
        run: WorkflowRun = graph.create()
        assert run.start() == "running"
    later = graph.options(after_commit=True)
    with atomic():
        assert later.create().start() == "pending"


def test_the_outbox_is_written_in_the_transaction(
    shop: Headrace, atomic: Any, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    from django.db import connection

    from headrace.contrib.outbox import Relay

    def rows() -> int:
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from headrace_outbox")
            return int(cursor.fetchone()[0])

    bound = shop.tasks["fetch"].options(after_commit="outbox")
    with atomic():
        jobs = [bound.enqueue(1)]
        assert shop.enqueue_many([bound.job(n) for n in range(2)]) == 2
        with pytest.raises(ZeroDivisionError), atomic():
            bound.enqueue(3)
            raise ZeroDivisionError
        assert rows() == 3
    assert (rows(), len(stored(shop)), jobs[0].state) == (0, 3, State.READY)
    import msgspec

    back = shop.move(msgspec.structs.replace(shop.settings, url="redis://127.0.0.1:1", timeout=0.1), {})
    with atomic():
        late = bound.enqueue(4)
    back()
    assert rows() == 1
    import threading

    assert Relay(shop, shop.client.deferral.outbox(None)).run(threading.Event(), once=True) == 1
    assert (rows(), late.state) == (0, State.READY)
    with pytest.raises(OptionsError, match="not an alias"):
        shop.tasks["fetch"].options(after_commit="outbox:nowhere").enqueue(1)


def test_in_a_test_case_jobs_go_where_the_users_block_ends(shop: Headrace, django_site: Any, url: str) -> None:
    """What a ``TestCase``, and so the fixture of pytest-django, leaves open is no transaction of the user."""
    from django.db import transaction
    from django.test import TestCase

    from headrace.testing import Kit

    class Case(TestCase):
        def test(self) -> None:
            task = shop.tasks["fetch"]
            with Kit(shop, url=url) as kit:
                assert task.enqueue(0).state is State.READY
                with transaction.atomic():
                    job = task.enqueue(1)
                    with transaction.atomic():
                        task.enqueue(2)
                    for ask in (job.refresh, lambda: job.state):
                        with pytest.raises(JobNotFound, match="it waits for the commit of its transaction"):
                            ask()
                assert len(stored(shop)) == 3
                for savepoint in (True, False):
                    with pytest.raises(ZeroDivisionError), transaction.atomic(savepoint=savepoint):
                        task.enqueue(3)
                        raise ZeroDivisionError
                    transaction.set_rollback(False)
                with transaction.atomic():
                    task.enqueue(4)
                assert len(stored(shop)) == 4
                kit.drain()
                assert stored(shop) == []

    result = unittest.TestResult()
    unittest.TestSuite([Case("test")]).run(result)
    assert result.testsRun == 1
    assert (result.errors, result.failures) == ([], [])


def test_tasks_see_the_transaction_of_a_test_case(shop: Headrace, django_site: Any, url: str) -> None:
    """The database is a file: Django keeps one in memory open, whoever closes it. Django runs an ``async def`` test in
    the loop of another thread, and its queries in the thread that waits for it.
    """
    from django.contrib.auth.models import Group
    from django.test import TestCase

    from headrace.testing import Kit

    @shop.task(name="groups")
    def groups() -> list[str]:
        return [group.name for group in Group.objects.all()]

    @shop.task(name="agroups")
    async def agroups() -> list[str]:
        return [group.name async for group in Group.objects.all()]

    class Case(TestCase):
        def test(self) -> None:
            with Kit(shop, url=url) as kit:
                Group.objects.create(name="of this test")
                jobs = [groups.enqueue(), agroups.enqueue()]
                kit.drain()
                assert [job.result() for job in jobs] == [["of this test"]] * 2

        async def test_async(self) -> None:
            with Kit(shop, url=url) as kit:
                await Group.objects.acreate(name="of this test")
                jobs = [await groups.aenqueue(), await agroups.aenqueue()]
                await kit.adrain()
                assert [await job for job in jobs] == [["of this test"]] * 2

    result = unittest.TestResult()
    unittest.TestSuite([Case("test"), Case("test_async")]).run(result)
    assert result.testsRun == 2
    assert (result.errors, result.failures) == ([], [])
