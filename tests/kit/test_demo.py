"""The demo's workflow, drained: its faults included, without a worker."""

from __future__ import annotations

import pytest

from headrace import Headrace
from headrace import demo as demo_tasks
from headrace.demo import Package
from headrace.testing import Kit


@pytest.fixture
def headrace_target() -> Headrace:
    return demo_tasks.app


def test_the_survey_gets_over_both_of_its_faults(headrace_app: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_tasks.os, "kill", lambda *_: headrace_app.crash())
    run = demo_tasks.survey.create(9)
    run.start()
    drained = headrace_app.drain(run)
    assert drained.ends["crashed"] == drained.ends["retry"] == 1
    report: list[Package] = run.outputs()["report"]
    assert sum(package.files for package in report) == 9
    assert run.refresh().counts["failed"] == 0
    crashed = [node for node in run.nodes(limit=100) if node.job.crashes]
    assert [node.facts.name for node in crashed] == ["measure each file[3]"]
