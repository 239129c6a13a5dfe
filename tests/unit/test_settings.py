from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headrace.errors import OptionsError, SettingsError
from headrace.settings import Settings, environment_name, load, microseconds, seconds


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
        ({"HEADRACE_LEASE": "soon"}, {}, "HEADRACE_LEASE='soon' cannot be used: expected `float`, got `str`"),
        ({"HEADRACE_LEASE": "0"}, {}, "HEADRACE_LEASE='0' cannot be used: expected `float` >= 0.2"),
        ({}, {"lease": -3}, "lease=-3 cannot be used: expected `float` >= 0.2"),
        ({}, {"log": "xml"}, "log='xml' cannot be used"),
        ({"HEADRACE_NAMESPACE": "a b"}, {}, "HEADRACE_NAMESPACE='a b' cannot be used"),
        ({}, {"leese": 3}, "there is no setting 'leese'; the settings are url, dir, namespace, lease"),
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
    for field in msgspec.structs.fields(Settings):
        meta = field.type.__metadata__[0] if hasattr(field.type, "__metadata__") else None
        assert meta is not None, field.name
        assert meta.description, field.name
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
