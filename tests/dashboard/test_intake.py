"""``POST /v1/jobs``, and producers, who may do nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.dashboard import Dashboard, Visitor
from headrace.dashboard.visitors import TokenLogin
from tests.dashboard.asking import Answer, ask, operator, viewer
from tests.dashboard.conftest import Shop

OPERATOR, VIEWER, PRODUCER = "operator-token-0123456789", "viewer-token-0123456789", "producer-token-0123456789"


@pytest.fixture
def dashboard(shop: Shop) -> Dashboard:
    return Dashboard(shop.app, login=TokenLogin(OPERATOR, VIEWER, PRODUCER))


async def send(dashboard: Dashboard, body: Any, token: str = PRODUCER) -> Answer:
    headers = {"authorization": f"Bearer {token}", "accept": "*/*"} if token else {}
    return await ask(
        dashboard, "/v1/jobs", body=body if isinstance(body, bytes) else json.dumps(body).encode(), headers=headers
    )


async def test_a_job_is_stored_with_its_options(shop: Shop, dashboard: Dashboard) -> None:
    options = {"queue": "slow", "priority": 3, "delay": 60, "note": "from afar", "headers": {"tenant": "acme"}}
    answer = await send(dashboard, {"task": "shop.add", "args": [1], "kwargs": {"b": 2}, "options": options})
    assert answer.status == 201, answer.text
    told = json.loads(answer.text)
    assert (told["task"], told["fresh"]) == ("shop.add", True)
    record = shop.app.job(told["id"]).refresh()
    assert (record.queue, record.priority, record.state, record.note) == ("slow", 3, "scheduled", "from afar")
    assert (record.arguments, record.headers) == ({"a": 1, "b": 2}, {"tenant": "acme"})
    # No act of a person.
    assert shop.app.acts.page().rows == []


async def test_a_request_that_is_repeated_makes_one_job(shop: Shop, dashboard: Dashboard) -> None:
    body = {"task": "elsewhere.fetch", "args": ["x"], "options": {"request_id": "r-1", "at": "2099-01-01T00:00:00Z"}}
    first, second = await send(dashboard, body), await send(dashboard, body)
    assert (first.status, second.status) == (201, 200)
    assert json.loads(first.text)["id"] == json.loads(second.text)["id"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), ([], 400), ({}, 400), ({"task": 1}, 400), ({"task": "shop.add", "more": 1}, 400),
        ({"task": "no task"}, 400), ({"task": "shop.add"}, 400), ({"task": "shop.add", "args": ["x"]}, 400),
        ({"task": "shop.add", "args": {}}, 400), ({"task": "x", "options": {"colour": 1}}, 400),
        ({"task": "x", "options": {"name": "y"}}, 400), ({"task": "shop.add", "options": {"self": 1}}, 400),
        ({"task": "x", "options": {"at": "soon"}}, 400), ({"task": "x", "options": {"priority": 101}}, 400),
        (b"[" * 100_000, 400), (b'{"task": "x", "args": ["' + b"x" * (1 << 20) + b'"]}', 413), (b"x" * (2 << 20), 413),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
async def test_what_cannot_be_stored_is_refused_in_words(
    shop: Shop, dashboard: Dashboard, body: Any, status: int
) -> None:
    before = shop.app.jobs.count("ready")
    answer = await send(dashboard, body)
    assert answer.status == status, answer.text
    assert json.loads(answer.text)["error"]
    assert shop.app.jobs.count("ready") == before


async def test_a_producer_may_do_nothing_else(shop: Shop, dashboard: Dashboard) -> None:
    headers = {"authorization": f"Bearer {PRODUCER}", "accept": "*/*"}
    for path in ("/", "/jobs", f"/jobs/{shop.failed}", "/overview.json", "/jobs.csv", "/login2", "/v1/queues"):
        answer = await ask(dashboard, path, headers=headers)
        assert answer.status == 403, path
        assert "POST /v1/jobs" in answer.text
    for path in (f"/jobs/{shop.failed}/act/retry", "/queues/mail/act/purge", "/bulk", "/theme"):
        assert (await ask(dashboard, path, form={}, headers=headers)).status == 403, path
    # Nor in a browser.
    refused = await ask(dashboard, "/login", form={"token": PRODUCER})
    assert (refused.status, "for programs" in refused.text, refused.cookies) == (403, True, {})


async def test_who_else_may_send_jobs(shop: Shop, dashboard: Dashboard) -> None:
    body = {"task": "shop.add", "args": [1]}
    for token, status in ((OPERATOR, 201), (PRODUCER, 201), (VIEWER, 403), ("wrong", 401), ("", 403)):
        assert (await send(dashboard, body, token)).status == status, token
    mounted = Dashboard(shop.app, lambda _request: Visitor("shop", "producer"))
    assert (await send(mounted, body, "any")).status == 201
    # A page of another site cannot make a browser send one.
    assert (await send(Dashboard(shop.app, operator), body, "")).status == 403
    assert (await send(Dashboard(shop.app, viewer), body, "any")).status == 403
    assert (await send(Dashboard(shop.app, operator, read_only=True), body, "any")).status == 403
