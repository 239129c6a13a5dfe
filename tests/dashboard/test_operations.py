"""Verbs from pages: what they do, what they say afterwards, and that a late one does nothing."""

from __future__ import annotations

import asyncio
import logging
import re
from urllib.parse import unquote

import pytest

from headrace.dashboard import Dashboard
from headrace.dashboard.dashboard_site import DashboardSite
from headrace.protocol import cache_calls, consume
from headrace.testing import Kit
from tests.dashboard.asking import Answer, ask, fields, operator, viewer
from tests.dashboard.conftest import Shop


def said(answer: Answer) -> str:
    assert answer.status == 303, answer.text
    return unquote(answer.cookies["headrace_said"].strip('"'))


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, operator)


async def test_a_failed_job_is_retried_once(shop: Shop, dashboard: Dashboard) -> None:
    path = f"/jobs/{shop.failed}/act/retry"
    first = await ask(dashboard, path, form={})
    assert "lines up again" in said(first)
    assert first.headers["location"] == f"/jobs/{shop.failed}"
    assert shop.app.job(shop.failed).state == "ready"
    late = said(await ask(dashboard, path, form={}))
    assert late.startswith("Nothing was done")
    assert "ready" in late


async def test_a_waiting_job_is_cancelled(shop: Shop, dashboard: Dashboard) -> None:
    path = f"/jobs/{shop.waiting}/act/cancel"
    assert said(await ask(dashboard, path, form={})) == "The job is cancelled."
    assert shop.app.job(shop.waiting).state == "cancelled"
    late = await ask(dashboard, f"/jobs/{shop.done}/act/cancel", form={})
    assert said(late) == "The job had ended before: it is succeeded."


async def test_a_paused_queue_says_why_it_is_paused_now_and_who_paused_it_last(
    shop: Shop, dashboard: Dashboard
) -> None:
    await ask(dashboard, "/queues/mail/act/pause", form={"note": "the provider is down"})
    page = await ask(dashboard, "/queues/mail")
    assert "the provider is down" in page.text
    assert re.search(r'banner warn">.*ada, <time', page.text, re.DOTALL)
    shop.app.queues["mail"].pause(note="we change the provider")
    shop.app.acts.record("pause", "queues", "mail", who="bob", by="cli", reply="mail was paused already")
    shop.app.acts.record("pause", "queues", "mail", who="eve", by="cli", reply="refused: no")
    page = await ask(Dashboard(shop.app, operator), "/queues/mail")
    assert "we change the provider" in page.text
    assert "the provider is down" not in page.text
    assert re.search(r'banner warn">.*bob, <time', page.text, re.DOTALL)


async def test_a_queue_is_paused_for_a_time_and_resumed(shop: Shop, dashboard: Dashboard) -> None:
    assert "for 5 min" in said(await ask(dashboard, "/queues/mail/act/pause", form={"minutes": "5"}))
    assert "resumes" in (await ask(dashboard, "/queues/mail")).text
    assert "is resumed" in said(await ask(dashboard, "/queues/mail/act/resume", form={}))
    assert "was not paused" in said(await ask(dashboard, "/queues/mail/act/resume", form={}))
    assert (await ask(dashboard, "/queues/mail/act/pause", form={"minutes": "soon"})).status == 400
    assert not shop.app.queues["mail"].paused


async def test_a_purge_wants_the_name_of_the_queue(shop: Shop, dashboard: Dashboard) -> None:
    refused = await ask(dashboard, "/queues/mail/act/purge", form={"typed": "male"})
    assert refused.status == 400
    assert shop.app.queues["mail"].size == 1
    assert (
        said(await ask(dashboard, "/queues/mail/act/purge", form={"typed": "mail"})) == "1 job of queue mail deleted."
    )
    assert shop.app.queues["mail"].size == 0


async def test_a_failed_workflow_goes_on_and_is_deleted(shop: Shop, dashboard: Dashboard, kit: Kit) -> None:
    act = f"/workflows/{shop.flow}/act/"
    assert "line up again" in said(await ask(dashboard, act + "retry", form={}))
    page = (await ask(dashboard, f"/workflows/{shop.flow}")).text
    assert "active</span> 1</span>" in page, "it waits for a worker, so it does not run"
    assert "is stopped" in said(await ask(dashboard, act + "stop", form={}))
    assert "is running" in said(await ask(dashboard, act + "start", form={}))
    await kit.adrain(raises=False)
    gone = await ask(dashboard, act + "delete", form={})
    assert gone.headers["location"] == "/workflows"
    assert (await ask(dashboard, f"/workflows/{shop.flow}")).status == 404


