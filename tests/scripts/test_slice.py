"""The included script ``slice``: the same piece of a set whichever way it is asked for. What pages is in test_page."""

from __future__ import annotations

import random

import pytest

from headrace.protocol.graph import flow_page
from headrace.protocol.index_pages import Slice, walk
from headrace.protocol.operations import JobFilter, count_meant
from tests.scripts.limited_stage import ACCOUNT, API, declare, put
from tests.scripts.stage import Stage
from tests.scripts.test_bulk_piece import Operation

pytestmark = pytest.mark.mangles


def test_any_piece_is_what_a_sorted_list_would_give(stage: Stage) -> None:
    dice = random.Random(7)
    rows = {f"{n:022d}": dice.randrange(6) for n in range(40)}
    line = sorted((score, id) for id, score in rows.items())
    for _ in range(300):
        stage.client.delete(stage.keys("flows:|"))
        stage.client.zadd(stage.keys("flows:|"), rows)
        desc, limit, offset = dice.random() < 0.5, dice.randrange(8), dice.choice([0, 0, 3])
        since, until = dice.choice([None, dice.randrange(6)]), dice.choice([None, dice.randrange(6)])
        # Also places between rows, which an id leaves behind that has gone.
        after = dice.choice([None, dice.choice(line), (dice.randrange(6), f"{dice.randrange(40):021d}5")])
        expected = [row for row in line if (since is None or row[0] >= since) and (until is None or row[0] <= until)]
        if desc:
            expected.reverse()
        if after:
            expected = [row for row in expected if (row < after if desc else row > after)]
        call = flow_page(stage.keys, piece=Slice(limit, after, offset, desc, since, until))
        seen = [(score, id) for id, score in stage.run(call).seen]
        assert seen == expected[offset : offset + limit], (desc, limit, offset, since, until, after)


def test_an_empty_set_has_no_piece(stage: Stage) -> None:
    page = stage.run(flow_page(stage.keys, "none", "failed", Slice(after=(5, "x"))))
    assert (page.count, page.seen, page.rows) == (0, [], [])


def limited(stage: Stage) -> dict[str, list[str]]:
    """Jobs by their structure: of two values behind a limit, of a limit without values, and of none."""
    declare(stage, {"call": [ACCOUNT], "push": [API]})
    found = {
        "acme": put(stage, *["acme"] * 3),
        "zeta": put(stage, *["zeta"] * 2),
        "push": put(stage, 1, 2, task="push"),
    }
    return found | {"free": put(stage, 1, 2, 3, task="free")}


def seen(stage: Stage, limit: int, *, desc: bool, until: int | None = None, looks: int = 1000) -> list[str]:
    """Ids of a walk in pieces."""
    names, place, last, found = ["ready:default", "ready:z"], "", None, list[str]()
    for _ in range(3000):
        part = stage.run(walk(stage.keys, names, Slice(limit, last, desc=desc, until=until), place=place, looks=looks))
        found += [id for id, _ in part.rows]
        if part.last is None:
            return found
        names, place, last = names[part.behind :], part.place, part.last
    raise AssertionError("the walk has no end")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("desc", [True, False])
def test_a_walk_passes_the_lanes_behind_the_line(stage: Stage, limit: int, desc: bool) -> None:
    jobs = limited(stage)
    after = stage.put(queue="z")
    found = seen(stage, limit, desc=desc)
    assert sorted(found) == sorted([id for ids in jobs.values() for id in ids] + after)
    assert (found[:3], found[-1:]) == (jobs["free"][::-1] if desc else jobs["free"], after)
    # One lane follows the other: none is left and come back to.
    lane_of = {id: name for name, ids in jobs.items() for id in ids}
    places = [lane_of[id] for id in found[:-1]]
    assert list(dict.fromkeys(places)) == [name for n, name in enumerate(places) if places[n - 1 : n] != [name]]


@pytest.mark.parametrize("desc", [True, False])
def test_a_walk_passes_more_lanes_than_one_script_reads(stage: Stage, desc: bool) -> None:
    declare(stage, {"call": [ACCOUNT]})
    made = put(stage, *range(1100))
    assert sorted(seen(stage, 1000, desc=desc, looks=400)) == sorted(made)
    # Lanes without a job of the wanted time are passed in pieces, too.
    assert seen(stage, 1000, desc=desc, looks=400, until=1) == []


def test_lanes_whose_gates_close_and_open_meanwhile_are_not_passed_over(stage: Stage) -> None:
    declare(stage, {"call": [ACCOUNT]})
    made = put(stage, *[n // 2 for n in range(40)])
    part = stage.run(walk(stage.keys, ["ready:default"], Slice(10, desc=False)))
    found = [id for id, _ in part.rows]
    claims = stage.claim(limit=12).jobs
    started = {claim.id for claim in claims}
    for claim in claims[:6]:
        stage.end(claim)
    while part.last:
        part = stage.run(walk(stage.keys, ["ready:default"], Slice(10, part.last, desc=False), place=part.place))
        found += [id for id, _ in part.rows]
    assert set(made) - started <= set(found)


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
    operation = Operation(stage, verb, "ready", queue="default", **which)
    progress = operation.finish(limit)
    assert (progress.done, progress.refused) == (done, {})
    left = {id for name in ("push", "free") for id in jobs[name]} if which else set[str]()
    assert {id for found in jobs.values() for id in found if stage.state(id) == "ready"} == left
