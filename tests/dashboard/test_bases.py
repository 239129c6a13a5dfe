"""Prefixes with signs that a link must escape: pages lead below them, and browsers send their cookies back."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote, unquote, urlencode, urlsplit
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from headrace import Headrace
from headrace.dashboard import Dashboard
from headrace.dashboard.visitors import COOKIE, TokenLogin
from headrace.errors import OptionsError
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


async def test_several_namespaces_are_one_dashboard_with_one_login(url: str) -> None:
    one, other = Headrace(url, namespace="one"), Headrace(url, namespace="other/half")
    other.queues["mail"].pause()
    dashboard = Dashboard(one, login=TokenLogin(TOKEN), others=[other])
    came = await ask(dashboard, "/in/other/half/login", form={"token": TOKEN}, root="/board")
    assert came.headers["location"] == "/board/in/other/half/"
    assert "Path=/board;" in came.headers["set-cookie"]
    cookie = {"cookie": f"{COOKIE}={came.cookies[COOKIE]}"}
    for place, here in (("", "one"), ("/in/other/half", "other/half")):
        page = await ask(dashboard, f"{place}/queues", root="/board", headers=cookie)
        chosen = [
            attributes["href"] for tag, attributes in page.elements if "aria-current" in attributes and tag == "a"
        ]
        assert chosen[0] == f"/board{place}/queues", here
        assert {"/board/queues", "/board/in/other/half/queues", f"/board{place}/limits"} <= set(page.links())
        assert ("paused" in page.text) is (here == "other/half")
        document = await ask(dashboard, f"{place}/queues.json", root="/board", headers=cookie)
        assert bool(json.loads(document.text)["queues"]) is (here == "other/half")
    assert (await ask(dashboard, "/in/none/queues", root="/board", headers=cookie)).status == 404
    done = await ask(dashboard, "/in/other/half/queues/mail/act/resume", form={}, root="/board", headers=cookie)
    assert done.headers["location"] == "/board/in/other/half/queues/mail"
    assert not other.queues["mail"].paused
    with pytest.raises(OptionsError, match="the same namespace"):
        Dashboard(one, operator, others=[Headrace(url, namespace="one")])


def test_the_command_offers_other_namespaces_of_its_server(url: str, tmp_path: Path) -> None:
    Headrace(url, namespace="other").queues["mail"].pause()
    with served(url, tmp_path, "--also", "other") as address:
        asked = Request(f"{address}/in/other/queues", headers={"authorization": f"Bearer {TOKEN}"})
        with build_opener().open(asked, timeout=60) as page:
            assert 'href="/queues/mail"' not in (text := page.read().decode())
            assert 'href="/in/other/queues/mail"' in text