async def test_a_schedule_is_held_run_and_backfilled(shop: Shop, dashboard: Dashboard) -> None:
    act = "/schedules/shop.often/act/"
    assert "was paused already" in said(await ask(dashboard, act + "pause", form={"note": "again"}))
    assert shop.app.schedules["shop.often"].read().paused == "again"
    assert "ticks again" in said(await ask(dashboard, act + "resume", form={}))
    assert "was not paused" in said(await ask(dashboard, act + "resume", form={}))
    form = fields(await ask(dashboard, "/schedules/shop.often"))
    del form["ask"]
    made = said(await ask(dashboard, act + "run", form=form))
    assert shop.app.job(made.split()[1]).state == "ready"
    # A form that is sent twice makes one job, where another would be refused.
    assert said(await ask(dashboard, act + "run", form=form)) == made
    assert said(await ask(dashboard, act + "run", form={})).startswith("Nothing was made")
    nightly = "/schedules/shop.nightly/act/backfill"
    form = {"from": "2026-11-01T00:00", "to": "2026-11-03T00:00"}
    # Its job is at work, so its policy lets no other begin.
    assert "0 jobs made" in said(await ask(dashboard, nightly, form=form))
    assert (await ask(dashboard, nightly, form=form | {"to": "soon"})).status == 400
    # A time with a zone of its own is that time: this is a minute, in which no night begins.
    minute = {"from": "2026-11-02T02:00+02:00", "to": "2026-11-02T00:01+00:00"}
    assert "0 jobs made" in said(await ask(dashboard, nightly, form=minute))
    backwards = {"from": form["to"], "to": form["from"]}
    assert "Nothing was done" in said(await ask(dashboard, nightly, form=backwards))
    assert "there is no schedule" in said(await ask(dashboard, "/schedules/no/act/pause", form={}))


async def test_a_limit_is_changed_and_held_as_a_whole_and_by_value(shop: Shop, dashboard: Dashboard) -> None:
    act, limit = "/limits/shop.customer/act/", shop.app.limits["shop.customer"]
    assert "Value globex of limit" in said(await ask(dashboard, act + "pause", form={"value": "globex"}))
    assert (limit.state("globex").paused, limit.state().paused) == (True, False)
    assert "goes on" in said(await ask(dashboard, act + "resume", form={"value": "globex"}))
    assert "for 5 min" in said(await ask(dashboard, act + "pause", form={"minutes": "5"}))
    assert limit.state().paused
    assert "other numbers" in said(await ask(dashboard, act + "set", form={"starts": "3", "per": "60", "most": "7"}))
    rate, concurrency = limit.state().rate, limit.state().concurrency
    assert rate is not None
    assert concurrency is not None
    assert (rate.n, rate.per, concurrency.n) == (3, 60, 7)
    assert "is as code declares it" in said(await ask(dashboard, act + "unset", form={}))
    assert limit.state().rate is None
    assert (await ask(dashboard, act + "set", form={"starts": "many"})).status == 400
    assert (await ask(dashboard, act + "set", form={})).status == 400
    assert "Nothing was done" in said(await ask(dashboard, act + "set", form={"starts": "-1"}))
    assert "Nothing was done" in said(await ask(dashboard, act + "set", form={"starts": "3", "per": "0"}))
    assert limit.state().rate is None


async def test_a_worker_is_told_to_stop_once_a_person_has_said_so(shop: Shop, dashboard: Dashboard) -> None:
    await asyncio.to_thread(
        shop.app.client.run, consume.register(shop.app.client.keys, "w9", 600_000_000, ["place", "far:9"])
    )
    assert "/workers/w9/act/stop" in (await ask(dashboard, "/workers/w9")).text
    asked = await ask(dashboard, "/workers/w9/act/stop", form={"ask": "Stop far:9?"})
    assert "Stop far:9?" in asked.text
    deaf = said(await ask(dashboard, "/workers/w9/act/stop", form={}))
    assert deaf.startswith("Nothing was done: w9 does not listen")
    assert [(act.verb, act.name) for act in shop.app.acts.page()] == [("stop", "w9")]


async def test_numbers_of_many_digits_are_refused(shop: Shop, dashboard: Dashboard) -> None:
    many = "9" * 5000  # more than Python reads
    assert (await ask(dashboard, "/workers/w/act/scale", form={"size": many})).status == 400
    assert (await ask(dashboard, f"/workflows/{shop.flow}?near={many}")).status == 200


