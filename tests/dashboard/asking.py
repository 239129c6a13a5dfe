"""Ask a dashboard as a browser would, without one: a request in, the answer out, on the test's own event loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from headrace.dashboard import Dashboard, Visitor

ORIGIN = "http://dashboard.example"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    text: str

    @cached_property
    def elements(self) -> list[tuple[str, dict[str, str]]]:
        """Every element of the page with its attributes."""
        reader = _Elements()
        reader.feed(self.text)
        return reader.found

    def links(self) -> Iterator[str]:
        for tag, attributes in self.elements:
            for name in ("href", "src", "action"):
                if name in attributes:
                    yield attributes[name]
            assert tag


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


async def ask(
    dashboard: Dashboard,
    path: str,
    *,
    form: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    root: str = "",
    scheme: str = "http",
) -> Answer:
    """Send one request: a GET, or a form that comes from the dashboard's own pages unless ``headers`` say otherwise."""
    given = {"host": urlsplit(ORIGIN).netloc, "accept": "text/html"}
    if form is not None:
        given |= {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    given |= headers or {}
    parts = urlsplit(path)
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "method": "GET" if form is None and body is None else "POST", "scheme": scheme, "http_version": "1.1",
        "path": root + unquote(parts.path), "raw_path": (root + parts.path).encode(), "root_path": root,
        "query_string": parts.query.encode(), "server": ("dashboard.example", 80), "client": ("127.0.0.1", 4711),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value],
    }  # fmt: skip
    sent: list[Any] = []
    sends = urlencode(form or {}).encode() if body is None else body
    asked: list[Any] = [{"type": "http.request", "body": sends, "more_body": False}]

    async def receive() -> Any:
        return asked.pop() if asked else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await dashboard(scope, receive, send)
    start = sent[0]
    pairs = [(name.decode().lower(), value.decode("latin-1")) for name, value in start["headers"]]
    cookies = dict(value.partition(";")[0].split("=", 1) for name, value in pairs if name == "set-cookie")
    text = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return Answer(start["status"], dict(pairs), cookies, text)


def operator(_request: object) -> Visitor:
    return Visitor("ada", "operator")


def viewer(_request: object) -> Visitor:
    return Visitor("bob")


def fields(answer: Answer) -> dict[str, str]:
    """The hidden fields of the form that a page has for what it asks."""
    return {
        one["name"]: one["value"]
        for tag, one in answer.elements
        if tag == "input" and one.get("type") == "hidden" and one["name"] not in ("back", "theme")
    }
