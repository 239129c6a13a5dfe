"""The core's side of limits at home: what becomes of starts that were refused there."""

from __future__ import annotations

from random import Random

from headrace.model.job import Claim
from headrace.model.limit_rules import DeclaredLimits
from headrace.protocol.limit_verbs import GateAnswer
from headrace.worker.dispatcher.local_queues import FIRST, LONGEST, AwayLimits
from tests.worker.worker_states import desk_of, worker_state

LEASE = 15.0


def taken(*gates: str) -> tuple[AwayLimits, Claim]:
    """A start on another shard that holds these gates since the time 0."""
    worker = worker_state(lease=LEASE)
    worker.limits = DeclaredLimits([], ["task:pay", b""])
    home = desk_of(worker)
    home.owner = "here"
    away, claim = AwayLimits(worker, home), Claim("id", 1, "default", 0, "pay", b"", 1)
    assert away.admitted([claim]) == []
    ((_, heard),) = away.steps(0)
    heard(GateAnswer(held=True, now=1, opens=0, gates=list(gates)))
    assert (away.ready, away.admitted([claim])) == ([claim], [claim])
    return away, claim


def test_a_gate_that_is_kept_hides_no_other_whose_call_was_refused() -> None:
    """It was taken for held over any number of leases, while others passed the gate."""
    away, claim = taken("a:", "b:")
    (_, a), (_, b) = away.steps(LEASE / 2)
    a(True)
    assert away.steps(LEASE * 0.9) == [], "the other call goes out again by itself"
    assert away.check(LEASE)
    assert away.lost(claim)
    away, claim = taken("a:", "b:")
    (_, a), (_, b) = away.steps(LEASE / 2)
    a(True)
    b(True)
    assert not away.check(LEASE)
    assert len(away.steps(LEASE)) == 2


def test_a_hold_that_a_failover_forgot_is_found_as_soon_as_home_answers_again() -> None:
    """Other jobs passed its gate until two fifths of the lease were over."""
    away, claim = taken("a:")
    assert away.steps(1.0) == []
    away.keep_all()
    ((_, a),) = away.steps(1.0)
    a(False)
    assert away.check(1.0)
    assert away.lost(claim)


def test_a_start_whose_limits_were_removed_is_not_stopped_after_a_lease() -> None:
    """Workers with older code still ask for them."""
    away, claim = taken()
    assert away.steps(LEASE / 2) == []
    assert not away.check(LEASE * 10)
    assert not away.lost(claim)


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
