"""What a person reads and reaches in a real browser: times in two zones, copies, targets, and a store that is away."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from tests.browser import chromium
from tests.browser.conftest import Store
from tests.proxy import Proxy
from tests.servers import Server

OpenPage = Callable[..., Any]


def test_times_are_distances_with_utc_and_the_readers_own_beside_them_and_ids_are_copied(
    store: Store, open_page: OpenPage
) -> None:
    page = open_page(f"/jobs/{store.shop.failed}", zone="Asia/Kathmandu")
    shown = page.locator("#job-now time").first
    assert re.fullmatch(r"now|\d+ (s|min) ago", shown.inner_text())
    utc, here = shown.get_attribute("title").splitlines()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d.* UTC", utc)
    assert here.endswith(" here")
    # Nepal is five hours and three quarters ahead, so the minutes differ.
    minutes = [int(re.findall(r":(\d\d):", text)[0]) for text in (utc, here)]
    assert (minutes[1] - minutes[0]) % 60 == 45
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == store.shop.failed
    page.goto(f"{store.base}/schedules/shop.nightly")
    page.wait_for_function("!document.querySelector('time[data-here]')")
    text = page.locator("main").inner_text()
    assert "03:00:00 CE" in text
    assert "GMT+5:45" in text


def test_long_arguments_break_no_short_name(store: Store, open_page: OpenPage) -> None:
    store.shop.show.options(delay=3600).enqueue("a long text " * 40)
    page = open_page("/jobs?state=scheduled&task=shop.show")
    assert page.locator('td[data-label="Queue"] a').evaluate_all(
        "all => all.map((one) => one.getClientRects().length)"
    ) == [1]


def test_forms_work_on_a_host_without_encryption(url: str, browser: Any, tmp_path: Path) -> None:
    """A browser says less of a request's origin there than on localhost."""
    with chromium.served(url, tmp_path, "--host", chromium.NAME) as base, Headrace(url) as app:
        app.queues["mail"].pause()
        page = browser.new_page()
        try:
            page.goto(base.replace("127.0.0.1", chromium.NAME) + "/login")
            page.get_by_label("Token").fill(chromium.TOKEN)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("link", name="Queues").first.click()
            page.get_by_role("link", name="mail").first.click()
            page.get_by_role("button", name="Resume").click()
            page.get_by_role("status").filter(has_text="is resumed").wait_for()
        finally:
            page.close()
        assert not app.queues["mail"].paused


@pytest.fixture
def away(
    new_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Proxy, Store]]:
    """A dashboard behind a network that fails on command."""
    # A page must give up sooner than its store does.
    monkeypatch.setenv("HEADRACE_TIMEOUT", "60")
    server = new_server(tcp=True)
    with Proxy(server) as proxy, Headrace(server.url) as app:
        app.queues["mail"].pause()
        with chromium.served(proxy.url, tmp_path, prelude="") as base:
            yield proxy, Store(None, base)  # type: ignore[arg-type]


def test_a_page_outlives_its_store(away: tuple[Proxy, Store], browser: Any, request: pytest.FixtureRequest) -> None:
    """D56. No console is watched: a browser tells there of each answer that is no success."""
    proxy, store = away
    context = browser.new_context()
    request.addfinalizer(context.close)
    assert context.request.post(
        f"{store.base}/login", form={"token": chromium.TOKEN}, headers={"origin": store.base}
    ).ok
    page = context.new_page()
    page.goto(store.base + "/queues")
    for how in ("refuse", "swallow"):
        page.get_by_role("link", name="mail").first.wait_for()
        proxy.mode = how
        proxy.drop()
        page.locator("body.away").wait_for(timeout=60_000)
        assert page.locator("#read-at").inner_text().endswith("trying again"), how
        assert page.get_by_role("link", name="mail").first.is_visible(), how
        # One that comes meanwhile is told so, soon, and goes on by itself.
        late = context.new_page()
        begun = time.monotonic()
        answer = late.goto(store.base + "/queues")
        assert (how, answer.status, time.monotonic() - begun < 30) == (how, 503, True)
        assert "does not answer" in late.locator("main").inner_text(), how
        proxy.mode = "pass"
        proxy.drop()
        late.get_by_role("link", name="mail").first.wait_for(timeout=60_000)
        late.close()
        page.locator("body:not(.away)").wait_for(timeout=60_000)
        page.wait_for_function("!document.getElementById('read-at').textContent.includes('trying')")


def test_the_card_of_a_pending_workflow_has_its_bar(store: Store, open_page: OpenPage) -> None:
    """A rule for the icon of that state hid each drawing of the card."""
    run = store.shop.order.create(1)
    page = open_page(f"/workflows/{run.id}")
    assert page.locator("#flow-now svg.shares").is_visible()
    assert page.locator("#flow-now .legend .glyph").first.is_visible()
