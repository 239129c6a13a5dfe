"""Every page: whole, escaped, within its prefix, without secrets, and at a cost that does not grow."""

from __future__ import annotations

import asyncio
import json
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

import headrace.dashboard
from headrace import Flow, Headrace
from headrace.admin.alarms import look_at_alarms
from headrace.dashboard import Dashboard, Visitor, dashboard_site
from headrace.dashboard.dashboard_site import NAVIGATION
from headrace.dashboard.mounting import PAGES
from headrace.dashboard.values_shown import has_rows
from headrace.model.job_record import cause_id
from headrace.protocol import consume
from headrace.stats.resolutions import bucket_of
from headrace.testing import Kit
from tests.dashboard.asking import Answer, ask, operator, viewer
from tests.dashboard.conftest import CANARY, HOSTILE, LONG, WHOLE, Shop
from tests.servers import Server, connect

PLACE = Path(headrace.dashboard.__file__).parent
TEMPLATES = sorted((PLACE / "templates").glob("*.html"))
# A confirmation needs to know of which verb.
LISTS = [path for path in PAGES if "{" not in path and path != "/bulk/new"]
ASSET = re.compile(r"/static/")


def pages(shop: Shop) -> list[str]:
    ids = [shop.failed, shop.done, shop.waiting, shop.hostile]
    found = [*LISTS, *(f"/jobs/{id}" for id in ids if id), "/queues/mail", "/tasks/shop.add"]
    found += [f"/jobs?state={state}" for state in ("ready", "failed", "succeeded", "scheduled", "parked", "blocked")]
    found += [f"/schedules/shop.{name}" for name in ("nightly", "often") if shop.flow]
    found += [f"/limits/shop.{name}" for name in ("api", "customer") if shop.flow]
    found += [f"/activity?show={show}" for show in ("acts", "events", "failures", "nothing")]
    found += [f"/jobs/{shop.failed}/again", f"/jobs/{shop.hostile}/again"] if shop.failed else []
    found += ["/queues?after="]
    if shop.wide:
        found += [f"/{kind}/{name}" for kind in ("queues", "tasks", "schedules") for name in (LONG, WHOLE)]
        found += [f"/jobs/{shop.deep}", f"/jobs/{shop.deep}/again", f"/workflows/{shop.wide}"]
        found += ["/workers/w0", f"/cache?tag={LONG}"]
    found += ["/bulk/new?verb=retry&state=failed", "/bulk/new?verb=delete&state=scheduled&task=nothing"]
    found += ["/workflows/bulk/retry?state=failed"]
    return [*found, "/?span=1y", "/jobs?q=task:shop.sign+no", *([f"/workflows/{shop.flow}"] if shop.flow else [])]


def check(answer: Answer, path: str) -> None:
    """No element of a page comes from a job's text, and none carries script or style of its own."""
    assert answer.status == 200, (path, answer.text[:300])
    for tag, attributes in answer.elements:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}, (path, tag, attributes)
        assert tag != "script" or ASSET.search(attributes["src"]), path
        assert tag not in ("img", "iframe", "style", "object", "u", "i"), (path, tag)


@pytest.mark.parametrize("root", ["", "/a", "/a/b"])
async def test_every_page_is_whole_and_every_link_on_it_leads_somewhere(shop: Shop, root: str) -> None:
    dashboard = Dashboard(shop.app, operator)
    links = set[str]()
    for path in pages(shop):
        answer = await ask(dashboard, path, root=root)
        check(answer, path)
        links |= {link for link in answer.links() if not link.startswith(("#", "?", "data:"))}
    assert [link for link in links if not link.startswith(f"{root}/")] == []
    for link in links:
        if "/act/" not in link and not link.endswith(("/theme", "/logout")):
            assert (await ask(dashboard, link.removeprefix(root), root=root)).status == 200, link


