"""Needs are grouped, and a person acknowledges one. Under the title of a page stands why its jobs wait, with the remedy as a link or a button that works."""

from __future__ import annotations

import json
import re
import time

import pytest

from headrace import Flow, Headrace
from headrace.dashboard import Dashboard
from headrace.model.job import Outcome
from headrace.protocol import consume
from headrace.testing import Kit
from headrace.testing.kit_store import DrainError
from tests.dashboard.asking import Answer, ask, operator, viewer
from tests.dashboard.conftest import Shop

HOUR = 3_600_000_000


def worker(app: Headrace, *facts: str, tasks: dict[str, str], owner: str = "w1", queues: str = "mail,default") -> None:
    told = ["place", f"host:{owner}", "queues", queues, "sizes", "process:1", *facts]
    app.client.run(consume.register(app.client.keys, owner, HOUR, told, tasks=tasks))


def remedies(page: Answer) -> list[str]:
    """The paths of the forms that end in a verb."""
    return [one["action"] for tag, one in page.elements if tag == "form" and "/act/" in one.get("action", "")]


async def test_a_paused_queue_has_its_reason_and_one_button_that_mends_it(shop: Shop) -> None:
    shop.app.queues["mail"].pause(note="the mail host is down")
    page = await ask(Dashboard(shop.app, operator), "/queues/mail")
    assert ">Why its next job waits</a>:</b> queue mail is paused (the mail host is down).</p>" in page.text
    assert "headrace queues resume" not in page.text
    assert remedies(page)[0] == "/queues/mail/act/resume"
    # A viewer cannot press: the words name the command.
    page = await ask(Dashboard(shop.app, viewer), "/queues/mail")
    assert "headrace queues resume mail lets its jobs start" in page.text
    assert remedies(page) == []


async def test_a_job_behind_a_paused_limit_leads_to_its_end(shop: Shop) -> None:
    worker(shop.app, tasks={"shop.add": "process", "shop.charge": "process"})
    shop.app.limits["shop.customer"].pause("globex")
    dashboard = Dashboard(shop.app, operator)
    job = next(one for one in shop.app.jobs.page("ready", task="shop.charge") if "globex" in str(one.arguments))
    page = await ask(dashboard, f"/jobs/{job.id}")
    assert "limit shop.customer of globex is paused" in page.text
    assert "/limits/shop.customer/act/resume" in remedies(page)
    await ask(dashboard, "/limits/shop.customer/act/resume", form={"value": "globex"})
    assert "is paused" not in (await ask(Dashboard(shop.app, operator), f"/jobs/{job.id}")).text


async def test_a_task_says_why_its_first_job_waits_and_why_it_fails(shop: Shop) -> None:
    page = await ask(Dashboard(shop.app, operator), "/tasks/shop.charge")
    assert ">Why its next job waits</a>:</b> no worker lives" in page.text
    assert 'href="/workers">Show the workers' in page.text
    shop.app.stats.absorb("jobs/shop.sign", {"started": 2, "failed": 2}, time.time() - 60)
    shop.app.stats.flush()
    page = await ask(Dashboard(shop.app, operator), "/tasks/shop.sign")
    assert "Why it fails:</b> 100 % of its starts fail, the last with ValueError: no: token=***.</p>" in page.text
    assert 'href="/causes?task=shop.sign">Show the causes' in page.text


async def test_a_task_that_no_worker_knows_says_it(shop: Shop) -> None:
    worker(shop.app, tasks={"shop.charge": "process"}, queues="old")
    shop.app.by_name("shop.gone", queue="old").enqueue(1)
    client = shop.app.client
    (one,) = client.run(consume.claim(client.keys, "w1", 1, 1, ["old"])).jobs
    rows = [(Outcome(one.id, one.token, "parked", b"", HOUR), one.ready)]
    client.run(consume.settle(client.keys, "w1", 2, rows, HOUR))
    page = await ask(Dashboard(shop.app, operator), "/tasks/shop.gone")
    assert "knows the task shop.gone" in page.text
    assert "deploy its code to a worker that serves its queue" in page.text


async def test_a_workflow_says_why_its_first_node_waits(shop: Shop) -> None:
    run = shop.order.create(5)
    page = await ask(Dashboard(shop.app, operator), f"/workflows/{run.id}")
    assert f"</a>:</b> its workflow {run.id} is not started.</p>" in page.text
    assert f"/workflows/{run.id}/act/start" in remedies(page)


