from __future__ import annotations

from headrace.protocol import operations
from headrace.protocol.consume import Note, note
from tests.scripts.stage import Stage


def test_the_last_lines_are_told_in_order(stage: Stage) -> None:
    claim = stage.running()
    stage.run(
        note(
            stage.keys,
            "w1",
            [Note(claim.id, claim.token, lines=("a", "b", "ü", "\udcff".encode("utf-8", "replace").decode()))],
        )
    )
    assert stage.run(operations.logs(stage.keys, claim.id)) == ["a", "b", "ü", "?"]
    assert stage.run(operations.logs(stage.keys, claim.id, 2)) == ["ü", "?"]


def test_a_job_that_logged_nothing(stage: Stage) -> None:
    assert stage.run(operations.logs(stage.keys, "0" * 21)) == []
