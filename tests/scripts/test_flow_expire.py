from __future__ import annotations

import pytest

from headrace.model.workflow import FOR_EVER
from headrace.protocol import produce
from tests.scripts.graphs import Flow, lapse
from tests.scripts.stage import KEEP, SECOND, Stage


def test_before_the_end_it_is_only_noted(stage: Stage) -> None:
    flow = Flow(stage, "a").started()
    assert flow.expire(5 * SECOND) == "ok"
    assert stage.members("lapses") == {}
    stage.now += 100 * SECOND
    flow.play()
    assert stage.members("lapses") == {flow.id: flow.now.finished_us + 5 * SECOND}
    assert (flow.now.lapses_us, flow.now.ttl) == (flow.now.finished_us + 5 * SECOND, 5 * SECOND)


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
def test_after_the_end_it_counts_from_now(stage: Stage, kind: str) -> None:
    flow = Flow(stage, "a").started()
    flow.play(a=kind)
    stage.now += 100 * SECOND
    flow.expire(5 * SECOND)
    assert stage.members("lapses") == {flow.id: stage.now + 5 * SECOND}


def test_for_ever_takes_it_from_those_that_lapse(stage: Stage) -> None:
    flow = Flow(stage, "a", ttl=SECOND).started()
    flow.play()
    flow.expire(FOR_EVER)
    assert (stage.members("lapses"), flow.now.ttl, flow.now.lapses_us) == ({}, FOR_EVER, 0)


def test_anything_below_zero_is_for_ever(stage: Stage) -> None:
    flow = Flow(stage, "a").made()
    flow.expire(-77)
    assert flow.now.ttl == FOR_EVER


def test_it_survives_stop_start_and_retry(stage: Stage) -> None:
    flow = Flow(stage, "a", ttl=SECOND).started()
    flow.expire(9 * SECOND)
    flow.stop()
    flow.start()
    flow.play(a="failed")
    flow.retry()
    assert stage.members("lapses") == {}
    flow.play()
    assert stage.members("lapses") == {flow.id: flow.now.finished_us + 9 * SECOND}


def test_none_lapses_at_once(stage: Stage) -> None:
    flow = Flow(stage, "a", ttl=FOR_EVER).started()
    flow.play()
    flow.expire(0)
    assert lapse(stage, 10) == 1
    assert flow.left() == set()


def test_what_is_not_there_has_no_end(stage: Stage) -> None:
    assert Flow(stage, "a").expire(5) == "missing"
    assert stage.everything() == {}


def test_one_that_ends_without_a_start_stays_for_ever_if_it_is_to(stage: Stage) -> None:
    """It left when those leave that nobody starts."""
    flow = Flow(stage, "a", ttl=FOR_EVER, unstarted=5 * SECOND).made()
    flow.stop()
    cancel = produce.cancel(stage.keys, flow["a"], KEEP)
    stage.run(cancel)
    flow.retry()
    stage.run(cancel)
    assert flow.state == "failed"
    assert stage.members("lapses") == {}
