from __future__ import annotations

import pytest

from headrace.protocol import index_pages
from headrace.protocol.index_pages import Slice
from tests.scripts.stage import SECOND, START, Stage

INDEX = "ready:default"


def lined_up(stage: Stage, scores: list[int]) -> list[tuple[str, int]]:
    """Ready jobs at these offsets from the start; the index as rows."""
    for offset in scores:
        stage.now = START + offset
        stage.put()
    return list(stage.members(INDEX).items())


def walk(stage: Stage, limit: int, desc: bool, **window: int | None) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    after: tuple[int, str] | None = None
    while True:
        page = stage.run(index_pages.page(stage.keys, INDEX, Slice(limit, after, desc=desc, **window)))
        assert len(page.rows) <= limit
        if not page.rows:
            return found
        found += page.rows
        after = (page.rows[-1][1], page.rows[-1][0])


@pytest.mark.parametrize("desc", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_pages_tell_each_row_once_in_order_ties_included(stage: Stage, desc: bool, limit: int) -> None:
    rows = lined_up(stage, [0, 1, 1, 1, 1, 2, 5, 5, 9])
    assert walk(stage, limit, desc) == (rows[::-1] if desc else rows)


@pytest.mark.parametrize("desc", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_window_holds_on_every_page(stage: Stage, desc: bool, limit: int) -> None:
    rows = lined_up(stage, [0, 1, 2, 2, 3, 3, 4, 5])
    wanted = [row for row in rows if START + 2 <= row[1] <= START + 3]
    found = walk(stage, limit, desc, since=START + 2, until=START + 3)
    assert found == (wanted[::-1] if desc else wanted)


@pytest.mark.parametrize("desc", [True, False])
def test_a_cursor_whose_job_has_left_neither_repeats_nor_skips(stage: Stage, desc: bool) -> None:
    rows = lined_up(stage, [0, *[1] * 40, 2])
    ordered = rows[::-1] if desc else rows
    for n in (0, 1, 7, 39, 40, 41):
        id, score = ordered[n]
        stage.client.zrem(stage.keys(INDEX), id)
        page = stage.run(index_pages.page(stage.keys, INDEX, Slice(1000, (score, id), desc=desc)))
        assert page.rows == ordered[n + 1 :]
        stage.client.zadd(stage.keys(INDEX), {id: score})


def test_a_cursor_whose_job_has_moved_on_keeps_its_place(stage: Stage) -> None:
    rows = lined_up(stage, [0, 1, 2, 3])
    id, score = rows[1]
    stage.client.zadd(stage.keys(INDEX), {id: START + 99})
    page = stage.run(index_pages.page(stage.keys, INDEX, Slice(10, (score, id), desc=False)))
    assert page.rows == [rows[2], rows[3], (id, START + 99)]


@pytest.mark.parametrize("desc", [True, False])
def test_a_position(stage: Stage, desc: bool) -> None:
    rows = lined_up(stage, [0, 1, 1, 2])
    ordered = rows[::-1] if desc else rows
    assert stage.run(index_pages.page(stage.keys, INDEX, Slice(2, offset=1, desc=desc))).rows == ordered[1:3]
    after = (ordered[0][1], ordered[0][0])
    assert stage.run(index_pages.page(stage.keys, INDEX, Slice(2, after, 1, desc))).rows == ordered[2:4]


def test_the_count_is_the_whole_index(stage: Stage) -> None:
    lined_up(stage, [0, 1, 2])
    page = stage.run(index_pages.page(stage.keys, INDEX, Slice(1, since=START + 2)))
    assert (page.count, len(page.rows)) == (3, 1)


@pytest.mark.parametrize("limit", [499, 500, 501, 999, 1000])
def test_large_pages(stage: Stage, limit: int) -> None:
    stage.put(1001)
    page = stage.run(index_pages.page(stage.keys, INDEX, Slice(limit, desc=False)))
    assert (page.count, len(page.rows)) == (1001, limit)


def test_every_structure_has_pages(stage: Stage) -> None:
    done = stage.finished()
    parked = stage.running(task="t")
    stage.end(parked, "parked")
    running, later = stage.running(), stage.put(delay=SECOND)[0]
    for index, id in [
        ("succeeded", done), ("parked:t", parked.id), ("claims:w1", running.id), ("scheduled", later)
    ]:  # fmt: skip
        assert [row[0] for row in stage.run(index_pages.page(stage.keys, index)).rows] == [id]
    assert stage.run(index_pages.page(stage.keys, "failed")) == index_pages.IndexPage(0, [])
