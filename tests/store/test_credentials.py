"""Passwords that change while a program runs: each connection asks for its own, and none outlives what it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.credentials import UsernamePasswordCredentialProvider

from headrace import Headrace, Settings
from headrace.cli.output import Output
from headrace.cli.session import Session, UsageFault
from headrace.errors import SettingsError, StoreUnavailable, UrlError
from tests.servers import Server


def rotate(client: redis.Redis, password: str) -> None:
    """The user has another password, and its connections are gone."""
    client.execute_command("ACL", "SETUSER", "shop", "on", "resetpass", f">{password}", "~*", "&*", "+@all")
    client.execute_command("CLIENT", "KILL", "USER", "shop")


@pytest.fixture
def url(server: Server, client: redis.Redis) -> Iterator[str]:
    """Where the user is named, and no password."""
    rotate(client, "first")
    yield server.url_of("shop")
    client.execute_command("ACL", "DELUSER", "shop")


def test_a_new_connection_reads_the_password_file_anew(url: str, client: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")

    async def story() -> None:
        app = Headrace(url, password_file=str(file))
        await app.jobs.apage("failed")
        file.write_text("third")
        rotate(client, "third")
        await app.jobs.apage("failed")
        await app.aclose()

    with Headrace(url, password_file=str(file)) as app:
        app.overview()
        app.cache.set("a", 1)
        file.write_text("second")
        rotate(client, "second")
        app.overview()
        assert app.cache.get("a") == 1
    file.write_text("first")
    rotate(client, "first")
    asyncio.run(story())


class Asked:
    """A function that gives credentials, and counts how often it was asked."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.times = 0

    def __call__(self) -> Any:
        self.times += 1
        return self.given


def test_no_connection_is_used_after_the_end_that_its_credentials_name(url: str, client: redis.Redis) -> None:
    lasting, ending = Asked("shop", "first", 3600), Asked("shop", "first", 0.0)

    async def story() -> None:
        app = Headrace(url, credentials=ending)
        for _ in range(3):
            await app.jobs.apage("failed")
        await app.aclose()

    for asked, times in ((lasting, 1), (ending, 3)):
        with Headrace(url, credentials=asked) as app:
            for _ in range(3):
                app.overview()
            assert asked.times == times
            assert sum(one["user"] == "shop" for one in client.client_list()) == 1
    asyncio.run(story())
    assert ending.times == 6


def test_a_provider_of_the_driver_and_a_named_function_give_credentials(
    url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Headrace(url, credentials=UsernamePasswordCredentialProvider("shop", "first")) as app:
        app.overview()
        assert "first" not in repr(app.settings)
    with Headrace(server.url, credentials=lambda: ("shop", "first")) as app:
        app.overview()
    monkeypatch.setenv("HEADRACE_CREDENTIALS", f"{__name__}:token")
    with Headrace(url) as app:
        app.overview()


def token() -> str:
    return "first"


def test_what_stands_in_the_way_of_credentials_is_told(url: str, server: Server, tmp_path: Path) -> None:
    def failing() -> str:
        raise RuntimeError("no network")

    absent = str(tmp_path / "absent")
    refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"password_file": absent}, StoreUnavailable, f"came from HEADRACE_PASSWORD_FILE={absent}: .*correct what"),
        ({"credentials": failing}, StoreUnavailable, "came from function: no network"),
        ({"credentials": lambda: "wrong"}, UrlError, "check user and password that function gives"),
        ({"credentials": lambda: 3}, SettingsError, r"must give a password, \(user, password\) or .*, not a int"),
        ({"credentials": "nowhere:token"}, SettingsError, "No module named 'nowhere'"),
    ]
    for given, kind, says in refusals:
        with (
            Headrace(url, timeout=0.1 if kind is StoreUnavailable else 5, **given) as app,
            pytest.raises(kind, match=says),
        ):
            app.overview()
    for wrong in ("token", 3):
        with pytest.raises(SettingsError, match=r"^credentials=.* cannot be used: it names no function"):
            Headrace(url, credentials=wrong)
    with pytest.raises(SettingsError, match="leave out one of them"):
        Headrace(url, credentials=failing, password_file="p")
    both = Headrace(server.url_of("shop:first"), credentials=token)
    with both as app, pytest.raises(UrlError, match=r"has a password, and function gives one: leave out"):
        app.overview()
    with pytest.raises(UsageFault, match="No module named 'nowhere'"):
        Session(Output(json=False), {"url": url, "credentials": "nowhere:token"}).app()


def test_another_server_gets_no_credentials(url: str, server: Server, new_server: Callable[..., Server]) -> None:
    """That of the statistics, and the private one, have none that the settings name."""
    asked = Asked("shop", "first")
    with Headrace(url, credentials=asked, stats_url=new_server().url) as app:
        app.stats.add("a", {"b": 1})
        app.stats.flush()
    assert asked.times == 0
    assert Settings().credentials is None


def test_a_server_that_refuses_a_label_is_used_all_the_same(url: str, client: redis.Redis, tmp_path: Path) -> None:
    """Some providers block CLIENT SETNAME."""
    file = tmp_path / "password"
    file.write_text("first")

    async def story() -> None:
        app = Headrace(url, password_file=str(file))
        await app.jobs.apage("failed")
        await app.aclose()

    with Headrace(url, password_file=str(file)) as app:
        app.overview()
        assert [one["name"] for one in client.client_list() if one["user"] == "shop"] == ["headrace"]
    client.execute_command("ACL", "SETUSER", "shop", "-client", "+client|id", "+client|unblock", "+client|tracking")
    with Headrace(url, password_file=str(file)) as app:
        app.overview()
        assert [one["name"] for one in client.client_list() if one["user"] == "shop"] == [""]
    asyncio.run(story())
