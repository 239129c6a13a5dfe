from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace import Headrace
from headrace import settings as module
from headrace.cli import worker_order
from headrace.errors import OptionsError, SettingsError
from headrace.settings import Settings, environment_name, load, microseconds, seconds, warn_of_unknown
from headrace.worker import reload_parent
from tests.docs.reference import texts_of_settings


def test_the_environment_gives_and_the_caller_overrides() -> None:
    environ = {
        "HEADRACE_LEASE": "4.5",
        "HEADRACE_MAX_FINISHED": "7",
        "HEADRACE_ALLOW_EVICTION": "1",
        "HEADRACE_URL": "",
    }
    settings = load(environ, lease=2, shutdown_timeout=None)
    assert (settings.lease, settings.max_finished, settings.allow_eviction, settings.url) == (2.0, 7, True, None)
    assert settings.shutdown_timeout == Settings().shutdown_timeout


@pytest.mark.parametrize(
    ("environ", "given", "text"),
    [
        ({"HEADRACE_LEASE": "soon"}, {}, "HEADRACE_LEASE='soon' cannot be used: expected a number"),
        ({"HEADRACE_LEASE": "0"}, {}, "HEADRACE_LEASE='0' cannot be used: expected a number >= 0.2"),
        ({}, {"lease": -3}, "lease=-3 cannot be used: expected a number >= 0.2"),
        ({"HEADRACE_LEASE": "\udcff"}, {}, "HEADRACE_LEASE='\\udcff' cannot be used: bytes that are no UTF-8"),
        ({"HEADRACE_RESULT_TTL": "inf"}, {}, "HEADRACE_RESULT_TTL='inf' cannot be used: a time is at most 100 years"),
        ({}, {"failure_ttl": 1e18}, "failure_ttl=1e+18 cannot be used: a time is at most 100 years"),
        ({}, {"log": "xml"}, "log='xml' cannot be used: use one of text, json"),
        ({"HEADRACE_MAX_CRASHES": "1.5"}, {}, "HEADRACE_MAX_CRASHES='1.5' cannot be used: expected a whole number"),
        (
            {"HEADRACE_NAMESPACE": "a b"},
            {},
            "HEADRACE_NAMESPACE='a b' cannot be used: use 1 to 64 letters, digits and _",
        ),
        (
            {},
            {"leese": 3},
            "there is no setting 'leese' (did you mean lease?); the settings are url, dir, namespace, shards",
        ),
    ],
)
def test_what_cannot_be_used_is_named(environ: dict[str, str], given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(environ, **given)
    assert text in str(caught.value)


def test_no_password_is_shown() -> None:
    urls = {
        "url": "redis://me:open-sesame@host:6379/1",
        "stats_url": "sentinel://me:open-sesame@one,two/shop",
        "stats_broker": "amqp://me:open%2Fsesame@host?password=open-sesame",
    }
    settings = load({}, **urls)
    assert settings.url == urls["url"]
    for text in (repr(settings), str(settings), f"{settings}", str(settings.__rich_repr__())):
        assert "open" not in text
        assert "redis://***@host:6379/1" in text
        assert "lease" in text
    with pytest.raises(SettingsError) as caught:
        load({}, url=["open-sesame"])
    assert "open-sesame" not in str(caught.value)


def test_each_setting_says_what_it_is() -> None:
    texts = texts_of_settings()
    assert list(texts) == list(Settings.__struct_fields__)
    assert all(texts.values())
    assert environment_name("max_finished") == "HEADRACE_MAX_FINISHED"


def test_durations_are_seconds_or_timedeltas() -> None:
    assert (seconds(3, "it"), seconds(0.5, "it"), seconds(timedelta(minutes=2), "it")) == (3.0, 0.5, 120.0)
    assert microseconds(1.5) == 1_500_000


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 4e9, "3", None, True, timedelta(days=-1)])
def test_other_durations_are_refused(value: Any) -> None:
    with pytest.raises(OptionsError, match=r"^it must be "):
        seconds(value, "it")
    with pytest.raises(OptionsError, match=r"^it must be more than 0"):
        seconds(0, "it", zero=False)


