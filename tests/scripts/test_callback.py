"""The included script ``callback``: each end of a workflow is told."""

from __future__ import annotations

import pytest

from tests.scripts.graphs import Flow
from tests.scripts.stage import SECOND, Stage


def test_the_end_is_told_before_the_callback_has_run_and_whatever_becomes_of_it(stage: Stage) -> None:
    flow = Flow(stage, "a yes no", on_success="yes", on_failure="no").started()
    flow.end("a")
    assert (flow.state, flow.now.active) == ("succeeded", 0)
    finished = flow.now.finished_us
    stage.now += SECOND
    flow.end("yes", "failed")
    assert (flow.state, flow.now.finished_us, flow.counts, flow.states["no"]) == (
        "succeeded", finished, {"succeeded": 1}, "blocked"
    )  # fmt: skip


def test_a_callback_is_called_again_after_a_retry(stage: Stage) -> None:
    flow = Flow(stage, "a no yes", on_failure="no", on_success="yes").started()
    assert flow.play(a="failed") == ["a", "no"]
    assert flow.retry() == "running"
    assert flow.play(a="failed") == ["a", "no"]
    assert flow.retry() == "running"
    assert flow.play() == ["a", "yes"]
    assert flow.state == "succeeded"


def test_an_end_that_is_reached_while_an_earlier_one_is_told_is_told_after_it(stage: Stage) -> None:
    """A callback that retries what failed had been told of the first failure only."""
    flow = Flow(stage, "a no yes", on_failure="no", on_success="yes").started()
    flow.end("a", "failed")
    for _ in range(3):
        told = flow.claims()["no"]
        assert flow.retry() == "running"
        flow.end("a", "failed")
        assert stage.state(told.id) == "running", "it is not started beside itself"
        stage.end(told, "failed")
        assert (stage.ready(), stage.record(told.id).get("failures")) == ([told.id], None)
    assert flow.play() == ["no"], "no end came while the last one ran"
    assert flow.state == "failed"


@pytest.mark.parametrize("kind", ["retry", "snoozed", "interrupted", "crashed"])
def test_a_callback_that_starts_again_anyway_has_seen_the_newest_end(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a no", on_failure="no").started()
    flow.end("a", "failed")
    told = flow.claims()["no"]
    flow.retry()
    flow.end("a", "failed")
    stage.end(told, kind, b"{}", 0)
    assert flow.play() == ["no"], "once: this start began after that end"


def test_two_callbacks_are_told_of_two_ends(stage: Stage) -> None:
    flow = Flow(stage, "a no yes", on_failure="no", on_success="yes").started()
    flow.end("a", "failed")
    told = flow.claims()["no"]
    flow.retry()
    flow.end("a")
    assert flow.state == "succeeded"
    assert list(flow.claims()) == ["yes"]
    stage.end(told)
    assert stage.ready() == []


def test_a_callback_that_waits_for_its_worker_is_in_one_place(stage: Stage) -> None:
    flow = Flow(stage, "a no", on_failure="no", nodes={"no": {"task": "later"}}).started()
    flow.end("a", "failed")
    flow.end("no", "parked")
    flow.retry()
    flow.end("a", "failed")
    assert stage.members("parked:later").keys() == {flow["no"]}
    assert stage.ready() == []


def test_one_that_failed_is_among_what_failed_until_it_is_called_again(stage: Stage) -> None:
    flow = Flow(stage, "a no", on_failure="no").started()
    assert flow.play(a="failed", no="failed") == ["a", "no"]
    assert set(stage.members("failed")) == {flow["a"], flow["no"]}
    assert flow.retry() == "running"
    assert flow.play(a="failed") == ["a", "no"]
    assert set(stage.members("failed")) == {flow["a"]}
