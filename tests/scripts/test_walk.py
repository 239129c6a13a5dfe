from __future__ import annotations

import pytest

from headrace.protocol import index_pages
from tests.scripts.stage import START, Stage


def lined_up(stage: Stage) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for queue, count in (("a", 3), ("b", 0), ("c", 1), ("d", 4)):
        for n in range(count):
            stage.now = START + n
            stage.put(queue=queue)
        found[queue] = list(stage.members(f"ready:{queue}").items())
    return found


@pytest.mark.parametrize("desc", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 4, 5, 8, 1000])
def test_structures_follow_each_other(stage: Stage, desc: bool, limit: int) -> None:
    rows = {queue: found[::-1] if desc else found for queue, found in lined_up(stage).items()}
    told = stage.run(index_pages.walk(stage.keys, "ready", list(rows), limit, desc=desc)).rows
    assert [row for _, found in told for row in found] == [row for found in rows.values() for row in found][:limit]
    assert all(found == rows[queue][: len(found)] for queue, found in told)


@pytest.mark.parametrize("desc", [True, False])
def test_a_cursor_is_one_of_the_first(stage: Stage, desc: bool) -> None:
    rows = {queue: found[::-1] if desc else found for queue, found in lined_up(stage).items()}
    id, score = rows["a"][1]
    told = stage.run(index_pages.walk(stage.keys, "ready", ["a", "d"], 3, (score, id), desc)).rows
    assert told == [("a", rows["a"][2:]), ("d", rows["d"][:2])]


def test_a_window_holds_in_each(stage: Stage) -> None:
    rows = lined_up(stage)
    told = stage.run(
        index_pages.walk(stage.keys, "ready", list(rows), 100, since=START + 1, until=START + 2, desc=False)
    )
    assert told.rows == [(queue, found[1:3]) for queue, found in rows.items()]


def test_claims_and_parked_jobs(stage: Stage) -> None:
    parked = stage.running(task="t")
    stage.end(parked, "parked")
    claim = stage.running()
    rows = stage.run(index_pages.walk(stage.keys, "claims", ["w0", "w1"], 9)).rows
    assert rows == [("w0", []), ("w1", [(claim.id, claim.token)])]
    assert stage.run(index_pages.walk(stage.keys, "parked", ["t"], 9)).rows == [("t", [(parked.id, stage.now)])]
