from __future__ import annotations

from headrace.protocol.operations import begin_errand, read_errands
from tests.scripts.stage import Stage


def test_the_newest_come_first_and_what_expired_is_forgotten(stage: Stage) -> None:
    for id in "abc":
        stage.run(begin_errand(stage.keys, id, {"verb": "retry", "state": "failed", "total": 7}))
        stage.now += 1
    stage.client.delete(stage.keys("errand:b"))
    assert [one.id for one in stage.run(read_errands(stage.keys))] == ["c", "a"]
    assert list(stage.members("errands")) == ["a", "c"]
    assert [one.id for one in stage.run(read_errands(stage.keys, limit=1))] == ["c"]
    (one,) = stage.run(read_errands(stage.keys, "a"))
    assert (one.total, one.exact, one.refused, one.words) == (7, False, {}, "0 done")
    assert stage.run(read_errands(stage.keys, "none")).rows == []


def test_a_page_follows_the_one_before(stage: Stage) -> None:
    for id in "abcd":
        stage.run(begin_errand(stage.keys, id, {"verb": "retry", "state": "failed"}))
        stage.now += 1
    pages, after = list[tuple[list[str], int, str | None]](), ""
    for _ in range(2):
        page = stage.run(read_errands(stage.keys, limit=2, after=after))
        pages.append(([one.id for one in page], page.count, page.next))
        after = page.next or ""
    assert pages == [(["d", "c"], 4, "c"), (["b", "a"], 4, None)]
    assert stage.run(read_errands(stage.keys, after="gone")).rows == []
