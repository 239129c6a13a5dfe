"""The tie to Sentry without a worker: monitors of schedules, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import OptionsError

pytest.importorskip("sentry_sdk")
from headrace.contrib import sentry


def test_a_monitor_has_the_times_of_its_schedule() -> None:
    app = Headrace("redis://127.0.0.1:1")

    @app.task(name="report")
    def report() -> None: ...

    app.cron("0 9 * * MON-FRI", report, timezone="Europe/Berlin", name="daily")
    app.every(300, report, name="often")
    app.every(1, report, name="each")
    crontab = {"schedule": {"type": "crontab", "value": "0 9 * * MON-FRI"}, "timezone": "Europe/Berlin"}
    assert sentry.monitor_config(app, "daily") == crontab
    assert sentry.monitor_config(app, "often") == {"schedule": {"type": "interval", "value": 5, "unit": "minute"}}
    assert sentry.monitor_config(app, "each") is None
    assert sentry.monitor_config(app, "unknown") is None


@pytest.mark.parametrize("report", ["never", 0, True, -1])
def test_an_unknown_policy_is_refused(report: Any) -> None:
    with pytest.raises(OptionsError, match="report is"):
        sentry.install(Headrace("redis://127.0.0.1:1"), report=report)


@pytest.mark.parametrize(("name", "told"), [("Mail / EU", "mail-eu"), ("a" * 80, "a" * 50), ("ä", "schedule")])
def test_a_monitors_name_is_one_that_sentry_takes(name: str, told: str) -> None:
    assert sentry.monitor_slug(name) == told
