"""Verbs on the jobs that are ticked in a list."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from headrace.dashboard import Dashboard
from headrace.testing import Kit
from tests.dashboard.asking import Answer, ask, operator, viewer
from tests.dashboard.conftest import Shop


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, operator)


async def press(dashboard: Dashboard, verb: str, *ids: str, sure: bool = True, back: str = "state=failed") -> Answer:
    fields = [*(("id", id) for id in ids), ("list", back), *([("sure", "1")] if sure else [])]
    return await ask(dashboard, f"/jobs/ticked/act/{verb}", form=fields)


def said(answer: Answer) -> str:
    assert answer.status == 303, answer.text
    return unquote(answer.cookies["headrace_said"].strip('"'))


async def test_ticked_jobs_are_retried_and_others_are_not(shop: Shop, dashboard: Dashboard, kit: Kit) -> None:
    other = shop.sign.enqueue("x", {"token": "y"})
    await kit.adrain(raises=False)
    page = await ask(dashboard, "/jobs?state=failed&task=shop.sign")
    boxes = [one for tag, one in page.elements if tag == "input" and one.get("type") == "checkbox" and "value" in one]
    assert {shop.failed, other.id} <= {one["value"] for one in boxes}
    assert ("input", "state=failed&task=shop.sign") in [(tag, one.get("value")) for tag, one in page.elements]
    answer = await press(dashboard, "retry", shop.failed, shop.hostile, shop.failed, back="state=failed&task=shop.sign")
    assert said(answer) == "2 jobs are ready again."
    assert answer.headers["location"] == "/jobs?state=failed&task=shop.sign"
    assert [shop.app.job(id).state for id in (shop.failed, shop.hostile, other.id)] == ["ready", "ready", "failed"]
    (act,) = shop.app.acts.page()
    assert (act.who, act.verb, act.kind, act.count) == ("ada", "retry", "jobs", 2)
    assert (act.scope, act.reply) == (f"ticked: {shop.failed} {shop.hostile}", "2 jobs are ready again.")


async def test_a_page_asks_and_names_the_jobs_where_there_is_no_script(shop: Shop, dashboard: Dashboard) -> None:
    asked = await press(dashboard, "delete", shop.failed, shop.hostile, sure=False)
    assert asked.status == 200
    assert "Delete 2 jobs?" in asked.text
    assert "cannot be undone" in asked.text
    assert f"/jobs/{shop.hostile}" in asked.text
    assert shop.app.job(shop.failed).state == "failed"
    fields = [
        (one["name"], one["value"]) for tag, one in asked.elements
        if tag == "input" and one.get("type") == "hidden" and one["name"] in ("id", "list", "sure")
    ]  # fmt: skip
    answer = await ask(dashboard, "/jobs/ticked/act/delete", form=fields)
    assert said(answer) == "2 jobs are deleted."
    assert (await ask(dashboard, f"/jobs/{shop.failed}")).status == 404


async def test_one_that_refuses_stops_no_other_and_says_why(shop: Shop, dashboard: Dashboard) -> None:
    told = said(await press(dashboard, "retry", shop.done, shop.waiting, "0" * 21))
    assert told.startswith("1 job is ready again, 2 refused (")
    assert f"{shop.waiting} is ready: only a job that has ended can be retried" in told
    told = said(await press(dashboard, "cancel", shop.waiting, shop.failed))
    assert told == f"1 job is cancelled, 1 refused (job {shop.failed} had ended already: failed)."


async def test_a_ticked_node_leads_to_its_workflow_and_the_others_are_done(shop: Shop, dashboard: Dashboard) -> None:
    (node,) = (job.id for job in shop.app.jobs.page("failed", task="shop.sign") if job.id != shop.failed)
    page = await press(dashboard, "retry", shop.failed, node)
    assert (page.status, shop.app.job(shop.failed).state) == (200, "failed")
    assert "Retry 1 job?" in page.text
    actions = {one.get("action") for tag, one in page.elements if tag == "form"}
    assert f"/workflows/{shop.flow}/act/retry" in actions
    assert [one["value"] for tag, one in page.elements if tag == "input" and one.get("name") == "id"] == [shop.failed]
    assert said(await press(dashboard, "retry", shop.failed)) == "1 job is ready again."
    assert (await ask(dashboard, f"/workflows/{shop.flow}/act/retry", form={})).status == 303
    assert shop.app.job(node).state == "ready"


async def test_a_node_that_failed_has_a_button_for_its_workflow(shop: Shop, dashboard: Dashboard) -> None:
    (node,) = (job.id for job in shop.app.jobs.page("failed", task="shop.sign") if job.id != shop.failed)
    page = await ask(dashboard, f"/jobs/{node}")
    assert f"/workflows/{shop.flow}/act/retry" in {one.get("action") for tag, one in page.elements if tag == "form"}


@pytest.mark.parametrize(
    ("state", "verbs"),
    [("failed", {"retry", "delete"}), ("ready", {"cancel", "delete"}), ("scheduled", {"cancel", "delete"})],
)
async def test_a_list_offers_what_its_state_allows(
    shop: Shop, dashboard: Dashboard, state: str, verbs: set[str]
) -> None:
    page = await ask(dashboard, f"/jobs?state={state}")
    offered = {one["formaction"] for tag, one in page.elements if tag == "button" and "formaction" in one}
    assert offered == {f"/jobs/ticked/act/{verb}" for verb in verbs}


async def test_what_no_form_of_ours_sends_is_refused(shop: Shop, dashboard: Dashboard) -> None:
    assert (await press(dashboard, "retry")).status == 400
    assert (await press(dashboard, "retry", *(f"{n:022}" for n in range(51)))).status == 400
    assert (await press(dashboard, "purge", shop.failed)).status == 404
    assert (await press(dashboard, "retry", "<b>", sure=False)).status == 400
    # It leads to a list of jobs, whatever it was sent.
    answer = await press(dashboard, "retry", shop.failed, back="\r\nset-cookie: a=b")
    assert answer.headers["location"].startswith("/jobs?")
    assert "\n" not in answer.headers["location"]
    assert shop.app.job(shop.failed).state == "ready"


async def test_only_operators_tick(shop: Shop) -> None:
    looking = Dashboard(shop.app, viewer)
    assert "checkbox" not in (await ask(looking, "/jobs?state=failed")).text
    assert (await press(looking, "retry", shop.failed)).status == 403
    for path in ("/bulk", "/jobs/new"):
        assert (await ask(looking, path, form={})).status == 403
    acts = shop.app.acts.page()
    assert [(act.verb, act.kind, act.name) for act in acts] == [
        ("enqueue", "jobs", ""), ("bulk", "jobs", ""), ("retry", "jobs", ""),
    ]  # fmt: skip
    assert {act.reply for act in acts} == {"refused: Only operators may do this."}
    assert (await press(Dashboard(shop.app, operator, read_only=True), "retry", shop.failed)).status == 403
    assert shop.app.job(shop.failed).state == "failed"


async def test_a_move_changes_queue_priority_and_time(shop: Shop, dashboard: Dashboard) -> None:
    path = f"/jobs/{shop.waiting}/act/move"
    assert "Move" in (await ask(dashboard, f"/jobs/{shop.waiting}")).text
    assert (
        said(await ask(dashboard, path, form={"queue": "slow", "priority": "-5", "minutes": ""}))
        == "The job is ready now."
    )
    record = shop.app.job(shop.waiting).refresh()
    assert (record.queue, record.priority) == ("slow", -5)
    assert said(await ask(dashboard, path, form={"minutes": "5"})) == "The job is scheduled anew."
    page = await ask(dashboard, f"/jobs/{shop.waiting}")
    assert "Start now" in page.text
    assert said(await ask(dashboard, path, form={"minutes": "0"})) == "The job is ready now."
    assert "Nothing was done" in said(await ask(dashboard, path, form={}))
    assert "Nothing was done" in said(await ask(dashboard, path, form={"priority": "101"}))
    assert "is failed" in said(await ask(dashboard, f"/jobs/{shop.failed}/act/move", form={"queue": "x"}))
    for wrong in ({"minutes": "soon"}, {"priority": "nan"}, {"priority": "1.5"}, {"minutes": "inf"}):
        assert (await ask(dashboard, path, form=wrong)).status == 400
    assert "Move" not in (await ask(Dashboard(shop.app, viewer), f"/jobs/{shop.waiting}")).text
