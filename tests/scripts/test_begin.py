"""The included script ``begin``: roots and what was held, both a bounded number at a time."""

from __future__ import annotations

from headrace.protocol import graph as protocol
from headrace.protocol import produce
from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def test_roots_line_up_by_their_own_facts(stage: Stage) -> None:
    flow = Flow(stage, "a b c", nodes={"b": {"delay": SECOND}, "c": {"queue": "q", "priority": 1}}).started()
    assert flow.states == {"a": "ready", "b": "scheduled", "c": "ready"}
    assert stage.members("scheduled") == {flow["b"]: stage.now + SECOND}
    assert flow.now.active == 3


def test_a_root_that_was_cancelled_alone_stays_so(stage: Stage) -> None:
    flow = Flow(stage, "a b").made()
    stage.run(produce.cancel(stage.keys, flow["a"], 0))
    flow.start()
    assert flow.states == {"a": "cancelled", "b": "ready"}
    flow.play()
    assert (flow.state, flow.counts) == ("failed", {"cancelled": 1, "succeeded": 1})


def test_tending_goes_on_with_the_roots_a_piece_at_a_time(stage: Stage) -> None:
    flow = Flow(stage, " ".join(f"n{n}" for n in range(1300))).made()
    stage.run(protocol.start(stage.keys, flow.id))
    first = len(stage.ready())
    flow.tend(100)
    assert first < len(stage.ready()) <= first + 100
    flow.tend_all()
    assert (len(stage.ready()), flow.now.active) == (1300, 1300)
