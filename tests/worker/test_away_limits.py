"""The core's side of limits at home: what becomes of starts that were refused there."""

from __future__ import annotations

from random import Random

from headrace.model.job import Claim
from headrace.model.limit_rules import DeclaredLimits
from headrace.protocol.limit_verbs import GateAnswer
from headrace.worker.dispatcher.local_queues import FIRST, LONGEST, AwayLimits
from tests.worker.worker_states import desk_of, worker_state


def test_starts_that_were_refused_together_come_again_apart() -> None:
    """They came together each time, up to 5 s apart: with two places and 30 jobs of 20 ms the last one ran after 40 s."""
    worker = worker_state()
    worker.limits, worker.random = DeclaredLimits([], ["task:pay", b""]), Random(1)
    home = desk_of(worker)
    home.owner = "here"
    away = AwayLimits(worker, home)
    for snoozes, longest in ((0, FIRST), (9, LONGEST)):
        claims = [Claim(f"id{n}", n, "default", 0, "pay", b"", n, snoozes=snoozes) for n in range(20)]
        assert away.admitted(claims) == []
        for _, heard in away.steps(0):
            heard(GateAnswer(held=False, now=1, opens=0, gates=[]))
        pauses = {pause for _, pause in away.refused}
        assert len(pauses) == 20
        assert longest * 0.5e6 <= min(pauses) < max(pauses) <= longest * 1.5e6
        away.refused.clear()
