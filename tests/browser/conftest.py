"""A real browser, signed in to a real dashboard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace import Headrace
from headrace.testing import Kit
from tests.browser import chromium
from tests.dashboard.conftest import Shop


@pytest.fixture(scope="module")
def browser(nothing_left_running: None) -> Iterator[Any]:
    """The system's Chromium. Where there is none the tests are skipped; CI must have one.

    It lives as long as a module: while it does, an event loop runs in this thread, which other tests must not meet.
    """
    path = chromium.executable()
    if path is None:
        text = "no Chromium is installed: run .ci/chromium on Debian, or name a browser in HR_CHROMIUM"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    with api.sync_playwright() as playwright:
        # In a container there is no user namespace to shut it in, and it opens our own pages only.
        made = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-dev-shm-usage", f"--host-resolver-rules=MAP {chromium.NAME} 127.0.0.1"],
        )
        yield made
        made.close()


class Store:
    """A store that holds something of everything, and the dashboard that shows it."""

    def __init__(self, shop: Shop, base: str) -> None:
        self.shop = shop
        self.base = base


@pytest.fixture
def store(url: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    app = Headrace(url)
    # The kit's store has one shard, and the program that shows it must know.
    monkeypatch.delenv("HEADRACE_SHARDS", raising=False)
    with Kit(app, url=url) as kit:
        shop = Shop(app)
        # Playwright keeps an event loop in this thread, and a drain may not hold one up.
        with ThreadPoolExecutor(1) as pool:
            kind = getattr(request, "param", "full")
            for fill in {"full": [shop.fill], "hostile": [shop.fill, shop.harm], "empty": []}[kind]:
                pool.submit(fill, kit).result()
        with chromium.served(url, tmp_path, "--namespace", kit.namespace) as base:
            yield Store(shop, base)


@pytest.fixture
def open_page(browser: Any, store: Store) -> Iterator[Callable[..., Any]]:
    """``open_page("/jobs", width=320)``: a page of somebody who is signed in; it fails on any message of its console."""
    contexts: list[Any] = []
    faults: list[str] = []

    def open_(
        path: str, *, width: int = 1280, scheme: str = "light", script: bool = True, zone: str = "Europe/Berlin"
    ) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=script, timezone_id=zone,
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        contexts.append(context)
        context.set_default_timeout(60_000)
        answer = context.request.post(
            f"{store.base}/login", form={"token": chromium.TOKEN}, headers={"origin": store.base}
        )
        assert answer.ok
        page = context.new_page()
        page.on("console", lambda message: faults.append(f"{path}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(f"{path}: {error}"))
        page.on("request", lambda one: faults.append(one.url) if not one.url.startswith(store.base) else None)
        page.goto(store.base + path)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert faults == []
