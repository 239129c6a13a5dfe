"""The recipes of ``docs/dashboard.md``, as they stand there: each site in a process of its own, with its own log-in."""

from __future__ import annotations

import http.client
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from headrace import Headrace
from tests.docs.page import blocks
from tests.processes import site

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dashboard.md"
TASKS = "from headrace import Headrace\n\napp = Headrace()\n"

FASTAPI = """
from fastapi import Request
from fastapi_site import api

@api.get("/enter")
def enter(request: Request, name: str) -> str:
    request.session["user"] = name
    return name
"""

FLASK = """
from flask import request, session
from flask_site import site

@site.get("/enter")
def enter():
    session["user"] = request.args["name"]
    return session["user"]
"""


@dataclass(frozen=True)
class Answer:
    status: int
    location: str
    cookies: dict[str, str]
    text: str

    @property
    def links(self) -> set[str]:
        return set(re.findall(r'(?:href|src|action)="(/[^"]*)"', self.text))


class Guest:
    """Sends requests as a browser does, which keeps the cookies that it gets.

    Args:
        address: of the site.
        headers: sent with each request.
        source: the address of this side.
    """

    def __init__(self, address: str, headers: dict[str, str] | None = None, source: str = "127.0.0.1") -> None:
        self._address, self._headers, self._source = address, headers or {}, source
        self._cookies: dict[str, str] = {}

    def get(self, path: str) -> Answer:
        return self._send("GET", path, None, {})

    def post(self, path: str, form: dict[str, str], origin: str = "") -> Answer:
        given = {"origin": origin or self._address, "content-type": "application/x-www-form-urlencoded"}
        return self._send("POST", path, urlencode(form), given)

    def _send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        parts = urlsplit(self._address)
        assert parts.port is not None
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=60, source_address=(self._source, 0)
        )
        cookie = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        given = {"accept": "text/html", "cookie": cookie} | self._headers | headers
        connection.request(method, path, body, {name: value for name, value in given.items() if value})
        answer = connection.getresponse()
        text = answer.read().decode()
        pairs = [value.partition(";")[0] for name, value in answer.getheaders() if name.lower() == "set-cookie"]
        connection.close()
        cookies = dict(pair.split("=", 1) for pair in pairs)
        self._cookies |= cookies
        return Answer(answer.status, urlsplit(answer.headers.get("location", "")).path, cookies, text)


@contextmanager
def served(url: str, directory: Path, *command: str, **environ: str) -> Iterator[str]:
    """A site in a process of its own, made of the recipes; yields its address."""
    for block in blocks(PAGE.read_text()):
        match block.words:
            case ("python", name):
                (directory / name).write_text(block.text)
    (directory / "tasks.py").write_text(TASKS)
    given = os.environ | {"HEADRACE_URL": url, "PYTHONPATH": str(directory), "SESSION_KEY": "for-tests"} | environ
    with site(directory, "-m", *command, environ=given) as address:
        yield address


def uvicorn(name: str, *options: str) -> tuple[str, ...]:
    return ("uvicorn", name, "--port", "0", *options)


def entered(address: str, name: str) -> Guest:
    """Someone who has logged in at the site."""
    guest = Guest(address)
    assert guest.get(f"/enter?name={name}").text.strip('"') == name
    return guest


def refused(guest: Guest, app: Headrace) -> None:
    """Neither pages nor verbs are for this one."""
    page = guest.get("/jobs/queues")
    assert (page.status, "You are not let in here." in page.text) == (403, True)
    assert guest.post("/jobs/queues/default/act/pause", {}).status == 403
    assert not app.queues["default"].paused


def operates(guest: Guest, app: Headrace) -> None:
    """Pages lead to pages below the mount, and a form of theirs does what it says; one of another site does not."""
    home = guest.get("/jobs")
    assert home.status == 200 or guest.get(home.location).status == 200
    assert home.location in ("", "/jobs/")
    page = guest.get("/jobs/queues/default")
    assert page.status == 200
    assert {link for link in page.links if not link.startswith("/jobs/")} == set()
    actions = set(re.findall(r'action="([^"]*)"', page.text))
    for link in page.links - actions:
        assert guest.get(link).status == 200, link
    pause = "/jobs/queues/default/act/pause"
    assert pause in actions
    assert guest.post(pause, {}, origin="http://evil.example").status == 403
    assert not app.queues["default"].paused
    answer = guest.post(pause, {"minutes": "5", "note": "the vendor is down"})
    assert (answer.status, answer.location) == (303, "/jobs/queues/default")
    assert app.queues["default"].paused
    assert "the vendor is down" in guest.get(answer.location).text
    acts = [(act.who, act.verb) for act in app.acts.page(limit=5)]
    assert ("ada", "pause") in acts, acts
    app.queues["default"].resume()


def test_fastapi(url: str, tmp_path: Path) -> None:
    app = Headrace(url)
    (tmp_path / "entry.py").write_text(FASTAPI)
    with served(url, tmp_path, *uvicorn("entry:api")) as address:
        refused(Guest(address), app)
        operates(entered(address, "ada"), app)
        assert Guest(address).get("/docs").status == 200


def test_flask(url: str, tmp_path: Path) -> None:
    app = Headrace(url)
    (tmp_path / "entry.py").write_text(FLASK)
    with served(url, tmp_path, "flask", "--app", "entry:site", "run", "--port", "0") as address:
        refused(Guest(address), app)
        operates(entered(address, "ada"), app)
        assert Guest(address).get("/jobsearch").status == 404


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a client come from 127.0.0.2")
def test_a_proxys_header_counts_from_its_own_address_only(url: str, tmp_path: Path) -> None:
    app = Headrace(url)
    options = ("--no-proxy-headers", "--root-path", "/jobs")
    with served(url, tmp_path, *uvicorn("behind_proxy:dashboard", *options), PROXIES="127.0.0.2 127.0.0.3") as address:
        named = {"x-forwarded-user": "ada", "x-forwarded-for": "127.0.0.2"}
        for headers, source in ((named, "127.0.0.1"), ({}, "127.0.0.2")):
            guest = Guest(address, headers, source)
            assert guest.get("/queues").status == 403
            assert guest.post("/queues/default/act/pause", {}).status == 403
        for source in ("127.0.0.2", "127.0.0.3"):
            guest = Guest(address, {"x-forwarded-user": "ada", "x-forwarded-for": "192.0.2.7"}, source)
            page = guest.get("/queues/default")
            assert page.status == 200
            assert {link for link in page.links if not link.startswith("/jobs/")} == set()
            for link in page.links - set(re.findall(r'action="([^"]*)"', page.text)):
                assert guest.get(link.removeprefix("/jobs")).status == 200, link
        assert not app.queues["default"].paused
        answer = guest.post("/queues/default/act/pause", {"minutes": "5"})
        assert (answer.status, answer.location) == (303, "/jobs/queues/default")
        assert app.queues["default"].paused
