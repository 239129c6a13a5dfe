"""What a cause tells: whom its failures are about, on the page of causes and on that of the task."""

from __future__ import annotations

import json
import re
import time

from headrace.dashboard import Dashboard
from headrace.testing import Kit
from tests.dashboard.asking import ask, operator, viewer
from tests.dashboard.conftest import CANARY, Shop


async def test_a_cause_names_what_its_failures_share(empty: Shop, kit: Kit) -> None:
    for n in range(3):
        empty.show.options(headers={"tenant": "acme", "parcel": str(n)}).enqueue("the same text")
    await kit.adrain(raises=False)
    page = (await ask(Dashboard(empty.app, operator), "/causes")).text
    assert "all with" in page
    assert "tenant=&#34;acme&#34;" in page
    assert "text=&#34;the same text&#34;" in page
    assert "parcel=" not in page


async def test_what_failures_share_is_hidden_as_elsewhere(empty: Shop, kit: Kit) -> None:
    for _ in range(3):
        empty.sign.enqueue(CANARY, {"token": CANARY, "city": "Oslo"})
    await kit.adrain(raises=False)
    page = (await ask(Dashboard(empty.app, operator), "/causes")).text
    assert "Oslo" in page
    assert CANARY not in page


async def test_many_failures_of_one_cause_hide_no_other(empty: Shop, kit: Kit) -> None:
    for n in range(5):
        empty.sign.enqueue("x", {"token": str(n)})
    empty.show.enqueue("other")
    await kit.adrain(raises=False)
    empty.app.enqueue_many(empty.show.job("the flood") for _ in range(700))
    await kit.adrain(raises=False)
    dashboard = Dashboard(empty.app, operator)
    found = json.loads((await ask(dashboard, "/causes.json")).text)
    assert [(one["task"], one["number"]) for one in found["causes"]] == [("shop.show", 701), ("shop.sign", 5)]
    found = json.loads((await ask(dashboard, "/causes.json?task=shop.sign")).text)
    assert [one["number"] for one in found["causes"]] == [5]


async def test_a_cause_whose_failures_were_retried_stays_without_a_link(empty: Shop, kit: Kit) -> None:
    job = empty.show.enqueue("<b>once</b>")
    await kit.adrain(raises=False)
    job.retry()
    page = await ask(Dashboard(empty.app, operator), "/causes")
    assert "&lt;b&gt;once&lt;/b&gt;" in page.text
    assert "retried or deleted" in page.text
    assert not any("bulk/new" in link for link in page.links())


async def test_two_failures_share_nothing_worth_telling(empty: Shop, kit: Kit) -> None:
    for _ in range(2):
        empty.show.enqueue("the same text")
    await kit.adrain(raises=False)
    assert "all with" not in (await ask(Dashboard(empty.app, operator), "/causes")).text


async def test_the_page_of_a_task_that_fails_has_its_causes(empty: Shop, kit: Kit) -> None:
    for _ in range(3):
        empty.show.enqueue("the same text")
    await kit.adrain(raises=False)
    empty.app.stats.absorb("jobs/shop.show", {"started": 3, "failed": 3}, time.time() - 60)
    empty.app.stats.flush()
    page = await ask(Dashboard(empty.app, operator), "/tasks/shop.show")
    assert page.status == 200
    assert "RuntimeError: the same text" in page.text
    (more,) = [one for one in page.links() if one.startswith("/bulk/new")]
    assert "Retry 3 jobs?" in (await ask(Dashboard(empty.app, operator), more)).text
    assert "/bulk/new" not in (await ask(Dashboard(empty.app, viewer), "/tasks/shop.show")).text


async def test_the_list_of_tasks_has_the_last_cause_of_each(empty: Shop, kit: Kit) -> None:
    for text in ("the first text", "<b>the last text</b>"):
        empty.show.enqueue(text)
        await kit.adrain(raises=False)
    for task in ("shop.show", "shop.add"):
        empty.app.stats.absorb(f"jobs/{task}", {"started": 3, "failed": 1}, time.time() - 60)
    empty.app.stats.flush()
    page = (await ask(Dashboard(empty.app, viewer), "/tasks")).text
    assert "RuntimeError: &lt;b&gt;the last text&lt;/b&gt;" in page
    assert "the first text" not in page
    rows = {
        one["name"]: one for one in json.loads((await ask(Dashboard(empty.app, viewer), "/tasks.json")).text)["tasks"]
    }
    assert rows["shop.show"]["last_cause"]["error"] == "RuntimeError: <b>the last text</b>"
    assert rows["shop.add"]["last_cause"] is None


async def test_the_list_of_queues_says_when_a_pause_ends(empty: Shop) -> None:
    empty.app.queues["mail"].pause(3600)
    assert re.search(r"paused, resumes <time[^>]*>in 60 min", (await ask(Dashboard(empty.app, viewer), "/queues")).text)
