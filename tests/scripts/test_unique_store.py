from __future__ import annotations

from headrace.model.unique_rules import UniqueRule
from tests.scripts.stage import SECOND, Stage
from tests.scripts.unique_stage import NAMED, WITHIN, holder, one


def test_a_record_says_its_name_and_until_when_it_holds_it(stage: Stage) -> None:
    first, second = one(stage), one(stage, UniqueRule("m", "start"))
    assert stage.record(first)["unique"] == b"n"
    assert "hold" not in stage.record(first)
    assert (stage.record(second)["unique"], stage.record(second)["hold"]) == (b"m", b"start")


def test_only_a_name_of_a_time_expires(stage: Stage) -> None:
    one(stage, NAMED, expires=SECOND)
    assert stage.client.ttl(stage.keys("unique:n")) == -1
    one(stage, UniqueRule("m", "within", span=WITHIN.span))
    assert 3500 <= stage.client.ttl(stage.keys("unique:m")) <= 3600


def test_a_new_job_goes_where_others_go(stage: Stage) -> None:
    stage.doze()
    ready = one(stage, queue="low", priority=2)
    assert stage.tokens("low") == 1
    later = one(stage, UniqueRule("m"), delay=SECOND)
    assert [stage.state(ready), stage.state(later)] == ["ready", "scheduled"]
    assert holder(stage, "m") == later
