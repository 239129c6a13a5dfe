"""unique_alive.lua: who keeps others from a name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.model.unique_rules import UniqueRule
from headrace.protocol.produce import Accepted
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import NAMED, holder, one, put


def field(name: str, value: str | int) -> Callable[[Stage, str], None]:
    return lambda stage, id: stage.client.hset(stage.keys(f"job:{id}"), name, str(value)) and None


def of_another_type(stage: Stage, id: str) -> None:
    stage.client.delete(stage.keys(f"job:{id}"))
    stage.client.set(stage.keys(f"job:{id}"), "rubbish")


@pytest.mark.parametrize("rule", [NAMED, UniqueRule("n", clash="replace"), UniqueRule("n", clash="raise")])
@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "quarantined"])
def test_a_job_that_has_ended_leaves_the_name_to_the_next(stage: Stage, rule: UniqueRule, state: str) -> None:
    first = one(stage, rule)
    field("st", state)(stage, first)
    second, answer = put(stage, rule)
    assert answer == Accepted("ok")
    assert holder(stage) == second.id
    stage.client.flushall()  # what was spoiled fits no invariant


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(field("unique", "other"), id="another name"),
        pytest.param(lambda stage, id: stage.client.delete(stage.keys(f"job:{id}")), id="gone"),
        pytest.param(of_another_type, id="of another type"),
    ],
)
def test_a_record_that_says_nothing_of_the_name_leaves_it_to_the_next(
    stage: Stage, spoil: Callable[[Stage, str], None]
) -> None:
    first = one(stage)
    spoil(stage, first)
    second, answer = put(stage)
    assert answer == Accepted("ok")
    assert holder(stage) == second.id
    stage.client.flushall()


def test_one_whose_time_to_start_is_over_counts_once_it_has_started(stage: Stage) -> None:
    first = one(stage, expires=SECOND)
    stage.take()
    stage.now += 2 * SECOND
    later, answer = put(stage)
    assert answer.duplicates == {later.id: first}


def test_a_name_that_is_taken_over_ends_with_the_time_of_its_new_rule(stage: Stage) -> None:
    one(stage, expires=SECOND)
    stage.now += 2 * SECOND
    one(stage, UniqueRule("n", "within", span=6000 * SECOND))
    assert 5_900_000 < stage.client.pttl(stage.keys("unique:n")) <= 6_000_000