async def test_every_list_of_an_empty_store_says_what_to_do_next(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, operator)
    for path in LISTS:
        answer = await ask(dashboard, path)
        check(answer, path)
        assert path in ("/store", "/cache", "/jobs/new") or "empty" in answer.text, path


async def test_a_page_with_rows_leads_to_them(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    for path in LISTS:
        answer = await ask(dashboard, f"{'/overview' if path == '/' else path}.csv")
        assert answer.status == (200 if has_rows(path) else 404), path


def test_the_guide_lists_each_page_of_the_navigation(root: Path) -> None:
    listed = set(re.findall(r"^\| (\w+) \|", (root / "docs" / "dashboard.md").read_text(), re.MULTILINE))
    assert {entry.word for entry in NAVIGATION} - listed == set()


async def test_hostile_texts_stay_texts(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    page = await ask(dashboard, f"/jobs/{shop.hostile}")
    check(page, "job")
    assert "&lt;script&gt;alert(&#39;x&#39;)" in page.text
    assert "&lt;i&gt;key&lt;/i&gt;" in page.text
    for path in (f"/jobs?q={HOSTILE[:20]}", "/jobs?task=%3Cscript%3E", "/tasks/%3Cscript%3E", "/queues/%22%3E%3Cb%3E",
                 "/workers/%3Cscript%3E", "/nothing%3Cscript%3E", "/jobs/%3Cscript%3E", "/tasks/%3Cimg%20src%3E"):  # fmt: skip
        answer = await ask(dashboard, path)
        assert answer.status in (200, 400, 404), path
        assert "<script>" not in answer.text, path
        assert "<img" not in answer.text, path


async def test_a_secret_is_on_no_page(shop: Shop) -> None:
    for authorize in (operator, viewer):
        dashboard = Dashboard(shop.app, authorize)
        for path in pages(shop):
            assert CANARY not in (await ask(dashboard, path)).text, path
        # What is hidden cannot be found by guessing either.
        assert shop.failed not in (await ask(dashboard, f"/jobs?state=failed&q={CANARY}")).text


async def test_every_page_is_there_as_json_without_secrets(shop: Shop) -> None:
    for authorize in (operator, viewer):
        dashboard = Dashboard(shop.app, authorize)
        for path in pages(shop):
            place, _, query = path.partition("?")
            asked = f"{'/overview' if place == '/' else place}.json" + (f"?{query}" if query else "")
            answer = await ask(dashboard, asked)
            assert answer.status == 200, asked
            assert answer.headers["content-type"] == "application/json"
            assert isinstance(json.loads(answer.text), dict), asked
            assert CANARY not in answer.text, asked
    job = json.loads((await ask(dashboard, f"/jobs/{shop.hostile}.json")).text)
    assert (job["state"], job["error"]["type"]) == ("failed", "RuntimeError")
    assert job["kwargs"]["text"].startswith("<script>")
    missing = await ask(dashboard, "/jobs/0000000000000000000000.json")
    assert (missing.status, list(json.loads(missing.text))) == (404, ["error"])


async def test_a_queue_may_have_a_name_that_ends_as_documents_do(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, operator)
    empty.add.options(queue="a.json").enqueue(1)
    (link,) = {link for link in (await ask(dashboard, "/queues")).links() if link.startswith("/queues/")}
    assert "<h1>a.<wbr>json" in (await ask(dashboard, link)).text
    assert json.loads((await ask(dashboard, link + ".json")).text)["name"] == "a.json"


async def test_a_page_costs_the_same_with_ten_jobs_and_with_thousands(empty: Shop, client: redis.Redis) -> None:
    def commands() -> int:
        stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))

    async def costs() -> dict[str, int]:
        found = {}
        for path in LISTS:
            dashboard = Dashboard(empty.app, operator)
            await ask(dashboard, path)
            before = commands()
            # Another one: what tabs share must not hide what a page costs.
            await ask(Dashboard(empty.app, operator), path)
            found[path] = commands() - before
        return found

    empty.app.enqueue_many(empty.add.job(n) for n in range(10))
    few = await costs()
    empty.app.enqueue_many(empty.add.job(n) for n in range(5000))
    assert await costs() == few
    assert max(few.values()) <= 13


