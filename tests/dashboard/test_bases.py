"""Prefixes with signs that a link must escape: pages lead below them, and browsers send their cookies back."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from headrace import Headrace
from headrace.dashboard import Dashboard
from headrace.dashboard.visitors import COOKIE, TokenLogin
from tests.browser.chromium import TOKEN, served
from tests.dashboard.asking import ask, operator

ROOTS = ("/a b", "/дела", "/50%", "/50%25", "/a?b", "/a#b", "/a;b", "/jobs/é")


@pytest.mark.parametrize("root", ROOTS)
async def test_links_and_cookies_are_below_the_prefix(url: str, root: str) -> None:
    dashboard, base = Dashboard(Headrace(url), operator), quote(root)
    page = await ask(dashboard, "/queues", root=root)
    links = [link for link in page.links() if link.startswith("/")]
    assert links
    for link in links:
        assert urlsplit(link).path.startswith(f"{base}/"), link
        assert unquote(urlsplit(link).path).startswith(f"{root}/"), link
    done = await ask(dashboard, "/queues/mail/act/pause", form={}, root=root)
    assert (done.status, done.headers["location"]) == (303, f"{base}/queues/mail")
    assert f"Path={base};" in done.headers["set-cookie"]
    login = Dashboard(Headrace(url), login=TokenLogin(TOKEN))
    came = await ask(login, "/login", form={"token": TOKEN}, root=root)
    assert (came.status, came.headers["location"]) == (303, f"{base}/")
    assert f"Path={base};" in came.headers["set-cookie"]
    cookie = {"cookie": f"{COOKIE}={came.cookies[COOKIE]}"}
    left = await ask(login, "/logout", form={}, root=root, headers=cookie)
    assert left.headers["location"] == f"{base}/login"
    assert f"Path={base};" in left.headers["set-cookie"]


@pytest.mark.parametrize("root", ["", "/board", "/дела"])
async def test_a_slash_at_the_end_leads_to_the_page_by_its_path_alone(url: str, root: str) -> None:
    dashboard, base = Dashboard(Headrace(url), operator), quote(root)
    for path, page in (
        ("/queues/", "/queues"),
        ("/jobs/?state=failed", "/jobs?state=failed"),
        ("/a%2Fb/c//", "/a/b/c"),
    ):
        answer = await ask(dashboard, path, root=root)
        assert (answer.status, answer.headers["location"]) == (303, f"{base}{page}"), path
    assert (await ask(dashboard, "/%2Fevil.example/", root=root)).headers["location"] == f"{base}/evil.example"
    assert (await ask(dashboard, "/queues/", form={}, root=root)).status == 405


def test_a_person_comes_in_below_letters_of_any_alphabet(url: str, tmp_path: Path) -> None:
    with served(url, tmp_path, "--prefix", "/дела") as address:
        assert urlsplit(address).path == quote("/дела")
        browser = build_opener(HTTPCookieProcessor())
        origin = {"origin": f"http://{urlsplit(address).netloc}"}
        form = Request(f"{address}/login", urlencode({"token": TOKEN}).encode(), origin)
        with browser.open(form, timeout=60) as came:
            assert urlsplit(came.url).path == quote("/дела/")
            assert "Sign out" in came.read().decode()
        with browser.open(f"{address}/queues", timeout=60) as page:
            assert urlsplit(page.url).path == quote("/дела/queues")
