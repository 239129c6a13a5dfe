from __future__ import annotations

from headrace.model.form import Form
from headrace.model.ids import make_id
from headrace.protocol import consume, produce
from tests.scripts.stage import KEEP, SECOND, Stage


def ids(stage: Stage, count: int) -> list[str]:
    return [make_id(stage.now // 1000, 100 + n) for n in range(count)]


def test_each_live_incarnation_gets_one_in_a_line_of_its_own(stage: Stage) -> None:
    stage.register("w1", SECOND)
    stage.register("w2", 15 * SECOND)
    stage.now += SECOND
    stage.put()
    ear = stage.subscribe(stage.keys.mail("w2"))
    rows = list(zip(("w1", "w2", "nobody"), ids(stage, 3), strict=True))
    call = produce.broadcast(stage.keys, Form("add", key="k", expires=5), b"\x90", rows).at(stage.now)
    assert [stage.run(call) for _ in range(2)] == [[rows[1][1]]] * 2
    assert ear.get_message(timeout=20)["data"] == b"@"
    ear.close()
    assert stage.claim("w2", queues=["default"], limit=0).jobs == []
    (claim,) = stage.claim("w2", queues=["@w2"]).jobs
    assert (claim.id, claim.task, claim.key, claim.once, claim.expires) == (
        rows[1][1], "add", "k", True, stage.now + 5
    )  # fmt: skip
    assert stage.run(call) == [claim.id]
    assert stage.ready("@w2") == []
    assert "@w2" not in stage.names("queues")
    assert stage.run(consume.reclaim(stage.keys, "w1", True, 500, KEEP)) == ("done", 0)


def test_it_is_run_once_and_by_nobody_else(stage: Stage) -> None:
    stage.register("w1")
    (id,) = ids(stage, 1)
    stage.run(produce.broadcast(stage.keys, Form("add"), b"\x90", [("w1", id)]))
    (claim,) = stage.claim("w1", queues=["@w1"]).jobs
    stage.end(claim, "crashed", b"{}")
    assert stage.state(id) == "failed"
    assert stage.run(produce.rerun(stage.keys, id, "r")) == "broadcast"