LAYERS = [
    ({"lease": 1}, {"HEADRACE_LEASE": "2"}, {"lease": 3}, 1, "Headrace(lease=...)"),
    ({"lease": None}, {"HEADRACE_LEASE": "2"}, {"lease": 3}, 2, "HEADRACE_LEASE"),
    ({}, {"HEADRACE_LEASE": ""}, {"lease": 3}, 3, "Headrace(defaults={'lease': ...})"),
    ({}, {}, {"lease": None}, 15, None),
    ({"lease": 1}, {"HEADRACE_LEASE": "soon"}, {"lease": "never"}, 1, "Headrace(lease=...)"),
]


@pytest.mark.parametrize(("given", "environ", "defaults", "value", "source"), LAYERS)
def test_the_highest_layer_that_has_a_value_gives_it(
    given: dict[str, Any],
    environ: dict[str, str],
    defaults: dict[str, Any],
    value: float,
    source: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    app = Headrace(defaults=defaults, **given)
    assert (app.settings.lease, app.sources.get("lease")) == (value, source)
    app.override(lease=9, timeout=None)
    assert (app.settings.lease, app.client.settings.lease, app.sources["lease"]) == (9, 9, "--lease")
    assert app.settings.timeout == Settings().timeout


def test_what_is_wrong_in_the_defaults_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^defaults\['lease'\]=-1 cannot be used: expected a number >= 0.2"):
        Headrace(defaults={"lease": -1})
    with pytest.raises(SettingsError, match=r"^there is no setting 'LEASE' in defaults; the settings are url"):
        Headrace(defaults={"LEASE": 1})
    with pytest.raises(SettingsError, match="give one of them"):
        Headrace(settings=Settings(), defaults={"lease": 1})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"result_ttl": float("inf")}, "result_ttl=inf cannot be used: a time is at most 100 years"),
        ({"lease": "soon"}, "lease='soon' cannot be used: expected a number"),
        ({"url": 7}, "url=*** cannot be used"),
    ],
)
def test_settings_that_a_program_made_are_checked(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Headrace(settings=Settings(**given))
    assert text in str(caught.value)
    with pytest.raises(SettingsError, match="takes Settings"):
        Headrace(settings=given)  # type: ignore[arg-type]
    assert Headrace(settings=Settings(lease="20")).settings.lease == 20  # type: ignore[arg-type]


def test_flags_move_an_application_to_another_server_and_namespace() -> None:
    app = Headrace("redis://one", namespace="a")

    @app.cached
    def slow() -> int:
        return 1

    cache = app.cache
    app.override(url="redis://two", namespace="b", preload=["json", "math"])
    assert (app.store.target.shown, app.client.keys("x"), app.settings.preload) == (
        "redis://two",
        "{b:0}:x",
        "json,math",
    )
    assert app.cache is cache
    assert cache._steps._keys == app.client.keys
    with pytest.raises(SettingsError, match="there is no setting 'colour'"):
        app.override(colour=1)


def test_a_flag_with_a_directory_wins_over_a_url_of_a_layer_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_URL", "redis://production")
    app = Headrace()
    app.override(dir=None)
    assert app.settings.url == "redis://production"
    app.override(dir="/somewhere/data")
    assert (app.settings.url, app.settings.dir, app.client.settings.url) == (None, "/somewhere/data", None)
    app.override(dir="/somewhere/data", url="redis://two")
    assert app.settings.url == "redis://two"


def test_variables_that_are_no_settings_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())
    environ = dict.fromkeys((*module.NO_SETTINGS, *map(environment_name, Settings.__struct_fields__), "HEADRACES"), "1")
    told: list[str] = []
    warn_of_unknown(environ, told.append)
    assert told == []
    for _ in range(2):
        warn_of_unknown(environ | {"HEADRACE_TIMEUOT": "3", "HEADRACE_XYZZY": ""}, told.append)
    assert told == [
        "HEADRACE_TIMEUOT is set, but there is no such setting (did you mean HEADRACE_TIMEOUT?): it has no effect",
        "HEADRACE_XYZZY is set, but there is no such setting: it has no effect",
    ]


def test_variables_between_processes_are_no_settings() -> None:
    assert {reload_parent.VARIABLE, worker_order._NAME} <= set(module.NO_SETTINGS)
