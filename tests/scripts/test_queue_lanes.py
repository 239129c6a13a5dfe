"""The included script ``queue_lanes``: errands reach the jobs that wait behind a limit."""

from __future__ import annotations

import pytest

from headrace.model.errand import JobFilter
from headrace.protocol.errand_calls import begin_errand, bite, count_meant
from tests.scripts.limited_stage import ACCOUNT, API, declare, put
from tests.scripts.stage import KEEP, Stage


def limited(stage: Stage) -> dict[str, list[str]]:
    """Jobs by their structure: of two values behind a limit, of a limit without values, and of none."""
    declare(stage, {"call": [ACCOUNT], "push": [API]})
    found = {
        "acme": put(stage, *["acme"] * 3),
        "zeta": put(stage, *["zeta"] * 2),
        "push": put(stage, 1, 2, task="push"),
    }
    return found | {"free": put(stage, 1, 2, 3, task="free")}


@pytest.mark.parametrize("limit", [1, 2, 3, 250])
@pytest.mark.parametrize(("verb", "which", "done"), [("cancel", {}, 10), ("delete", {"task": "call"}, 5)])
def test_a_verb_on_many_reaches_them(stage: Stage, limit: int, verb: str, which: dict[str, str], done: int) -> None:
    jobs = limited(stage)
    meant = JobFilter("ready", "default", **which)
    matched, after = 0, ("", "", "")
    while True:
        piece = stage.run(count_meant(stage.keys, meant, limit, after, stage.now))
        matched += piece.matched
        if piece.last is None:
            break
        after = piece.last
    assert matched == done
    fields: dict[str, str | int] = {"verb": verb, "state": "ready", "queue": "default", "ttl": KEEP, **which}
    stage.run(begin_errand(stage.keys, "e1", fields, stage.now))
    errand = stage.run(bite(stage.keys, "e1", limit, stage.now))
    for _ in range(60):
        if errand is not None and errand.phase == "running":
            errand = stage.run(bite(stage.keys, "e1", limit, stage.now))
    assert errand is not None
    assert (errand.phase, errand.done, errand.refused) == ("ended", done, {})
    left = {id for name in ("push", "free") for id in jobs[name]} if which else set[str]()
    assert {id for found in jobs.values() for id in found if stage.state(id) == "ready"} == left
