"""The included script ``hurry``: the end of a pause makes every incarnation renew at once."""

from __future__ import annotations

import pytest

from headrace.protocol.operations import pause, resume
from headrace.worker.dispatcher.dispatcher_events import HURRY
from tests.scripts.stage import Stage


@pytest.mark.parametrize("queue", ["default", "other"])
def test_every_incarnation_hears_it_once(stage: Stage, queue: str) -> None:
    stage.run(pause(stage.keys, queue))
    ears = [stage.subscribe(stage.keys.mail(stage.register(owner))) for owner in ("w1", "w2")]
    stage.run(resume(stage.keys, queue))
    for ear in ears:
        assert ear.get_message(timeout=20)["data"] == HURRY.encode()
        assert ear.get_message(timeout=0) is None
        ear.close()
