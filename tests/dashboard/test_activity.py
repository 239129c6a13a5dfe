"""The activity page: events and acts in one list by time, in pages, each leading to what it is about."""

from __future__ import annotations

import re

import msgspec

from headrace.dashboard import Dashboard
from tests.dashboard.asking import ask, operator, viewer
from tests.dashboard.conftest import CANARY, Shop


async def test_acts_and_events_are_in_one_list_by_time(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    await ask(dashboard, f"/jobs/{shop.failed}/act/retry", form={})
    await ask(dashboard, "/queues/mail/act/pause", form={})
    page = await ask(Dashboard(shop.app, viewer), "/activity")
    words = re.findall(r'<span class="tag [a-z]*">([^<]*)</span>', page.text)
    assert words[:3] == ["pause queues", "queue paused", "retry jobs"]
    assert {"failed", "cause new", "workflow failed", "worker started"} <= set(words)
    assert f"/jobs/{shop.failed}" in set(page.links())
    assert f"/workflows/{shop.flow}" in set(page.links())
    assert CANARY not in page.text
    acts = await ask(dashboard, "/activity?show=acts")
    assert re.findall(r'<span class="tag [a-z]*">([^<]*)</span>', acts.text) == ["pause queues", "retry jobs"]


async def test_pages_hold_each_line_once(empty: Shop) -> None:
    for n in range(70):
        empty.app.queues[f"q{n}"].pause()
        empty.app.acts.record("pause", "queues", f"q{n}", who="ada")
    dashboard, path, ids = Dashboard(empty.app, operator), "/activity.json?", list[str]()
    for _ in range(10):
        found = msgspec.json.decode((await ask(dashboard, path)).text)
        ids += [f"{one['id']} {'who' in one}" for one in found["activity"]]
        if not found["next"]:
            break
        path = f"/activity.json?after={found['next']}"
    assert len(ids) == len(set(ids)) == 140


async def test_what_is_no_cursor_is_refused(empty: Shop) -> None:
    assert (await ask(Dashboard(empty.app, operator), "/activity?after=%3Cb%3E")).status == 400
