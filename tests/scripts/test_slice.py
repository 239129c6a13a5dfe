"""The included script ``slice``: the same piece of a set whichever way it is asked for. What pages is in test_page."""

from __future__ import annotations

import random

import pytest

from headrace.protocol.graph import flow_page
from tests.scripts.stage import Stage

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
        call = flow_page(stage.keys, "", "", limit, after, offset, desc, since, until)
        seen = [(score, id) for id, score in stage.run(call).seen]
        assert seen == expected[offset : offset + limit], (desc, limit, offset, since, until, after)


def test_an_empty_set_has_no_piece(stage: Stage) -> None:
    page = stage.run(flow_page(stage.keys, "none", "failed", after=(5, "x")))
    assert (page.count, page.seen, page.rows) == (0, [], [])
