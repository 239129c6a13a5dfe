"""What a page tells beside its main thing: how long a queue takes to drain, a timeline, what a large value leaves out."""

from __future__ import annotations

import json
import re

import pytest

from headrace.dashboard import Dashboard
from headrace.errors import OptionsError
from headrace.model.job import JobError, Outcome, error_json
from headrace.protocol import consume
from headrace.testing import Kit
from tests.dashboard.asking import ask, operator
from tests.dashboard.conftest import Shop


async def test_a_queue_of_which_no_job_runs_says_no_time_until_it_is_drained(shop: Shop) -> None:
    """It follows from what runs now, as on the queue's page; ``test_pages.py`` has a queue of which jobs run."""
    for number in range(3):
        shop.add.options(queue="mail").enqueue(number)
    shop.add.options(queue="calm").enqueue(1)
    shop.app.queues["paused"].pause()
    shop.add.options(queue="paused").enqueue(1)
    page = await ask(Dashboard(shop.app, operator), "/queues?span=1h")
    said = dict(
        re.findall(r'/queues/(\w+)">.*?data-label="Drains in">(?:<span class="none">)?([^<]*)<', page.text, re.DOTALL)
    )
    assert said == {"default": "\u2013", "mail": "\u2013", "calm": "\u2013", "paused": "never, paused"}


async def test_a_workflow_has_a_timeline_of_what_began(shop: Shop) -> None:
    page = await ask(Dashboard(shop.app, operator), f"/workflows/{shop.flow}")
    timeline = page.text.partition('<ol class="timeline">')[2].partition("</ol>")[0]
    bar = r'/jobs/(\w+)">.*?<svg class="s-(\w+)".*?<rect x="([\d.]+)" y="1" width="([\d.]+)"'
    bars = re.findall(bar, timeline, re.DOTALL)
    assert [state for _, state, _, _ in bars] == ["succeeded", "succeeded", "failed"]
    starts = [float(x) for *_, x, _ in bars]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert all(float(x) + float(width) <= 100.5 for *_, x, width in bars)
    assert len({id for id, *_ in bars}) == 3


async def test_of_a_large_value_a_page_shows_the_beginning_and_its_document_all(shop: Shop) -> None:
    large = shop.show.enqueue("y" * 100_000 + "the end")
    dashboard = Dashboard(shop.app, operator)
    page = await ask(dashboard, f"/jobs/{large.id}")
    assert "the end" not in page.text
    assert re.search(r"characters more are not shown; <a\s+href=\"[^\"]*\.json\">", page.text)
    document = json.loads((await ask(dashboard, f"/jobs/{large.id}.json")).text)
    assert "the end" in json.dumps(document["kwargs"])


TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_a_job_that_was_enqueued_in_a_trace_leads_to_it(shop: Shop) -> None:
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    job = shop.add.options(headers={"traceparent": parent}).enqueue(1)
    alien = shop.add.options(headers={"traceparent": f"00-{TRACE}/../<b>-b7ad6b7169203331-01"}).enqueue(1)
    dashboard = Dashboard(shop.app, operator, trace_url="https://traces.example/t/{trace_id}?from=headrace")
    link = f"https://traces.example/t/{TRACE}?from=headrace"
    assert link in set((await ask(dashboard, f"/jobs/{job.id}")).links())
    for id in (alien.id, shop.waiting):
        assert "traces.example" not in (await ask(dashboard, f"/jobs/{id}")).text
    assert "Trace</dt>" not in (await ask(Dashboard(shop.app, operator), f"/jobs/{job.id}")).text
    for wrong in ("https://traces.example/", "javascript:alert('{trace_id}')"):
        with pytest.raises(OptionsError, match="trace_url"):
            Dashboard(shop.app, operator, trace_url=wrong)


