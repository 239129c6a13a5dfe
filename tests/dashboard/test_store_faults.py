"""A store that loses its answer to a verb, or that cannot be used: what pages and programs are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from headrace import Headrace
from headrace.dashboard import Dashboard, dashboard_site
from headrace.protocol.script import load
from tests.dashboard.asking import Answer, ask, operator
from tests.dashboard.test_operations import said
from tests.deadline import eventually
from tests.proxy import Proxy
from tests.servers import Server

MAYBE = "It may have done what you asked for: look before you ask again."


class Line:
    """An application behind a proxy that loses the answers of one script."""

    def __init__(self, server: Server, proxy: Proxy) -> None:
        self.server, self.proxy = server, proxy
        self.app = Headrace(proxy.url, timeout=3)
        self.job = self.app.by_name("elsewhere.fetch", delay=3600).enqueue().id
        self.dashboard = Dashboard(self.app, operator)

    async def lose(self, script: str, path: str, form: Mapping[str, str]) -> Answer:
        """Send a form, of which the store does one script each time that it is asked, and no answer comes back."""
        digest, lost = load(script).sha.encode(), [False]
        # Else the answer that is lost is that the server does not know it.
        self.server.owner.script_load(load(script).text)

        def note(data: bytes) -> bool:
            lost[0] = digest in data
            return False

        self.proxy.lost_request, self.proxy.cut = note, lambda _: lost[0]
        try:
            return await ask(self.dashboard, path, form=form)
        finally:
            self.proxy.lost_request = self.proxy.cut = lambda _: False


@pytest.fixture
def line(new_server: Callable[..., Server]) -> Iterator[Line]:
    server = new_server(tcp=True)
    with Proxy(server) as proxy:
        line = Line(server, proxy)
        yield line
        line.app.close()


async def test_a_verb_whose_answer_was_lost_is_not_told_as_undone(line: Line) -> None:
    answer = await line.lose("pause", "/queues/mail/act/pause", {})
    assert "mail" in [queue.name for queue in line.app.overview().queues if queue.paused]
    assert MAYBE in said(answer)
    (act,) = line.app.acts.page().rows
    assert MAYBE in act.reply
    assert not act.refused


async def test_ticked_jobs_whose_answer_was_lost_are_not_told_as_untouched(line: Line) -> None:
    answer = await line.lose("cancel", "/jobs/ticked/act/cancel", {"id": line.job, "sure": "1"})
    assert line.app.job(line.job).state == "cancelled"
    assert MAYBE in said(answer)


async def test_a_job_again_whose_answer_was_lost_may_have_been_made(line: Line) -> None:
    answer = await line.lose("enqueue", f"/jobs/{line.job}/act/again", {})
    # Of several shards, lists leave out for some seconds one that did not answer.
    eventually(lambda: line.app.jobs.count("ready") == 1)
    assert MAYBE in answer.text


async def test_a_bulk_operation_whose_answer_was_lost_may_have_begun(line: Line) -> None:
    form = {"verb": "cancel", "state": "scheduled", "count": "1", "exact": "1"}
    answer = await line.lose("own_store", "/bulk", form)
    eventually(lambda: len(line.app.bulk.page()) == 1)
    assert answer.status == 503
    assert MAYBE in answer.text
    (act,) = line.app.acts.page().rows
    assert MAYBE in act.reply


async def test_a_store_that_cannot_be_used_is_told_with_what_to_do(line: Line) -> None:
    line.server.owner.config_set("maxmemory-policy", "allkeys-lru")
    app = Headrace(line.proxy.url)
    dashboard = Dashboard(app, operator)
    page = await ask(dashboard, "/jobs")
    assert page.status == 503
    assert "set it to noeviction" in page.text
    assert "data-retry" in page.text
    assert (await ask(dashboard, f"/jobs/{line.job}/again")).status == 503
    assert "set it to noeviction" in (await ask(dashboard, "/queues/mail/act/pause", form={})).text
    document = await ask(dashboard, "/jobs.json")
    assert document.status == 503
    assert "set it to noeviction" in json.loads(document.text)["error"]
    sent = await ask(dashboard, "/v1/jobs", body=b'{"task": "elsewhere.fetch"}', headers={"authorization": "Bearer x"})
    assert (sent.status, json.loads(sent.text)["type"]) == (503, "EvictingServer")
    await app.aclose()


async def test_credentials_that_the_server_refuses_are_told_so(line: Line) -> None:
    line.server.owner.config_set("requirepass", "changed")
    app = Headrace(line.proxy.url)
    page = await ask(Dashboard(app, operator), "/jobs")
    assert page.status == 503
    assert "refused the credentials" in page.text
    sent = await ask(Dashboard(app, operator), "/v1/jobs", body=b'{"task": "x"}', headers={"authorization": "Bearer x"})
    assert sent.status == 503
    await app.aclose()


async def test_a_store_that_is_silent_is_told_in_words(
    line: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dashboard_site, "SILENCE", 0.1)
    line.proxy.mode = "swallow"
    assert (await ask(line.dashboard, "/jobs")).status == 503
    assert "the store does not answer the dashboard: it is silent" in caplog.text
