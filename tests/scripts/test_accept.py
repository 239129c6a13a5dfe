"""The included script ``accept``: what both ways to enqueue have in common is alike in both."""

from __future__ import annotations

import pytest

from headrace.protocol import produce
from tests.scripts.stage import SECOND, Stage


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_is_taken_once_whole(stage: Stage, ordered: bool) -> None:
    jobs = [stage.job(key="k", ordered=ordered), stage.job(queue="b"), stage.job(delay=SECOND)]
    call = produce.enqueue(stage.keys, jobs, "p", 1).at(stage.now)
    assert call.script.name == ("enqueue_ordered" if ordered else "enqueue")
    assert [stage.run(call).word for _ in range(3)] == ["ok", "repeated", "repeated"]
    assert [stage.state(job.id) for job in jobs] == ["ready", "ready", "scheduled"]