async def test_cached_values_go_by_name_and_by_tag(shop: Shop, dashboard: Dashboard) -> None:
    answer = await ask(dashboard, "/cache/price-7/act/delete", form={})
    assert (said(answer), answer.headers["location"]) == ("Cached value price-7 is deleted.", "/cache")
    assert "There was no" in said(await ask(dashboard, "/cache/price-7/act/delete", form={}))
    shop.app.cache.set("price-8", 1, ttl=600, tags=["prices"])
    assert said(await ask(dashboard, "/cache/prices/act/untag", form={})) == "1 cached value with tag prices deleted."
    assert shop.app.client.run(cache_calls.read(shop.app.client.keys, "price-8")) is None


async def test_what_was_done_and_what_was_refused_is_logged(
    shop: Shop, dashboard: Dashboard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.dashboard")
    await ask(dashboard, "/queues/mail/act/pause", form={})
    await ask(Dashboard(shop.app, operator, read_only=True), "/queues/mail/act/resume", form={})
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("pause of queue mail by ada: Queue mail is paused")
    assert "refused POST /queues/mail/act/resume by ada" in lines[1]
    shop.app.queues["mail"].resume()


async def test_a_verb_that_there_is_not_is_not_found(dashboard: Dashboard) -> None:
    for path in ("/jobs/x/act/explode", "/secrets/x/act/retry"):
        assert (await ask(dashboard, path, form={})).status == 404


async def test_a_form_that_is_too_large_is_refused(dashboard: Dashboard) -> None:
    answer = await ask(dashboard, "/queues/mail/act/pause", form={"minutes": "9" * 70_000})
    assert answer.status == 413


async def test_words_on_a_page_come_from_no_link(dashboard: Dashboard) -> None:
    assert "Send money" not in (await ask(dashboard, "/?said=Send+money")).text
    page = await ask(dashboard, "/", headers={"cookie": "headrace_said=Queue%20%3Cb%3E%20is%20paused"})
    assert "Queue &lt;b&gt; is paused" in page.text


async def test_each_act_is_in_the_record_with_its_reply(shop: Shop, dashboard: Dashboard) -> None:
    await ask(dashboard, f"/jobs/{shop.failed}/act/retry", form={})
    await ask(dashboard, f"/jobs/{shop.failed}/act/retry", form={})
    headers = {"authorization": "Bearer x", "origin": ""}
    await ask(dashboard, "/queues/mail/act/pause", form={"minutes": "5"}, headers=headers)
    acts = shop.app.acts.page().rows
    assert [(act.who, act.by, act.verb, act.kind, act.name) for act in acts] == [
        ("ada", "api", "pause", "queues", "mail"),
        ("ada", "dashboard", "retry", "jobs", shop.failed),
        ("ada", "dashboard", "retry", "jobs", shop.failed),
    ]
    assert acts[0].reply == "Queue mail is paused for 5 min."
    assert acts[1].reply.startswith("Nothing was done")
    assert "lines up again" in acts[2].reply


async def test_the_record_of_an_act_and_the_look_at_its_effect_wait_at_the_same_time(
    shop: Shop, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()

    async def refresh(_site: DashboardSite) -> None:
        looked.set()

    async def record(*_: str, **__: object) -> None:
        async with asyncio.timeout(5):
            await looked.wait()

    monkeypatch.setattr(DashboardSite, "refresh", refresh)
    monkeypatch.setattr(shop.app.acts, "arecord", record)
    assert said(await ask(dashboard, "/queues/mail/act/pause", form={})) == "Queue mail is paused until it is resumed."


async def test_what_a_viewer_may_not_do_is_in_the_record_too(shop: Shop) -> None:
    await ask(Dashboard(shop.app, viewer), "/queues/a/act/b/act/purge", form={})
    await ask(Dashboard(shop.app, viewer), "/queues/mail", form={})
    (act,) = shop.app.acts.page()
    assert (act.who, act.verb, act.kind, act.name) == ("bob", "purge", "queues", "a/act/b")
    assert act.reply == "refused: Only operators may do this."


async def test_without_a_visitor_nothing_is_written(shop: Shop) -> None:
    before = shop.app.client.store.round_trips
    await ask(Dashboard(shop.app), "/queues/mail/act/pause", form={})
    await ask(Dashboard(shop.app, lambda _: None), "/queues/mail/act/pause", form={})
    assert shop.app.client.store.round_trips == before
    assert len(shop.app.acts.page()) == 0