async def test_a_job_that_failed_leads_to_those_that_failed_so(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    (link,) = {one for one in (await ask(dashboard, f"/jobs/{shop.failed}")).links() if "cause=" in one}
    listed = (await ask(dashboard, link)).text
    assert shop.failed in listed
    assert shop.hostile not in listed
    assert "cause=" not in " ".join((await ask(dashboard, f"/jobs/{shop.done}")).links())


async def test_a_job_whose_process_died_shows_what_is_left_of_it(shop: Shop, kit: Kit) -> None:
    keys, run = shop.app.client.keys, shop.app.client.run
    job = shop.show.options(queue="deadly").enqueue("x")
    run(consume.register(keys, "w0", 3_600_000_000, ["place", "host-0:1", "queues", "deadly"]))
    (claim,) = run(consume.claim(keys, "w0", 1, 1, ["deadly"])).jobs
    error = JobError(
        type="Crashed", message="its process was ended by SIGKILL", attempt=1, worker="host-0:1", signal=9, exit_code=-9,
        peak_memory=3 << 30, stderr="password=hunter2\n<b>Segmentation fault</b>",
    )  # fmt: skip
    rows = [(Outcome(claim.id, claim.token, "corrupt", error_json(error), 3_600_000_000), claim.ready)]
    run(consume.settle(keys, "w0", 2, rows, 3_600_000_000))
    page = " ".join((await ask(Dashboard(shop.app, operator), f"/jobs/{job.id}")).text.split())
    assert "on host-0:1; ended by SIGKILL; exit code -9; 3.0 GiB at most" in page
    assert "&lt;b&gt;Segmentation fault&lt;/b&gt;" in page
    assert "hunter2" not in page
    run(consume.retire(keys, "w0", 0))


async def test_a_job_that_runs_shows_what_it_said_of_its_progress_and_the_note_of_its_enqueue(shop: Shop) -> None:
    keys, run = shop.app.client.keys, shop.app.client.run
    job = shop.show.options(queue="slow", note="<b>for</b> Ada").enqueue("x")
    run(consume.register(keys, "w0", 3_600_000_000, ["place", "host-0:1", "queues", "slow"]))
    (claim,) = run(consume.claim(keys, "w0", 1, 1, ["slow"])).jobs
    run(
        consume.note(keys, "w0", [consume.Note(claim.id, claim.token, 0.25, "<i>page</i> 3, token=hunter2")], request=2)
    )
    dashboard = Dashboard(shop.app, operator)
    for path in (f"/jobs/{job.id}", "/jobs?state=running"):
        page = (await ask(dashboard, path)).text
        assert "25 % &lt;i&gt;page&lt;/i&gt; 3, token=***" in page, path
        assert "hunter2" not in page
        assert "&lt;b&gt;for&lt;/b&gt; Ada" in page, path
    run(consume.settle(keys, "w0", 3, [(Outcome(claim.id, claim.token, "succeeded", b"\xc0", 0), claim.ready)], 0))
    run(consume.retire(keys, "w0", 0))


async def test_a_worker_that_drains_says_so_and_a_queue_names_who_serves_it(shop: Shop) -> None:
    keys, run = shop.app.client.keys, shop.app.client.run
    facts = ["place", "host-0:1", "queues", "mail", "version", "9.8.7"]
    run(consume.register(keys, "w0", 3_600_000_000, facts))
    assert 'href="/workers/w0">host-0:1</a>' in (await ask(Dashboard(shop.app, operator), "/queues/mail")).text
    for word, more in (("", []), ("quiet", ["draining", "quiet"]), ("draining", ["draining", 1])):
        run(consume.renew(keys, "w0", 3_600_000_000, more))
        for path in ("/workers", "/workers/w0"):
            page = (await ask(Dashboard(shop.app, operator), path)).text
            assert [one for one in ("quiet", "draining") if f">{one}</span>" in page] == [word] * bool(word), path
    document = json.loads((await ask(Dashboard(shop.app, operator), "/workers/w0.json")).text)
    assert (document["draining"], document["version"]) == (True, "9.8.7")
    run(consume.retire(keys, "w0", 0))


async def test_a_workflow_tells_its_longest_chain(shop: Shop) -> None:
    page = (await ask(Dashboard(shop.app, operator), f"/workflows/{shop.flow}")).text
    said = re.search(r"Longest chain so far:</b> (.*?) of runs, (.*?)\.</p>", page)
    assert said is not None
    assert said[2].count("→") == 2


async def test_the_axis_of_a_plot_names_its_zone(shop: Shop) -> None:
    page = await ask(Dashboard(shop.app, operator), "/")
    axes = page.text.split('<div class="times"')[1:]
    assert axes
    assert all(axis.partition("</div>")[0].endswith(" UTC</span>") for axis in axes)


async def test_a_schedule_without_a_stored_tick_says_when_it_is_due(shop: Shop) -> None:
    """Its tick has made a job, and no worker has stored the next tick yet."""
    page = await ask(Dashboard(shop.app, operator), "/schedules/shop.nightly")
    assert re.search(r"the next job is due\s+<time", page.text)
    assert "nothing is due" not in page.text


async def test_one_row_is_not_called_all(empty: Shop) -> None:
    empty.add.options(delay=3600).enqueue(1)
    page = await ask(Dashboard(empty.app, operator), "/jobs?state=scheduled")
    assert re.findall(r">(\w+ (?:all )?1…)</a>", page.text) == ["Cancel 1…", "Delete 1…"]