async def test_a_limit_that_is_paused_has_its_end_under_its_title(shop: Shop) -> None:
    shop.app.limits["shop.api"].pause()
    page = await ask(Dashboard(shop.app, operator), "/limits/shop.api")
    assert remedies(page)[0] == "/limits/shop.api/act/resume"


async def test_a_worker_says_what_keeps_it_from_starting_jobs(shop: Shop) -> None:
    runner = {"kind": "process", "pid": 7, "job": shop.waiting, "task": "shop.add", "since": 1}
    worker(shop.app, "busy", "process:1", "runner_facts", json.dumps([runner]), tasks={"shop.add": "process"})
    page = await ask(Dashboard(shop.app, operator), "/workers/w1")
    assert "all process runners are busy; the longest runs shop.add for" in page.text
    assert f'href="/jobs/{shop.waiting}">Show the longest job' in page.text
    worker(shop.app, owner="w2", tasks={})
    shop.app.queues["mail"].pause()
    shop.app.queues["default"].pause()
    page = await ask(Dashboard(shop.app, operator), "/workers/w2")
    assert "3 jobs wait in queue default, which is paused" in page.text
    assert "/queues/default/act/resume" in remedies(page)


async def test_a_need_is_folded_away_when_a_person_acknowledges_it(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    page = await ask(dashboard, "/")
    assert "2 things need you" in page.text
    form, _ = [path for path in remedies(page) if path.startswith("/needs/")]
    answer = await ask(dashboard, form, form={})
    assert (answer.status, answer.headers["location"]) == (303, "/")
    page = await ask(dashboard, "/")
    assert "1 thing needs you" in page.text
    assert "<summary>1 more, 1 acknowledged</summary>" in page.text
    assert "Acknowledged by ada." in page.text
    assert (await ask(dashboard, "/needs/nothing/act/acknowledge", form={})).status == 400
    assert [path for path in remedies(await ask(Dashboard(shop.app, viewer), "/")) if "needs" in path] == []


async def test_a_broken_node_of_many_is_first_on_its_page_and_in_its_graph(empty: Shop, kit: Kit) -> None:
    @empty.app.task(name="shop.part", retries=0)
    def part(number: int) -> None:
        if number == 1150:
            raise ValueError("this part is empty")

    @empty.app.workflow(name="shop.parts")
    def parts(flow: Flow) -> None:
        first = flow.run(empty.add, 1)
        for number in range(1200):
            flow.run(part, number, after=first)

    run = parts.create()
    run.start()
    await kit.adrain(raises=False, limit=2000)
    dashboard = Dashboard(empty.app, operator)
    page = await ask(dashboard, f"/workflows/{run.id}")
    (job,) = empty.app.jobs.page("failed")
    first = page.text.index(f'href="/jobs/{job.id}">')
    assert "Failed first:</b>" in page.text[first - 40 : first]
    assert "ValueError: this part is empty" in page.text[first : first + 200]
    bars = page.text.partition('id="timeline"')[2].partition("</section>")[0]
    # Alike nodes are one bar, as in the graph.
    assert bars.count("<li>") < 5
    assert "s-failed" in bars


async def test_a_timeline_draws_what_waits(empty: Shop) -> None:
    run = empty.order.create(1)
    run.start()
    page = await ask(Dashboard(empty.app, operator), f"/workflows/{run.id}")
    bars = page.text.partition('id="timeline"')[2].partition("</section>")[0]
    assert bars.count("<li>") == 1
    assert '<span class="n">ready</span>' in bars


async def test_a_timeline_begins_with_what_began_beside_what_waits(empty: Shop, kit: Kit) -> None:
    run = empty.order.create(1)
    run.start()
    with pytest.raises(DrainError, match="jobs are left: 1 ready"):
        await kit.adrain(limit=1)
    page = await ask(Dashboard(empty.app, operator), f"/workflows/{run.id}")
    timeline = page.text.partition('id="timeline"')[2].partition("</section>")[0]
    bars = re.findall(
        r'<svg class="s-(\w+)".*?<rect class="waits" x="([\d.]+)".*?<rect x="([\d.]+)" y="1"', timeline, re.DOTALL
    )
    assert [state for state, *_ in bars] == ["succeeded", "ready"]
    assert float(bars[0][1]) == 0
    assert 0 < float(bars[1][1]) < 100
