"""Verbs on many workflows: those that are ticked in a list, and all of a filter."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from headrace.dashboard import Dashboard, flow_pages
from tests.dashboard.asking import Answer, ask, fields, operator, viewer
from tests.dashboard.conftest import Shop


@pytest.fixture
def dashboard(empty: Shop) -> Dashboard:
    return Dashboard(empty.app, operator)


def said(answer: Answer) -> str:
    assert answer.status == 303, answer.text
    return unquote(answer.cookies["headrace_said"].strip('"'))


async def test_ticked_workflows_are_stopped_and_others_are_not(empty: Shop, dashboard: Dashboard) -> None:
    runs = [empty.order.create(n) for n in range(3)]
    for run in runs:
        run.start()
    page = await ask(dashboard, "/workflows?state=running")
    assert "Stop all 3…" in page.text
    ticked = [("id", run.id) for run in runs[:2]]
    asked = await ask(dashboard, "/workflows/ticked/act/stop", form=[*ticked, ("state", "running")])
    assert (asked.status, "Stop 2 workflows?" in asked.text) == (200, True)
    assert [run.state for run in runs] == ["running"] * 3
    form = [(one["name"], one["value"]) for tag, one in asked.elements if tag == "input" and "value" in one]
    answer = await ask(dashboard, "/workflows/ticked/act/stop", form=[pair for pair in form if pair[0] != "theme"])
    assert said(answer) == "2 workflows: each is stopped."
    assert answer.headers["location"] == "/workflows?state=running"
    assert [run.state for run in runs] == ["stopped", "stopped", "running"]
    (act,) = empty.app.acts.page()
    assert (act.who, act.verb, act.kind, act.count) == ("ada", "stop", "workflows", 2)


async def test_all_of_a_filter_are_those_that_were_there_at_the_question(
    empty: Shop, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_pages, "MANY", 1)
    first = [empty.order.create(n) for n in range(2)]
    for run in first:
        run.stop()
    asked = await ask(dashboard, "/workflows/bulk/delete?state=stopped")
    assert "Delete 2 stopped workflows?" in asked.text
    later = empty.order.create(3)
    later.stop()
    refused = await ask(dashboard, "/workflows/ticked/act/delete", form=fields(asked))
    assert (refused.status, empty.app.workflows.count()) == (400, 3)
    answer = await ask(dashboard, "/workflows/ticked/act/delete", form={**fields(asked), "typed": "2"})
    assert said(answer) == "2 workflows: each is deleted."
    assert [one.id for one in empty.app.workflows.page()] == [later.id]


async def test_only_operators_have_verbs_on_many_workflows(empty: Shop) -> None:
    run = empty.order.create(1)
    run.start()
    looking = Dashboard(empty.app, viewer)
    assert "tickbar" not in (await ask(looking, "/workflows?state=running")).text
    form = [("id", run.id), ("sure", "1")]
    for one in (looking, Dashboard(empty.app, operator, read_only=True)):
        assert (await ask(one, "/workflows/ticked/act/stop", form=form)).status in (403, 404)
    assert run.state == "running"
    missing = await ask(Dashboard(empty.app, operator), "/workflows/ticked/act/stop", form=[("id", "?"), ("sure", "1")])
    assert said(missing).startswith("Nothing was done. 1 refused:")
    wrong = ("/workflows/bulk/retry?state=running", "/workflows/bulk/start?state=failed", "/workflows/bulk/stop")
    assert [(await ask(Dashboard(empty.app, operator), path)).status for path in wrong] == [404] * 3
