from __future__ import annotations

import pytest

from headrace.protocol.operations import KEPT_FOR, tell, told
from tests.scripts.stage import Stage


def test_an_entry_is_added_once_however_often_it_is_sent(stage: Stage) -> None:
    fields: dict[str, str | int] = {"who": "ada", "count": 3}
    first = stage.run(tell(stage.keys, "acts", "r1", fields))
    assert stage.run(tell(stage.keys, "acts", "r1", fields)) == first
    assert stage.run(tell(stage.keys, "acts", "r2", fields)) != first
    rows = stage.run(told(stage.keys, "acts", 10)).rows
    assert [row["request"] for _, row in rows] == ["r2", "r1"]
    assert rows[1][1] == {"request": "r1", "who": "ada", "count": "3"}


@pytest.mark.parametrize("stream", ["acts", "events"])
def test_a_stream_keeps_about_ten_thousand_entries_and_ends_by_itself(stage: Stage, stream: str) -> None:
    key = stage.keys(stream)
    pipe = stage.client.pipeline()
    for n in range(10_200):
        pipe.xadd(key, {"request": f"x{n}"})
    pipe.execute()
    stage.run(tell(stage.keys, stream, "last", {}))  # type: ignore[arg-type]
    assert 10_000 <= stage.client.xlen(key) < 10_200
    assert 0 < stage.client.ttl(key) <= KEPT_FOR[stream]  # type: ignore[index]


def test_an_entry_behind_another_is_refused(stage: Stage) -> None:
    first = stage.run(tell(stage.keys, "acts", "r1", {}, ""))
    assert stage.run(tell(stage.keys, "acts", "r2", {}, "")) == ""
    second = stage.run(tell(stage.keys, "acts", "r2", {}, first))
    assert stage.run(tell(stage.keys, "acts", "r2", {}, first)) == second, "a repeat adds nothing"
    assert stage.run(tell(stage.keys, "acts", "r3", {}, first)) == ""
    assert len(stage.run(told(stage.keys, "acts", 10)).rows) == 2
