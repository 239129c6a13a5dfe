"""What a page tells beside its main thing: how long a queue takes to drain, a timeline, what a large value leaves out."""

from __future__ import annotations

import json
import re

from headrace.dashboard import Dashboard
from tests.dashboard.asking import ask, operator
from tests.dashboard.conftest import Shop


async def test_a_queue_says_how_long_it_takes_to_drain(shop: Shop) -> None:
    """Nine of its jobs started in the hour, and four wait: they take 26 minutes and 40 seconds."""
    for number in range(3):
        shop.add.options(queue="mail").enqueue(number)
    shop.add.options(queue="calm").enqueue(1)
    shop.app.queues["paused"].pause()
    shop.add.options(queue="paused").enqueue(1)
    page = await ask(Dashboard(shop.app, operator), "/queues?span=1h")
    said = dict(re.findall(r'/queues/(\w+)">.*?data-label="Drains in">([^<]*)<', page.text))
    assert said == {"default": "\u2013", "mail": "26 min 40 s", "calm": "\u2013", "paused": "never, paused"}


async def test_a_workflow_has_a_timeline_of_what_began(shop: Shop) -> None:
    page = await ask(Dashboard(shop.app, operator), f"/workflows/{shop.flow}")
    timeline = page.text.partition('<ol class="timeline">')[2].partition("</ol>")[0]
    bars = re.findall(r'/jobs/(\w+)">.*?<rect class="s-(\w+)" x="([\d.]+)" y="1" width="([\d.]+)"', timeline)
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
    assert re.search(r"characters more are not shown; <a href=\"[^\"]*\.json\">", page.text)
    document = json.loads((await ask(dashboard, f"/jobs/{large.id}.json")).text)
    assert "the end" in json.dumps(document["kwargs"])
