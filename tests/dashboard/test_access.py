"""Who may look and who may act: default deny, roles, foreign sites, log-ins; and the headers of every answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.dashboard import Dashboard, Visitor
from headrace.dashboard.visitors import CODE, COOKIE, SESSION, TokenLogin
from headrace.errors import OptionsError
from tests.dashboard.asking import ORIGIN, Answer, ask, operator, viewer
from tests.dashboard.conftest import Shop

TOKEN, LESSER = "operator-token-0123456789", "viewer-token-0123456789"
PATHS = ("/", "/jobs", "/causes", "/queues", "/tasks", "/workflows", "/workers", "/activity",
         "/nothing")  # fmt: skip


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("path", PATHS)
async def test_nobody_is_let_in_by_default(empty: Shop, path: str) -> None:
    answer = await ask(Dashboard(empty.app), path)
    assert answer.status == 403
    assert "authorize=" in answer.text
    assert "Ready" not in answer.text


@pytest.mark.parametrize(
    "authorize", [lambda _request: None, lambda _request: True, lambda _request: "ada"], ids=["none", "true", "text"]
)
async def test_who_is_no_visitor_is_refused(empty: Shop, authorize: Callable[..., Any]) -> None:
    for path in PATHS:
        assert (await ask(Dashboard(empty.app, authorize), path)).status == 403


async def test_authorize_may_be_asynchronous(empty: Shop) -> None:
    async def authorize(_request: object) -> Visitor | None:
        return Visitor("ada")

    assert (await ask(Dashboard(empty.app, authorize), "/")).status == 200


VERBS = ("/queues/mail/act/pause", "/queues/mail/act/purge", "/jobs/x/act/retry", "/workflows/x/act/delete",
         "/workers/x/act/scale", "/workers/x/act/stop", "/workers/x/act/quiet")  # fmt: skip


@pytest.mark.parametrize("path", VERBS)
async def test_a_verb_is_for_operators_only(empty: Shop, path: str) -> None:
    assert (await ask(Dashboard(empty.app, viewer), path, form={})).status == 403
    assert (await ask(Dashboard(empty.app, operator, read_only=True), path, form={})).status == 403
    assert (await ask(Dashboard(empty.app, operator), path, form={})).status in (303, 400)


async def test_a_viewer_sees_no_button(shop: Shop) -> None:
    for path in (f"/jobs/{shop.failed}", "/queues/mail", f"/workflows/{shop.flow}"):
        assert "/act/" in (await ask(Dashboard(shop.app, operator), path)).text
        assert "/act/" not in (await ask(Dashboard(shop.app, viewer), path)).text
        assert "/act/" not in (await ask(Dashboard(shop.app, operator, read_only=True), path)).text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[evil"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": ORIGIN},
        {"sec-fetch-site": "none", "origin": ""},
    ],
    ids=str,
)
async def test_no_other_site_can_act(shop: Shop, headers: dict[str, str]) -> None:
    answer = await ask(Dashboard(shop.app, operator), "/queues/mail/act/pause", form={}, headers=headers)
    assert answer.status == 403
    assert not shop.app.queues["mail"].paused


async def test_a_page_of_ours_can_act(shop: Shop) -> None:
    for headers in ({"sec-fetch-site": "same-origin", "origin": ""}, {"origin": ORIGIN}):
        answer = await ask(Dashboard(shop.app, operator), "/queues/mail/act/pause", form={}, headers=headers)
        assert answer.status == 303
        assert shop.app.queues["mail"].paused
        shop.app.queues["mail"].resume()


async def test_a_host_that_is_not_known_is_refused(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, operator, hosts={"localhost", "::1"})
    assert (await ask(dashboard, "/", headers={"host": "evil.example"})).status == 403
    assert (await ask(dashboard, "/", headers={"host": "[bad"})).status == 403
    assert (await ask(dashboard, "/", headers={"host": "localhost:8355"})).status == 200
    assert (await ask(dashboard, "/", headers={"host": "[::1]:8355"})).status == 200


async def test_every_answer_has_strict_headers(shop: Shop) -> None:
    dashboard = Dashboard(shop.app, operator)
    for path in ("/", "/nothing", "/static/style.css", "/static/nothing.css", f"/jobs/{shop.failed}"):
        headers = (await ask(dashboard, path)).headers
        policy = headers["content-security-policy"]
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        )
        assert headers["referrer-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
        assert "access-control-allow-origin" not in headers
    framed = Dashboard(shop.app, operator, frame_ancestors="https://board.example")
    assert "frame-ancestors https://board.example" in (await ask(framed, "/")).headers["content-security-policy"]


async def enter(dashboard: Dashboard, **form: str) -> Answer:
    return await ask(dashboard, "/login", form=form)


async def test_a_code_lets_one_browser_in_once(empty: Shop) -> None:
    clock = Hands()
    login = TokenLogin(TOKEN, clock=clock)
    dashboard = Dashboard(empty.app, login=login, hosts=None)
    assert (await ask(dashboard, "/")).headers["location"] == "/login"
    code = login.code()
    # A preview fetches the link, and uses nothing up.
    assert (await ask(dashboard, f"/login?code={code}")).status == 200
    entered = await enter(dashboard, code=code)
    assert entered.status == 303
    cookie = {"cookie": f"{COOKIE}={entered.cookies[COOKIE]}"}
    assert (await ask(dashboard, "/", headers=cookie)).status == 200
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert "samesite=lax" in entered.headers["set-cookie"].lower()
    assert f"max-age={SESSION:.0f}" in entered.headers["set-cookie"].lower()
    assert SESSION == 12 * 3600
    assert "secure" not in entered.headers["set-cookie"].lower()
    encrypted = {"origin": ORIGIN.replace("http:", "https:")}
    form = {"code": login.code()}
    guarded = await ask(dashboard, "/login", form=form, headers=encrypted, scheme="https")
    assert "secure" in guarded.headers["set-cookie"].lower()
    # The proxy before it ends the encryption.
    behind = await ask(dashboard, "/login", form={"code": login.code()}, headers=encrypted)
    assert "secure" in behind.headers["set-cookie"].lower()
    assert (await enter(dashboard, code=code)).status == 403
    late = login.code()
    clock.now += CODE + 1
    assert (await enter(dashboard, code=late)).status == 403
    clock.now += SESSION
    assert (await ask(dashboard, "/", headers=cookie)).status == 303


async def test_a_session_is_signed_and_ends_with_its_token(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, login=TokenLogin(TOKEN, LESSER))
    cookie = (await enter(dashboard, token=LESSER)).cookies[COOKIE]
    assert (await ask(dashboard, "/", headers={"cookie": f"{COOKIE}={cookie}"})).status == 200
    acts = "/queues/mail/act/pause"
    assert (await ask(dashboard, acts, form={}, headers={"cookie": f"{COOKIE}={cookie}"})).status == 403
    for forged in (cookie.replace("viewer", "operator"), cookie[:-1], "", "operator.9999999999.", "a.b.c", "\xff.\xff"):
        assert (await ask(dashboard, "/", headers={"cookie": f"{COOKIE}={forged}"})).status == 303, forged
    other = Dashboard(empty.app, login=TokenLogin("another-token-0123456789", LESSER))
    assert (await ask(other, "/", headers={"cookie": f"{COOKIE}={cookie}"})).status == 303


async def test_programs_bear_a_token(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, login=TokenLogin(TOKEN, LESSER))
    for token, sees, acts in ((TOKEN, 200, 303), (LESSER, 200, 403), ("", 401, 401), ("wrong", 401, 401)):
        headers = {"authorization": f"Bearer {token}", "accept": "*/*", "origin": ""}
        headers |= {"accept": "application/json"} if sees != 200 else {}
        assert (await ask(dashboard, "/", headers=headers)).status == sees, token
        assert (await ask(dashboard, "/queues/mail/act/resume", form={}, headers=headers)).status == acts, token


async def test_guesses_are_slowed_down(empty: Shop) -> None:
    clock = Hands()
    dashboard = Dashboard(empty.app, login=TokenLogin(TOKEN, clock=clock))
    assert [(await enter(dashboard, token="no")).status for _ in range(6)] == [403] * 5 + [429]
    clock.now += 2
    assert (await enter(dashboard, token="no")).status == 403


async def test_guesses_lock_out_none_who_has_the_token(empty: Shop) -> None:
    login = TokenLogin(TOKEN, clock=Hands())
    dashboard = Dashboard(empty.app, login=login)
    assert [(await enter(dashboard, token="no")).status for _ in range(100)][-1] == 429
    assert (await enter(dashboard, token=TOKEN)).status == 303
    assert (await enter(dashboard, code=login.code())).status == 303


async def test_a_session_that_was_signed_out_comes_in_no_more(empty: Shop) -> None:
    clock = Hands()
    dashboard = Dashboard(empty.app, login=TokenLogin(TOKEN, clock=clock))
    entered = [await enter(dashboard, token=TOKEN) for _ in range(2)]
    ours, other = ({"cookie": f"{COOKIE}={answer.cookies[COOKIE]}"} for answer in entered)
    for _ in range(2):
        await ask(dashboard, "/logout", form={}, headers=ours)
        assert (await ask(dashboard, "/", headers=ours)).status == 303
        assert (await ask(dashboard, "/", headers=other)).status == 200


def test_two_roles_never_share_a_token() -> None:
    with pytest.raises(OptionsError, match="two roles of the dashboard have the same token"):
        TokenLogin(TOKEN, TOKEN)
    with pytest.raises(OptionsError, match="give each role a token of its own"):
        TokenLogin(TOKEN, "", TOKEN)


async def test_the_theme_leads_back_to_our_own_pages_only(empty: Shop) -> None:
    dashboard = Dashboard(empty.app, viewer)
    answer = await ask(dashboard, "/theme", form={"theme": "dark", "back": "/jobs?state=failed"})
    assert answer.headers["location"] == "/jobs?state=failed"
    page = await ask(dashboard, "/", headers={"cookie": f"headrace_theme={answer.cookies['headrace_theme']}"})
    assert 'data-theme="dark"' in page.text
    for back in ("//evil.example", "https://evil.example", "/\\evil.example"):
        answer = await ask(dashboard, "/theme", form={"theme": "light", "back": back})
        assert answer.headers["location"] == "/"
