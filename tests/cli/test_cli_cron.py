"""Schedules from the shell: what they are, when they tick, what became of it; hold, run, backfill, delete."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from headrace import Cron, Every, Headrace
from tests.commands import Commands


@pytest.fixture
def headrace(tmp_path: Path, url: str) -> Commands:
    app = Headrace(url)

    @app.task(name="tasks.add")
    def add(a: int) -> None:
        del a

    app.schedules.put("nightly", Cron("0 3 * * *", "Europe/Berlin"), add, 1)
    app.schedules.put("often", Every(3600), add, 2)
    app.close()
    return Commands(tmp_path, url)


def test_schedules_are_shown_with_their_times(headrace: Commands) -> None:
    rows = {row["name"]: row for row in headrace("cron", "list", "--json").lines}
    assert list(rows) == ["nightly", "often"]
    assert {row["state"] for row in rows.values()} == {"active"}
    shown = headrace("cron", "list").out
    assert "0 3 * * *" in shown
    assert "tasks.add" in shown
    page = headrace("cron", "list", "--limit", "1")
    assert "often" not in page.out
    assert page.err.splitlines() == ["2 in all", "more: --after nightly"]
    first, following = headrace("cron", "list", "--limit", "1", "--json").lines
    assert (first["name"], following) == ("nightly", {"next": "nightly"})
    assert [row["name"] for row in headrace("cron", "list", "--after", "nightly", "--json").lines] == ["often"]
    shown = headrace("cron", "show", "nightly").out
    assert "Europe/Berlin" in shown
    assert re.search(r"created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+", shown)
    assert headrace("cron", "show", "nightly", "--json").lines[0]["name"] == "nightly"
    due = [datetime.fromisoformat(line["due"]) for line in headrace("cron", "next", "often", "-n", "3", "--json").lines]
    assert [(later - one).total_seconds() for one, later in pairwise(due)] == [3600, 3600]


def test_a_schedule_that_is_named_twice_is_deleted_once(headrace: Commands) -> None:
    assert headrace("cron", "rm", "often", "often", "--yes").out == "deleted 1 schedule\n"


def test_a_schedule_is_held_run_and_backfilled(headrace: Commands) -> None:
    assert "nightly is paused" in headrace("cron", "pause", "nightly", "--note", "vendor is slow").out
    assert "was paused already" in headrace("cron", "pause", "nightly", "--note", "vendor is down").out
    assert "vendor is down" in headrace("cron", "show", "nightly").out
    assert headrace("cron", "list", "--json").lines[0]["state"] == "paused"
    assert "paused: vendor is down" in headrace("cron", "list").out
    assert "ticks again" in headrace("cron", "resume", "nightly").out
    assert "was not paused" in headrace("cron", "resume", "nightly").out
    job = headrace("cron", "run", "nightly").out.strip()
    assert headrace("jobs", "show", job, "--json").lines[0]["task"] == "tasks.add"
    assert "--overlap allow_all does" in headrace("cron", "run", "nightly", code=1).err
    assert headrace("cron", "run", "nightly", "--overlap", "allow_all").out.strip() != job
    assert [one["what"] for one in headrace("cron", "ticks", "nightly", "--json").lines] == ["ran", "skipped", "ran"]
    zone = datetime.now(UTC).astimezone().tzname()
    rows = headrace("cron", "ticks", "nightly").out
    assert job in rows
    assert rows.count(f" {zone} ") == 3
    assert f" {zone}\n" in headrace("cron", "next", "nightly").out
    made = headrace("cron", "backfill", "often", "--from", "5h ago", "--overlap", "allow_all", "--json").lines[0]
    assert len(made["jobs"]) == 5
    again = headrace("cron", "backfill", "often", "--from", "5h ago", "--overlap", "allow_all")
    assert "made 0 jobs of often" in again.out
    assert "--most" in headrace("cron", "backfill", "often", "--from", "40d ago", code=2).err
    acts = [(act["verb"], act["name"]) for act in headrace("acts", "--json", "--order", "asc").lines]
    assert acts[:3] == [("pause", "nightly"), ("pause", "nightly"), ("resume", "nightly")]
    assert ("backfill", "often") in acts


def test_schedules_are_deleted_and_unknown_ones_are_named(headrace: Commands) -> None:
    assert "often" in headrace("cron", "rm", "often", code=2).err
    gone = headrace("cron", "rm", "often", "nothing", "--yes", code=1)
    assert "there is no schedule nothing" in gone.err
    assert [row["name"] for row in headrace("cron", "list", "--json").lines] == ["nightly"]
    for verb in ("show", "next", "ticks", "pause", "resume", "run"):
        assert "often" in headrace("cron", verb, "often", code=1).err, verb
