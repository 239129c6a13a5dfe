from __future__ import annotations

from headrace.protocol import consume
from tests.scripts.graphs import Flow, fan
from tests.scripts.stage import SECOND, Stage


def test_nothing_more_starts_and_what_runs_goes_on(stage: Stage) -> None:
    flow = Flow(stage, "a>b c").started()
    first = flow.claims()
    assert flow.stop() == "stopped"
    assert flow.views() == {"|", "|stopped", "shop|", "shop|stopped"}
    for claim in first.values():
        stage.end(claim)
    assert flow.claims() == {}
    assert flow.states == {"a": "succeeded", "b": "stopped", "c": "succeeded"}
    assert (flow.state, flow.now.active) == ("stopped", 1)
    assert flow.start() == "running"
    assert flow.play() == ["b"]
    assert flow.state == "succeeded"


def test_a_stop_takes_nothing_back_that_happened_meanwhile(stage: Stage) -> None:
    """Control flags live apart from what nodes do: an old picture of the workflow is never written."""
    flow = Flow(stage, "a>b").started()
    claim = flow.claims()["a"]
    stage.end(claim)
    before = stage.record(flow["a"])
    flow.stop()
    assert stage.record(flow["a"]) == before
    flow.start()
    assert flow.play() == ["b"]


def test_delays_and_retries_are_held_when_their_time_comes(stage: Stage) -> None:
    flow = Flow(stage, "a b", nodes={"b": {"delay": SECOND}}).started()
    stage.end(flow.claims()["a"], "retry", b"", SECOND)
    flow.stop()
    assert flow.states == {"a": "scheduled", "b": "scheduled"}
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert flow.claims() == {}
    assert flow.states == {"a": "stopped", "b": "stopped"}
    flow.start()
    assert sorted(flow.play()) == ["a", "b"]
    assert flow.state == "succeeded"


def test_a_retry_that_is_resumed_before_its_time_waits_for_it(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    stage.end(flow.claims()["a"], "retry", b"", SECOND)
    flow.stop()
    flow.start()
    assert (flow.states["a"], stage.ready()) == ("scheduled", [])
    stage.now += SECOND
    stage.run(consume.promote(stage.keys, 10))
    assert flow.play() == ["a"]


def test_what_is_handed_back_while_it_is_stopped_is_held(stage: Stage) -> None:
    flow = Flow(stage, "a b c").started()
    taken = flow.claims()
    flow.stop()
    stage.end(taken["a"], "released")
    stage.end(taken["b"], "interrupted")
    stage.run(consume.reclaim(stage.keys, "w1", True, 10, SECOND))
    assert flow.claims() == {}
    assert set(flow.states.values()) == {"stopped"}
    flow.start()
    assert len(flow.play()) == 3


def test_the_last_one_that_ran_ends_a_stopped_workflow(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    claim = flow.claims()["a"]
    flow.stop()
    stage.end(claim)
    assert (flow.state, flow.views()) == ("succeeded", {"|", "|succeeded", "shop|", "shop|succeeded"})


def test_a_stop_before_the_start_is_undone_by_it(stage: Stage) -> None:
    flow = Flow(stage, "a").made()
    assert flow.stop() == flow.stop() == "stopped"
    assert flow.now.started_us == 0
    assert flow.start() == "running"
    assert flow.play() == ["a"]


def test_it_costs_the_same_however_many_nodes_wait(stage: Stage) -> None:
    flow = Flow(stage, fan(1200)).started()
    flow.end("first")
    flow.tend_all()
    before = stage.client.info("commandstats")
    flow.stop()
    after = stage.client.info("commandstats")
    calls = {name: facts["calls"] - before.get(name, {"calls": 0})["calls"] for name, facts in after.items()}
    assert sum(calls.get(f"cmdstat_{name}", 0) for name in ("hset", "hmget", "zadd", "zrem")) < 15


def test_what_has_ended_or_is_not_there_is_not_stopped(stage: Stage) -> None:
    done = Flow(stage, "a").started()
    done.play()
    before = stage.everything()
    assert (done.stop(), Flow(stage, "a").stop()) == ("succeeded", "missing")
    assert stage.everything() == before


def test_a_cancelled_one_is_not_stopped_since_nobody_could_start_it_again(stage: Stage) -> None:
    flow = Flow(stage, "a>b u", nodes={"a": {"undo": "u"}}).started()
    flow.end("a")
    flow.cancel()
    assert flow.stop() == "cancelled"
    flow.tend_all()
    assert flow.play() == ["u"]
    assert flow.state == "cancelled"
