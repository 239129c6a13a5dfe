from __future__ import annotations

import pytest

from headrace.protocol.operations import LOOK, tell, told
from tests.scripts.stage import Stage


@pytest.fixture
def ids(stage: Stage) -> list[str]:
    kinds = ["jobs", "queues", "jobs", "jobs", "queues"]
    return [stage.run(tell(stage.keys, "acts", str(n), {"n": n, "kind": kind})) for n, kind in enumerate(kinds)]


@pytest.mark.parametrize("desc", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_pages_follow_each_other(stage: Stage, ids: list[str], desc: bool, limit: int) -> None:
    found: list[str] = []
    after = ""
    while True:
        piece = stage.run(told(stage.keys, "acts", limit, after, desc=desc))
        assert (piece.count, piece.newest) == (5, ids[-1])
        found += [id for id, _ in piece.rows]
        if not piece.last:
            break
        after = piece.last
    assert found == (ids[::-1] if desc else ids)


def test_only_some_kinds(stage: Stage, ids: list[str]) -> None:
    piece = stage.run(told(stage.keys, "acts", 2, kinds=["jobs"]))
    assert [id for id, _ in piece.rows] == [ids[3], ids[2]]
    rest = stage.run(told(stage.keys, "acts", 2, piece.last, kinds=["jobs"]))
    assert [id for id, _ in rest.rows] == [ids[0]]
    assert rest.last == ""


def test_a_look_is_bounded(stage: Stage) -> None:
    pipe = stage.client.pipeline()
    for n in range(LOOK + 5):
        pipe.xadd(stage.keys("events"), {"kind": "failed" if n == 0 else "parked"})
    pipe.execute()
    first = stage.run(told(stage.keys, "events", 10, kinds=["failed"]))
    assert (first.rows, bool(first.last)) == ([], True)
    assert len(stage.run(told(stage.keys, "events", 10, first.last, kinds=["failed"])).rows) == 1
    stage.client.delete(stage.keys("events"))


def test_where_a_stream_ends(stage: Stage, ids: list[str]) -> None:
    piece = stage.run(told(stage.keys, "acts", 0))
    assert (piece.rows, piece.newest) == ([], ids[-1])
    nothing = stage.run(told(stage.keys, "events", 0))
    assert (nothing.count, nothing.rows, nothing.newest, nothing.last) == (0, [], "", "")
