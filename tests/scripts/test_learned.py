"""The script ``learned``: it tells what ``learn`` keeps, and changes nothing."""

from __future__ import annotations

from headrace.protocol.operations import KEPT, learn, learned
from tests.scripts.stage import SECOND, Stage


def test_nothing_learned_is_an_empty_list(stage: Stage) -> None:
    assert stage.run(learned(stage.keys)) == []


def test_a_line_is_told_until_it_is_a_month_old_and_stays_where_it_is(stage: Stage) -> None:
    stage.run(learn(stage.keys, ["t a"]))
    before = stage.everything()
    assert stage.run(learned(stage.keys).at(stage.now + KEPT * SECOND)) == ["t a"]
    assert stage.run(learned(stage.keys).at(stage.now + KEPT * SECOND + SECOND)) == []
    assert stage.everything() == before
