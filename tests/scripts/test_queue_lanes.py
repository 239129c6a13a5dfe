"""The included script ``queue_lanes``: lists and errands reach the jobs that wait behind a limit."""

from __future__ import annotations

import pytest

from headrace.model.errand import JobFilter
from headrace.protocol import index_pages
from headrace.protocol.operations import begin_errand, bite, count_meant
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


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("desc", [True, False])
def test_a_walk_passes_the_lanes_behind_the_line(stage: Stage, limit: int, desc: bool) -> None:
    jobs = limited(stage)
    stage.put(queue="after")
    names, last, seen = ["default", "after"], None, list[tuple[str, str]]()
    for _ in range(40):
        told = stage.run(index_pages.walk(stage.keys, "ready", names, limit, last, desc)).rows
        rows = [(name, id, score) for name, found in told for id, score in found]
        seen += [(name, id) for name, id, _ in rows]
        if len(rows) < limit:
            break
        name, id, score = rows[-1]
        names, last = ([name, "after"] if name != "after" else [name]), (score, id)
    assert len(seen) == len(set(seen)) == 11
    assert {id for name, id in seen if name.startswith("default")} == {id for found in jobs.values() for id in found}
    assert [id for name, id in seen if name == "default"] == (jobs["free"][::-1] if desc else jobs["free"])
    # One lane follows the other: none is left and come back to.
    places = [name for name, _ in seen]
    assert list(dict.fromkeys(places)) == sorted(set(places), key=lambda name: (name == "after", name))


@pytest.mark.parametrize("limit", [1, 2, 3, 250])
@pytest.mark.parametrize(("verb", "which", "done"), [("cancel", {}, 10), ("delete", {"task": "call"}, 5)])
def test_a_verb_on_many_reaches_them(stage: Stage, limit: int, verb: str, which: dict[str, str], done: int) -> None:
    jobs = limited(stage)
    meant = JobFilter("ready", "default", **which)
    matched, after = 0, ("", "", "")
    while True:
        piece = stage.run(count_meant(stage.keys, meant, limit, after))
        matched += piece.matched
        if piece.last is None:
            break
        after = piece.last
    assert matched == done
    fields: dict[str, str | int] = {"verb": verb, "state": "ready", "queue": "default", "ttl": KEEP, **which}
    stage.run(begin_errand(stage.keys, "e1", fields))
    errand = stage.run(bite(stage.keys, "e1", limit))
    for _ in range(60):
        if errand is not None and errand.phase == "running":
            errand = stage.run(bite(stage.keys, "e1", limit))
    assert errand is not None
    assert (errand.phase, errand.done, errand.refused) == ("ended", done, {})
    left = {id for name in ("push", "free") for id in jobs[name]} if which else set[str]()
    assert {id for found in jobs.values() for id in found if stage.state(id) == "ready"} == left
