from __future__ import annotations

import pytest

from headrace.protocol import consume
from headrace.protocol.graph import watch_flow
from tests.scripts.graphs import Flow
from tests.scripts.stage import KEEP, SECOND, Stage


@pytest.mark.parametrize(("kind", "state"), [("succeeded", "succeeded"), ("failed", "failed")])
def test_the_end_is_told_once(stage: Stage, kind: str, state: str) -> None:
    flow = Flow(stage, "a>b").started()
    assert stage.run(watch_flow(stage.keys, flow.id, SECOND)) == "running"
    assert stage.members("waited") == {flow.id: stage.now + SECOND}
    pubsub = stage.subscribe(stage.keys.done(flow.id))
    flow.play(b=kind)
    assert pubsub.get_message(timeout=20)["data"].decode() == state
    assert pubsub.get_message(timeout=0.05) is None
    assert stage.members("waited") == {}
    assert stage.run(watch_flow(stage.keys, flow.id, SECOND)) == state
    assert stage.members("waited") == {}
    pubsub.close()


def test_the_longest_wait_counts_and_none_only_reads(stage: Stage) -> None:
    flow = Flow(stage, "a").made()
    for wait in (0, 5, 2):
        assert stage.run(watch_flow(stage.keys, flow.id, wait)) == "pending"
    assert stage.members("waited") == {flow.id: stage.now + 5}
    stage.now += 6
    stage.run(consume.sweep(stage.keys, 10, 10, 10**9))
    assert stage.members("waited") == {}


def test_a_stop_is_no_end(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    flow.stop()
    assert stage.run(watch_flow(stage.keys, flow.id, KEEP)) == "stopped"
    assert stage.members("waited").keys() == {flow.id}
    flow.start()
    flow.play()
    assert stage.members("waited") == {}


def test_what_is_not_there_is_not_waited_for(stage: Stage) -> None:
    assert stage.run(watch_flow(stage.keys, Flow(stage, "a").id, KEEP)) is None
    assert stage.members("waited") == {}