async def test_pages_and_files_are_small(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    first = await ask(dashboard, "/")
    assert len(first.text) < 60_000
    assert (PLACE / "static" / "live.js").stat().st_size < 12_000
    assert (PLACE / "static" / "live.js").read_text().count("\n") <= 300
    assert sum(path.stat().st_size for path in (PLACE / "static").glob("*.css")) < 25_000


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_switches_escaping_off(template: Path) -> None:
    text = template.read_text()
    assert re.search(r"\|\s*safe|autoescape|\sstyle=|\son\w+=|<script(?! type=\"module\" src)", text) is None


async def test_a_search_takes_words_for_states_queues_and_tasks(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    page = await ask(dashboard, "/jobs?q=state:failed+task:shop.sign")
    assert shop.failed in page.text
    assert shop.hostile not in page.text
    assert shop.hostile in (await ask(dashboard, "/jobs?q=state:failed+alert")).text
    opened = await ask(dashboard, f"/jobs?q={shop.failed}")
    assert (opened.status, opened.headers["location"]) == (303, f"/jobs/{shop.failed}")
    assert (await ask(dashboard, f"/jobs?q={shop.flow}")).headers["location"] == f"/workflows/{shop.flow}"


def ids_of(answer: Answer) -> list[str]:
    return [attributes["data-id"] for tag, attributes in answer.elements if tag == "tr" and "data-id" in attributes]


def link_of(answer: Answer, rel: str) -> str:
    return next(
        attributes["href"] for tag, attributes in answer.elements if tag == "a" and attributes.get("rel") == rel
    )


async def test_a_list_goes_on_and_back_without_a_gap(empty: Shop) -> None:
    jobs = [empty.add.options(delay=3600 + n).enqueue(n).id for n in range(120)][::-1]
    dashboard = Dashboard(empty.app, operator)
    pages = [await ask(dashboard, "/jobs?state=scheduled")]
    for _ in range(2):
        pages.append(await ask(dashboard, link_of(pages[-1], "next")))
    assert [id for page in pages for id in ids_of(page)] == jobs
    back = await ask(dashboard, link_of(pages[-1], "prev"))
    assert ids_of(back) == ids_of(pages[1])
    assert ids_of(await ask(dashboard, link_of(back, "next"))) == ids_of(pages[2])
    assert ids_of(await ask(dashboard, link_of(back, "prev"))) == ids_of(pages[0])
    assert (await ask(dashboard, "/jobs?after=nonsense")).status == 400


async def test_jobs_are_found_by_their_cause_and_time(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    record = shop.app.job(shop.failed).refresh()
    for words in ("error:ValueError", f"cause:{cause_id(record.task, record.error)}"):
        found = ids_of(await ask(dashboard, f"/jobs?q=state:failed+{words}"))
        assert shop.failed in found
        assert shop.hostile not in found
    assert shop.hostile in ids_of(await ask(dashboard, "/jobs?state=failed&error=RuntimeError&since=1h"))
    assert ids_of(await ask(dashboard, "/jobs?state=failed&until=1h")) == []
    assert ids_of(await ask(dashboard, "/jobs?state=failed&since=2026-01-01T00:00")) != []
    assert (await ask(dashboard, "/jobs?state=failed&since=yesterday")).status == 400
    assert (await ask(dashboard, "/jobs?state=failed&since=999999d")).status == 400


async def test_a_list_fetches_no_large_arguments(empty: Shop, client: redis.Redis) -> None:
    id = empty.show.enqueue("x" * 900_000).id
    dashboard = Dashboard(empty.app, operator)
    await ask(dashboard, "/jobs?state=ready")
    before: int = client.info("stats")["total_net_output_bytes"]
    page = await ask(Dashboard(empty.app, operator), "/jobs?state=ready")
    assert ids_of(page) == [id]
    assert "879 KiB of arguments" in page.text
    assert client.info("stats")["total_net_output_bytes"] - before < 100_000
    assert (await ask(dashboard, "/queues/default")).status == 200
    whole = json.loads((await ask(dashboard, f"/jobs/{id}.json")).text)
    assert len(whole["kwargs"]["text"]) == 900_000


async def test_a_refresh_repeats_no_search(shop: Shop, client: redis.Redis) -> None:
    poll = {"x-headrace-poll": "1"}
    dashboard = Dashboard(shop.app, operator)
    assert "data-rows" in (await ask(dashboard, "/jobs?state=failed", headers=poll)).text
    assert ids_of(await ask(dashboard, "/jobs?state=failed&q=alert")) == [shop.hostile]
    polled = await ask(dashboard, "/jobs?state=failed&q=alert", headers=poll)
    assert (ids_of(polled), "data-rows" in polled.text, "data-live" in polled.text) == ([], False, True)


async def test_bytes_are_told_by_their_size_and_whole_in_the_document(empty: Shop) -> None:
    id = empty.app.by_name("other.store").enqueue(b"\x00\x01" * 200).id
    dashboard = Dashboard(empty.app, operator)
    for path in (f"/jobs/{id}", "/jobs?state=ready"):
        assert "400 B of bytes: 00 01 00 01" in (await ask(dashboard, path)).text, path
    assert "AAEAAQAB" in (await ask(dashboard, f"/jobs/{id}.json")).text
    assert "AAEAAQAB" in (await ask(dashboard, f"/jobs/{id}/again")).text


async def test_a_job_that_waits_says_why(shop: Shop) -> None:
    page = await ask(Dashboard(shop.app, operator), f"/jobs/{shop.waiting}")
    assert "Why it waits:" in page.text
    assert "no worker lives" in page.text


async def test_a_list_says_that_it_goes_from_queue_to_queue(shop: Shop) -> None:
    assert (
        "ready jobs, queue by queue, newest first"
        in (await ask(Dashboard(shop.app, operator), "/jobs?state=ready")).text
    )


async def test_a_viewer_sees_no_argument_whose_name_is_not_known(shop: Shop) -> None:
    stranger = Headrace(settings=shop.app.settings)
    try:
        job = f"/jobs/{shop.done}"
        assert "<code>1</code>" in (await ask(Dashboard(stranger, operator), job)).text
        assert "<code>1</code>" not in (await ask(Dashboard(stranger, viewer), job)).text
        assert "<code>int</code>" in (await ask(Dashboard(stranger, viewer), job)).text
    finally:
        await stranger.aclose()


async def test_failures_of_one_fingerprint_are_one_cause(empty: Shop, kit: Kit) -> None:
    for n in range(7):
        empty.sign.enqueue("x", {"token": str(n)})
    empty.show.enqueue("other")
    await kit.adrain(raises=False)
    page = await ask(Dashboard(empty.app, operator), "/causes")
    rows = [tag for tag, _ in page.elements].count("tr") - 1
    assert rows == 2
    assert ">7</a>" in page.text


async def test_the_graph_of_a_workflow_has_a_link_for_each_job(shop: Shop) -> None:
    pytest.importorskip("pygraphviz")
    graph = await graph_of(Dashboard(shop.app, operator), f"/workflows/{shop.flow}")
    assert len(re.findall(r'<a href="/jobs/\w{21}"', graph)) == 3
    assert "s-failed" in graph
    assert 'fill="#ffffff"' not in graph.partition("</defs>")[2][:100]


async def test_a_schedule_shows_its_next_times_in_its_zone_and_its_last_ticks(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    nightly = await ask(dashboard, "/schedules/shop.nightly")
    assert len(re.findall(r"03:00:00 CES?T", nightly.text)) == 5
    (tick,) = shop.app.schedules["shop.nightly"].ticks()
    assert tick.what == "ran"
    assert f'href="/jobs/{tick.text}"' in nightly.text
    paused = await ask(dashboard, "/schedules/shop.often")
    assert "&lt;b&gt;for&lt;/b&gt; the sale" in paused.text
    assert "every 5 min" in paused.text
    assert (await ask(dashboard, "/schedules/nothing")).status == 404


async def test_a_schedule_counts_ticks_without_a_job(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    assert "Ticks without a job" not in (await ask(dashboard, "/schedules/shop.nightly")).text
    # The job of the first run is at work.
    shop.app.schedules["shop.nightly"].run()
    nightly = await ask(dashboard, "/schedules/shop.nightly")
    assert re.search(r"<dt>Ticks without a job</dt>\s*<dd>1 skipped</dd>", nightly.text)


async def test_a_limit_shows_its_numbers_and_what_waits_for_each_value(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    shop.app.limits["shop.customer"].pause("globex", 600)
    page = await ask(dashboard, "/limits/shop.customer")
    assert "1 at once for each value of customer" in page.text
    assert "&lt;b&gt;acme&lt;/b&gt;" in page.text
    assert "paused, resumes" in page.text
    assert 'href="/tasks/shop.charge"' in page.text
    assert "5 per 1 s, 2 at once" in (await ask(dashboard, "/limits")).text
    assert (await ask(dashboard, "/limits/nothing")).status == 404


async def test_cached_values_are_listed_and_filtered_by_tag(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    assert "1 of 1" in (await ask(dashboard, "/cache")).text
    assert "/cache/price-7/act/delete" in (await ask(dashboard, "/cache?tag=prices")).text
    assert "/cache/price-7/act/delete" not in (await ask(dashboard, "/cache?tag=other")).text
    assert (await ask(dashboard, "/cache?after=nonsense")).status == 400


async def test_the_store_page_says_what_the_server_and_its_caps_are(shop: Shop) -> None:
    page = await ask(Dashboard(shop.app, operator), "/store")
    assert re.search(r"(valkey|redis) \d+\.\d+", page.text)
    assert "100,000" in page.text
    facts = json.loads((await ask(Dashboard(shop.app, operator), "/store.json")).text)
    assert int(facts["server"]["used_memory"]) > 0
    assert facts["kept"]["finished"]["failed"] >= 2


async def test_a_store_that_is_nearly_full_says_what_a_full_one_does(new_server: Callable[..., Server]) -> None:
    """A server that refused a call is seldom quite full a second later: its own buffers have shrunk by then."""
    server = new_server(config={"maxmemory": "64mb", "maxmemory-policy": "noeviction"})
    with Headrace(server.url) as app, connect(server.url) as plain:
        # Without a large request, whose buffer would count until the server shrinks it.
        plain.setrange("ballast", 20_000_000, b"x")
        assert "banner" not in (await ask(Dashboard(app, operator), "/store")).text
        used = int(plain.info("memory")["used_memory"])
        plain.config_set("maxmemory", int(used / 0.97))
        text = (await ask(Dashboard(app, operator), "/store")).text
        assert 'class="banner bad"' in text
        assert "When it is full, nothing can be enqueued." in text
        plain.config_set("maxmemory", int(used / 0.88))
        assert 'class="banner warn"' in (await ask(Dashboard(app, operator), "/store")).text


async def test_a_server_that_keeps_its_facts_to_itself_is_said_so(shop: Shop, client: redis.Redis) -> None:
    dashboard = Dashboard(shop.app, operator)
    # The first page connects, which asks for the version.
    await ask(dashboard, "/")
    client.execute_command("ACL", "SETUSER", "default", "-info")
    try:
        page = await ask(Dashboard(shop.app, operator), "/store")
        assert page.status == 200
        assert "Not allowed here" in page.text
        assert (await ask(Dashboard(shop.app, operator), "/")).status == 200
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+info")


async def test_lost_statistics_are_on_the_overview(shop: Shop, client: redis.Redis) -> None:
    flow = shop.app.client.keys("stat-flow")
    client.hset(flow, "lost", "2")
    client.expire(flow, 60)
    assert "2 batches of statistics lost" in (await ask(Dashboard(shop.app, operator), "/")).text


async def test_a_raised_alarm_is_on_the_overview(shop: Shop) -> None:
    shop.app.alarm("orders <wait>", queue="nowhere", workers=1, for_=0)
    app = shop.app
    assert "Alarm: orders" not in (await ask(Dashboard(shop.app, operator), "/")).text
    for _ in range(2):
        await asyncio.to_thread(look_at_alarms, app.client, app.stats, app.alarms.declared.values())
    text = (await ask(Dashboard(shop.app, operator), "/")).text
    assert "Alarm: orders &lt;wait&gt;" in text
    assert "workers of nowhere below 1 for 0 s: it was 0 when the alarm was raised" in text
    assert "/activity?show=alarms" in text
    text = (await ask(Dashboard(shop.app, operator), "/activity?show=alarms")).text
    assert "orders &lt;wait&gt;" in text
    assert "workers of nowhere below 1 for 0 s: 0" in text


async def test_a_store_that_is_away_is_said_so() -> None:
    app = Headrace("redis://127.0.0.1:1/0", timeout=0.5)
    try:
        answer = await ask(Dashboard(app, operator), "/")
        assert answer.status == 503
        assert "does not answer" in answer.text
        assert "data-retry" in answer.text
        verb = await ask(Dashboard(app, operator), "/queues/mail/act/resume", form={})
        assert verb.status == 503
        assert "look before you ask again" in verb.text
        assert "data-retry" not in verb.text
    finally:
        await app.aclose()


@pytest.mark.parametrize("span", ["15m", "7d"])
async def test_the_list_of_queues_says_when_one_is_drained_as_its_page_does(
    shop: Shop, client: redis.Redis, span: str
) -> None:
    app, keys = shop.app, shop.app.client.keys
    app.enqueue_many(shop.add.options(queue="bulk").job(n) for n in range(102))
    app.client.run(
        consume.register(keys, "w1", 60_000_000, ["place", "host:1", "queues", "bulk"], {"shop.add": "process"})
    )
    app.client.run(consume.claim(keys, "w1", 1, 2, ["bulk"]))
    app.stats.absorb("queues/bulk", {"started": 2, "succeeded": 2, f"run~{bucket_of(6.0)}": 2}, time.time() - 60)
    app.stats.flush()
    found = [(await ask(Dashboard(app, operator), f"{path}?span={span}")).text for path in ("/queues", "/queues/bulk")]
    client.flushall()
    (listed,) = re.findall(r'Drains in">(4 min \d+ s)', found[0])
    assert f"it drains in {listed}" in found[1]


async def test_the_causes_of_a_task_are_looked_for_among_its_own(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    page = await ask(dashboard, "/causes?task=shop.sign")
    assert "ValueError" in page.text
    assert "RuntimeError" not in page.text
    assert "Nothing of this task has failed." in (await ask(dashboard, "/causes?task=shop.add")).text


async def test_a_workflow_leads_to_what_broke_at_any_size(empty: Shop, kit: Kit) -> None:
    @empty.app.workflow(name="shop.large")
    def large(flow: Flow) -> None:
        for n in range(1100):
            flow.run(empty.add, n)
        flow.run(empty.show, "it broke <b>here</b>", name="culprit")

    run = large.create()
    run.start()
    await kit.adrain(raises=False, limit=5000)
    (broken,) = empty.app.jobs.page("failed")
    page = await ask(Dashboard(empty.app, operator), f"/workflows/{run.id}")
    first = re.search(r"Failed first:</b> (.*?)</p>", page.text, re.DOTALL)
    assert first is not None
    assert re.search(rf'<a\s+href="/jobs/{broken.id}">culprit</a>', first[1])
    assert "RuntimeError: it broke &lt;b&gt;here&lt;/b&gt;" in first[1]
    (row, *_) = re.findall(r"<tr>(<th scope=.row.>.*?)</tr>", page.text.partition('id="nodes"')[2], re.DOTALL)
    assert broken.id in row
    assert "it broke" in row


async def test_pages_of_a_queue_and_a_workflow_say_why(empty: Shop) -> None:
    empty.add.options(queue="mail").enqueue(1)
    run = empty.order.create(1)
    dashboard = Dashboard(empty.app, operator)
    assert "is not started" in (await ask(dashboard, f"/workflows/{run.id}")).text
    run.start()
    for path in ("/queues/mail", f"/workflows/{run.id}"):
        assert "no worker lives" in (await ask(dashboard, path)).text, path
    empty.app.queues["mail"].pause()
    assert "queue mail is paused" in (await ask(Dashboard(empty.app, operator), "/queues/mail")).text


async def test_the_page_of_a_limit_says_why_its_jobs_wait(shop: Shop) -> None:
    async def said(name: str) -> str:
        page = (await ask(Dashboard(shop.app, operator), f"/limits/{name}")).text
        found = re.search(r"Why its jobs wait:</b> (.*?)</p>", page)
        return found[1] if found else ""

    assert "the limit is open" in await said("shop.customer")
    shop.app.limits["shop.customer"].pause()
    assert "the limit is paused: resume it" in await said("shop.customer")


async def graph_of(dashboard: Dashboard, path: str) -> str:
    """The picture on a workflow's page, once it is laid out."""
    check(await ask(dashboard, path), path)
    await asyncio.gather(*dashboard._site.drawer._drawing.values())
    answer = await ask(dashboard, path)
    assert "is being laid out" not in answer.text
    return answer.text.partition("graph-frame")[2].partition("</svg>")[0]


async def test_a_page_does_not_wait_for_its_graph(shop: Shop) -> None:
    dashboard, path = Dashboard(shop.app, operator), f"/workflows/{shop.flow}"
    first = await ask(dashboard, path)
    assert "The graph is being laid out" in first.text
    assert "data-soon" in first.text
    assert "node" in await graph_of(dashboard, path)


async def test_without_graphviz_a_workflow_is_a_list(
    shop: Shop, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its libraries are half of what the dashboard brought along, and Alpine has no wheel."""
    (tmp_path / "pygraphviz.py").write_text("raise ImportError('absent')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    dashboard = Dashboard(shop.app, operator)
    await graph_of(dashboard, f"/workflows/{shop.flow}")
    page = await ask(dashboard, f"/workflows/{shop.flow}")
    assert "The graph is not drawn" in page.text
    assert "headrace[viz]" in page.text
    assert len(re.findall(r'<a href="/jobs/\w{21}"', page.text)) >= 3
    parts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not any("viz" in part for part in parts["dashboard"])


async def test_of_a_large_graph_what_is_near_one_job_is_drawn(empty: Shop) -> None:
    """DS24: 1,000 jobs of different names, which no box stands for together."""
    pytest.importorskip("pygraphviz")

    @empty.app.workflow(name="shop.large")
    def large(flow: Flow) -> None:
        made: list[Any] = []
        for n in range(1000):
            name = "".join(chr(ord("a") + int(digit)) for digit in f"{n:04}")
            made.append(flow.run(empty.add, n, name=name, after=made[-40::13]))

    run = large.create()
    run.start()
    dashboard = Dashboard(empty.app, operator)
    boxes = re.findall(r'data-number="(\d+)"', await graph_of(dashboard, f"/workflows/{run.id}"))
    assert 2 < len(boxes) <= 60
    page = await ask(dashboard, f"/workflows/{run.id}")
    assert "What is at most two steps from one job is drawn" in page.text
    assert len(page.text) < 300_000
    shown = re.findall(r'data-number="(\d+)"', await graph_of(dashboard, f"/workflows/{run.id}?near=500"))
    assert "500" in shown
    assert set(shown) != set(boxes)
    assert (await ask(dashboard, f"/workflows/{run.id}?near=nothing")).status == 200


async def test_a_graph_that_changes_is_not_drawn_at_each_look(
    shop: Shop, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DS24: tabs look every two seconds, and a layout may take five."""
    pytest.importorskip("pygraphviz")
    # However long the jobs take meanwhile.
    monkeypatch.setattr(dashboard_site, "STAYS", 300.0)
    run = shop.order.create(1)
    dashboard = Dashboard(shop.app, operator)
    before = await graph_of(dashboard, f"/workflows/{run.id}")
    run.start()
    await kit.adrain(raises=False)
    assert await graph_of(dashboard, f"/workflows/{run.id}") == before != ""
    assert await graph_of(Dashboard(shop.app, operator), f"/workflows/{run.id}") != before


async def test_tabs_of_one_role_share_a_refresh(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # However far apart they ask.
    monkeypatch.setattr(dashboard_site, "AGE", 300.0)
    poll = {"x-headrace-poll": "1"}
    names = iter(["ada", "bob", "eve", "ann"])
    dashboard = Dashboard(shop.app, lambda _: Visitor(next(names), "operator"))
    first = await ask(dashboard, "/queues", headers=poll)
    assert first.text == (await ask(dashboard, "/queues", headers=poll)).text
    assert "ada" not in first.text
    # What a person was told is not eaten by a refresh, and no refresh is a page to look at.
    told = {"cookie": "headrace_said=The%20job%20is%20deleted."}
    assert "headrace_said" not in (await ask(dashboard, "/queues", headers=poll | told)).cookies
    page = await ask(dashboard, "/queues", headers=told)
    assert "The job is deleted." in page.text
    assert "ann" in page.text


async def test_a_refresh_shows_a_viewer_no_more_than_a_page(shop: Shop) -> None:
    poll = {"x-headrace-poll": "1"}
    roles = iter(["operator", "viewer"])
    dashboard = Dashboard(shop.app, lambda _: Visitor("x", next(roles)))  # type: ignore[arg-type]
    path = f"/jobs/{shop.waiting}"
    operators, viewers = [await ask(dashboard, path, headers=poll) for _ in range(2)]
    assert "/act/cancel" in operators.text
    assert "/act/cancel" not in viewers.text


async def test_a_task_that_fails_leads_to_the_failures_of_each_cause(shop: Shop) -> None:
    shop.app.stats.absorb("jobs/shop.sign", {"started": 1, "failed": 1}, time.time() - 60)
    await shop.app.stats.aflush()
    page = await ask(Dashboard(shop.app, operator), "/tasks/shop.sign")
    assert page.status == 200
    (link,) = {link for link in page.links() if "cause=" in link and "/jobs?" in link}
    listed = await ask(Dashboard(shop.app, operator), link)
    assert shop.failed in listed.text
    assert shop.hostile not in listed.text


@pytest.mark.mangles
async def test_a_job_whose_record_lacks_its_task_and_queue_leads_to_no_page_of_them(
    shop: Shop, kit: Kit, client: redis.Redis
) -> None:
    shop.app.stats.absorb("jobs/shop.sign", {"started": 1, "failed": 1}, time.time() - 60)
    await shop.app.stats.aflush()
    client.hdel(shop.app.client.keys.job(shop.failed), "task", "queue")
    dashboard = Dashboard(shop.app, operator)
    page = await ask(dashboard, f"/jobs/{shop.failed}")
    assert "unknown task" in page.text
    assert not {"/tasks/", "/queues/"} & set(page.links())
    assert [(await ask(dashboard, path)).status for path in ("/tasks/", "/queues/")] == [303, 303]
    kit.close(check=False)
