"""The core's side of limits at home: what becomes of starts that were refused there."""

from __future__ import annotations

from functools import partial
from random import Random

from headrace.model.ended import Released, Succeeded
from headrace.model.job import Claim
from headrace.model.limit_rules import DeclaredLimits
from headrace.protocol.limit_verbs import GateAnswer
from headrace.worker.dispatcher.dispatcher_events import End
from headrace.worker.dispatcher.local_queues import FIRST, LONGEST, PATIENCE, AwayLimits
from headrace.worker.health_stamps import fence_at
from tests.worker.worker_states import arguments, desk_of, worker_state

LEASE = 15.0


class Away(AwayLimits):
    def __init__(self) -> None:
        self.worker = worker_state(lease=LEASE)
        self.worker.limits = DeclaredLimits([], ["task:pay", b""])
        home = desk_of(self.worker)
        home.owner = "here"
        super().__init__(self.worker, home)


def asking(cost: int = 1) -> tuple[Away, Claim]:
    """A start on another shard that asks for its gates at the time 0."""
    away, claim = Away(), Claim("id", 1, "default", 0, "pay", b"", 1, cost=cost)
    assert away.limits(claim)
    assert not away.admits(claim)
    return away, claim


def taken(*gates: str, cost: int = 1) -> tuple[Away, Claim]:
    """One that holds these gates since then."""
    away, claim = asking(cost)
    ((_, heard),) = away.steps(0)
    heard(GateAnswer(held=True, now=1, opens=0, gates=list(gates)))
    assert away.ready == [claim]
    assert away.admits(claim)
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


def test_a_hold_that_cannot_be_kept_wakes_the_worker_before_its_lease_is_over() -> None:
    """Home takes no request: the time to keep it is past, and must not hide the time to stop its job."""
    away, _ = taken("a:")
    for now in (LEASE / 2, LEASE * 0.9):
        assert not away.check(now)
        assert away.worker.timers.next(now) == fence_at(LEASE, LEASE)
    away.keep_all()
    assert not away.check(LEASE * 0.9)
    assert away.worker.timers.next(LEASE * 0.9) == fence_at(LEASE, LEASE)


def test_a_start_whose_limits_were_removed_is_not_stopped_after_a_lease() -> None:
    """Workers with older code still ask for them."""
    away, claim = taken()
    assert away.steps(LEASE / 2) == []
    assert not away.check(LEASE * 10)
    assert not away.lost(claim)


def test_a_start_that_got_no_runner_gives_its_rate_back_and_one_that_ran_does_not() -> None:
    for ended, unused in ((Released(), 3), (Succeeded(b"", 0), 0)):
        away, claim = taken("a:", cost=3)
        away.ended([End(claim, ended)])
        ((call, _),) = away.steps(1.0)
        assert arguments(call)["unused"] == unused


def test_no_runner_is_kept_free_for_a_start_that_waits_for_a_silent_home() -> None:
    """Each claim brought more of them, and no runner was left for other jobs until the lease was over."""
    away, claim = asking()
    everything = partial(away.waiting, lambda _: True)
    assert (away.silent, everything()) == (False, 1)
    away.worker.now = PATIENCE
    assert away.silent
    other = Claim("other", 2, "default", 0, "pay", b"", 2)
    assert not away.admits(other)
    assert [claim for claim, _ in away.refused] == [other]
    ((_, heard),) = away.steps(PATIENCE)
    heard(GateAnswer(held=True, now=1, opens=0, gates=["a:"]))
    assert (away.silent, away.ready) == (False, [claim])


def test_starts_that_were_refused_together_come_again_apart() -> None:
    """They came together each time, up to 5 s apart: with two places and 30 jobs of 20 ms the last one ran after 40 s."""
    away = Away()
    away.worker.random = Random(1)
    for snoozes, longest in ((0, FIRST), (9, LONGEST)):
        claims = [Claim(f"id{n}", n, "default", 0, "pay", b"", n, snoozes=snoozes) for n in range(20)]
        assert not any(map(away.admits, claims))
        for _, heard in away.steps(0):
            heard(GateAnswer(held=False, now=1, opens=0, gates=[]))
        pauses = {pause for _, pause in away.refused}
        assert len(pauses) == 20
        assert longest * 0.5e6 <= min(pauses) < max(pauses) <= longest * 1.5e6
        away.refused.clear()
