"""Bulk operations, deletions and confirmations from pages, without script."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from urllib.parse import unquote

import pytest

from headrace.admin.bulk_operations import work
from headrace.dashboard import Dashboard
from headrace.model.job_record import cause_id
from headrace.testing import Kit
from tests.dashboard.asking import Answer, ask, fields, operator, viewer
from tests.dashboard.conftest import Shop
from tests.deadline import eventually


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, operator)


async def press(dashboard: Dashboard, path: str, **more: str) -> Answer:
    """Open a confirmation, and send its form."""
    asked = await ask(dashboard, path)
    assert asked.status == 200, asked.text
    return await ask(dashboard, "/bulk", form={**fields(asked), **more})


def said(answer: Answer) -> str:
    assert answer.status == 303, answer.text
    return unquote(answer.cookies["headrace_said"].strip('"'))


def do(shop: Shop) -> None:
    """Do the newest operation, as a worker would."""
    one = shop.app.bulk.page()[0]
    for _ in work(shop.app.client, one.request, shop.app.client.keys, one.id):
        pass


async def test_all_failures_of_a_task_are_retried(shop: Shop, dashboard: Dashboard) -> None:
    shop.sign.enqueue("x", {"token": "y"})
    listed = await ask(dashboard, "/jobs?state=failed&task=shop.sign")
    (link,) = (link for link in listed.links() if "verb=retry" in link)
    asked = await ask(dashboard, link)
    # One of them is a node, which is retried with its workflow.
    assert "Retry 1 job?" in asked.text
    assert "1 further job is a node of workflows" in asked.text
    assert "/workflows?state=failed" in asked.links()
    assert "cannot be undone" in asked.text
    answer = await press(dashboard, link)
    assert said(answer) == "Begun: a worker does it."
    do(shop)
    page = await ask(dashboard, answer.headers["location"])
    assert "1 of 1 done" in page.text
    assert "1: nodes of workflows" in page.text
    act = shop.app.acts.page()[0]
    assert (act.verb, act.scope, act.count) == ("retry", "state:failed task:shop.sign", 1)
    assert answer.headers["location"] in set((await ask(dashboard, "/bulk")).links())


async def test_a_form_that_is_sent_twice_begins_one_operation(shop: Shop, dashboard: Dashboard) -> None:
    shop.app.enqueue_many(shop.add.options(delay=60).job(n) for n in range(300))
    asked = await ask(dashboard, "/bulk/new?verb=cancel&state=scheduled")
    form = {**fields(asked), "typed": f"{shop.app.jobs.count('scheduled')}"}
    places = {(await ask(dashboard, "/bulk", form=form)).headers["location"] for _ in range(2)}
    assert len(places) == len(shop.app.bulk.page()) == 1
    assert (await ask(dashboard, "/bulk", form={**form, "operation": "?"})).status == 404


async def test_a_cause_is_retried_from_its_row(shop: Shop, dashboard: Dashboard) -> None:
    record = shop.app.job(shop.failed).refresh()
    causes = await ask(dashboard, "/causes")
    cause = cause_id(record.task, record.error)
    (link,) = (link for link in causes.links() if cause in link and "bulk/new" in link)
    assert said(await press(dashboard, link)) == "Begun: a worker does it."
    do(shop)
    assert shop.app.job(shop.failed).state == "ready"


@pytest.mark.parametrize("typed", ["", "7", "x"])
async def test_the_number_must_be_typed_for_many(shop: Shop, dashboard: Dashboard, typed: str) -> None:
    shop.app.enqueue_many(shop.add.options(delay=60).job(n) for n in range(300))
    path = "/bulk/new?verb=delete&state=scheduled"
    refused = await press(dashboard, path, typed=typed)
    assert refused.status == 400
    assert "Nothing was done: type the number" in refused.text
    count = shop.app.jobs.count("scheduled")
    answer = await press(dashboard, path, typed=f"{count}")
    assert said(answer) == "Begun: a worker does it."
    page = await ask(dashboard, answer.headers["location"])
    assert "No worker is running, and a worker does this" in page.text
    stop = answer.headers["location"] + "/act/stop"
    assert "is stopped: 0 done" in said(await ask(dashboard, stop, form={}))
    assert shop.app.jobs.count("scheduled") == count


async def test_what_comes_after_the_question_is_left_alone(shop: Shop, dashboard: Dashboard, kit: Kit) -> None:
    asked = await ask(dashboard, "/bulk/new?verb=cancel&state=scheduled")
    late = shop.add.options(delay=60).enqueue(1)
    # The bound is the confirmation, not the question: what the store held by then is meant.
    await ask(dashboard, "/bulk", form=fields(asked))
    bound = shop.app.bulk.page()[0].request.bound_us
    # An id says when a job was made, in steps of 5 ms.
    eventually(lambda: time.time_ns() // 1000 > bound + 10_000)
    after = shop.add.options(delay=60).enqueue(2)
    do(shop)
    assert (late.state, after.state) == ("cancelled", "scheduled")


async def test_a_verb_that_matches_nothing_says_so_and_has_no_button(shop: Shop, dashboard: Dashboard) -> None:
    page = await ask(dashboard, "/bulk/new?verb=delete&state=scheduled&task=nothing")
    assert "<h1>No job to delete</h1>" in page.text
    assert "No job matches state:scheduled task:nothing." in page.text
    assert "/bulk" not in {one.get("action") for tag, one in page.elements if tag == "form"}


@pytest.mark.parametrize(
    "query",
    [
        "verb=purge&state=failed",
        "verb=cancel&state=failed",
        "verb=cancel&state=ready",
        "verb=retry&state=failed&cause=x",
        "",
    ],
)
async def test_what_cannot_be_is_refused(shop: Shop, dashboard: Dashboard, query: str) -> None:
    assert (await ask(dashboard, f"/bulk/new?{query}")).status == 400
    form = {**dict(pair.split("=") for pair in query.split("&") if pair), "count": "1", "exact": "1"}
    assert (await ask(dashboard, "/bulk", form=form)).status == 400
    for more in ({"count": "-1"}, {"rate": "1e9"}, {"count": "9" * 40}):
        wrong: Mapping[str, str] = {"verb": "retry", "state": "failed", "count": "1", "exact": "1", **more}
        assert (await ask(dashboard, "/bulk", form=wrong)).status == 400
    assert shop.app.bulk.page().rows == []


async def test_only_operators_begin_one(shop: Shop) -> None:
    looking = Dashboard(shop.app, viewer)
    assert "/bulk/new" not in (await ask(looking, "/jobs?state=failed")).text
    assert "Only operators" in (await ask(looking, "/bulk/new?verb=retry&state=failed")).text
    form = {"verb": "retry", "state": "failed", "count": "1", "exact": "1"}
    assert (await ask(looking, "/bulk", form=form)).status == 403
    assert (await ask(Dashboard(shop.app, operator, read_only=True), "/bulk", form=form)).status == 403
    assert shop.app.bulk.page().rows == []
    assert (await ask(looking, "/bulk/nothing")).status == 404


async def test_a_verb_asks_with_a_page_where_there_is_no_script(shop: Shop, dashboard: Dashboard) -> None:
    page = await ask(dashboard, f"/jobs/{shop.failed}")
    assert "Delete this job" in page.text
    path = f"/jobs/{shop.failed}/act/delete"
    asked = await ask(dashboard, path, form={"ask": "Delete this job?", "more": "<b>"})
    assert asked.status == 200
    assert re.search(rf'action="/jobs/{shop.failed}/act/delete"', asked.text)
    assert re.search(r'<input type="hidden" name="more"\s+value="&lt;b&gt;">', asked.text)
    assert shop.app.job(shop.failed).state == "failed"
    answer = await ask(dashboard, path, form={"more": "<b>"})
    assert (said(answer), answer.headers["location"]) == ("The job is deleted.", "/jobs")
    assert (await ask(dashboard, f"/jobs/{shop.failed}")).status == 404
