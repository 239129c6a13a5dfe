"""Rates on the real scripts, under random operations and clocks: never over the bound, told from a ledger of starts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.model.job import Claim, Outcome
from headrace.model.limit_rules import DeclaredLimits, LimitRule, Rate, task_row
from headrace.protocol import consume
from headrace.protocol.limit_verbs import declare_limits
from headrace.testing import assert_invariants
from tests.properties.machines import play
from tests.scripts.stage import SECOND, Stage

LEASE = 10_000 * SECOND
PER = 128
RATES = {
    "even": Rate(10, per=PER),
    "window": Rate(10, per=PER, shape="window"),
    "clock": Rate(10, per=60, shape="clock"),
}
COSTS = (1, 1, 1, 1, 3, 9)
# Longest that a gate is closed by its rate: 9 units of an even one; a window; this period of the clock and the next one.
LONGEST = {"even": 9 * PER / 10, "window": PER * 129 / 128, "clock": 120}
HOLD_OFF = 40
VALUES = ("a", "b")


class RateMachine(RuleBasedStateMachine):
    """One task for each shape. ``real`` is a clock that is never set back, by which the ledger tells starts."""

    client: Any

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.stage = Stage(self.client, guarded=False)
        self.keys = self.stage.keys
        # Of each gate: real time and cost of starts.
        self.ledger: dict[str, list[tuple[int, int, str]]] = {}
        self.facts: dict[str, tuple[str, int]] = {}
        self.running: dict[str, tuple[Claim, str]] = {}
        # Until when gates may be closed by refused calls, by real time; how often the clock has begun a period.
        self.refused: dict[str, int] = {}
        self.real, self.periods, self.set_back = 0, 1, False
        rows: list[Any] = []
        rules = [LimitRule(name, rate, by="account") for name, rate in RATES.items()]
        for one in rules:
            rows += (f"task:{one.name}", task_row([one], ["account"], {}))
        limits = DeclaredLimits([(one.name, one.fields) for one in rules], rows)
        self.stage.register("w1", LEASE)
        self.stage.run(declare_limits(self.keys, "w1", [], limits))

    @rule(
        shape=st.sampled_from(list(RATES)), value=st.sampled_from(VALUES),
        costs=st.lists(st.sampled_from(COSTS), min_size=4, max_size=20),
    )  # fmt: skip
    def enqueue(self, shape: str, value: str, costs: list[int]) -> None:
        args = msgspec.msgpack.encode([[value], {}])
        jobs = [self.stage.job(task=shape, cost=cost, args=args) for cost in costs]
        self.stage.enqueue(*jobs)
        self.facts |= {job.id: (f"{shape}:{value}", cost) for job, cost in zip(jobs, costs, strict=True)}

    @rule(limit=st.sampled_from([1, 3, 100]))
    def claim(self, limit: int) -> None:
        self._renew()
        answer = self.stage.run(consume.claim(self.keys, "w1", self.stage.next(), limit, ["default"]))
        for claim in answer.jobs:
            gate, cost = self.facts[claim.id]
            self.ledger.setdefault(gate, []).append((self.real, cost, claim.id))
            self.running[claim.id] = (claim, gate)

    @precondition(lambda self: self.running)
    @rule(kind=st.sampled_from(["succeeded", "released", "released", "retry", "limited"]), data=st.data())
    def settle(self, kind: str, data: st.DataObject) -> None:
        for id in data.draw(st.lists(st.sampled_from(sorted(self.running)), min_size=1, max_size=8, unique=True)):
            self._settle(id, kind)

    def _settle(self, id: str, kind: str) -> None:
        claim, gate = self.running.pop(id)
        if kind == "released":
            # It did not start.
            self.ledger[gate] = [row for row in self.ledger[gate] if row[2] != id]
        amount, said = 0, b"{}"
        if kind == "limited":
            amount, said = HOLD_OFF * SECOND, gate.partition(":")[0].encode()
            self.refused[gate] = self.real + amount
        row = (Outcome(id, claim.token, kind, said, amount), claim.score)
        assert not self.stage.run(consume.settle(self.keys, "w1", self.stage.next(), [row], 0)).stale

    @precondition(lambda self: self.running)
    @rule(units=st.sampled_from([1, 4]), data=st.data())
    def spend(self, units: int, data: st.DataObject) -> None:
        """What was not said before may exceed the bound once, and counts for all that start later."""
        id = data.draw(st.sampled_from(sorted(self.running)))
        claim, gate = self.running[id]
        shape = gate.partition(":")[0]
        note = consume.Note(id, claim.token, spent=((shape, units),))
        self.stage.run(consume.note(self.keys, "w1", [note], request=self.stage.next()))

    @rule(step=st.sampled_from([0.001, 0.6, 1, 12.8, 30, 127.6, 128.2]), limit=st.sampled_from([1, 3, 100, 100]))
    def time_passes_and_a_worker_claims(self, step: float, limit: int) -> None:
        self._pass(step)
        self.claim(limit)

    @rule(
        value=st.sampled_from(VALUES), first=st.sampled_from([1, 3]), gap=st.sampled_from([0.3, 0.6, 0.99]),
        rest=st.sampled_from([127.1, 127.6, 128.2]),
    )  # fmt: skip
    def a_quota_is_used_up_in_two_parts(self, value: str, first: int, gap: float, rest: float) -> None:
        self._pass(400)
        self.claim(100)
        self._pass(400)
        self.enqueue("window", value, [1] * 20)
        for limit, step in ((first, gap), (100, rest), (100, gap)):
            self.claim(limit)
            self._pass(step)

    @rule(value=st.sampled_from(VALUES))
    def a_job_comes_back_late_that_had_not_begun(self, value: str) -> None:
        self.enqueue("even", value, [1] * 16)
        before = set(self.running)
        for _ in range(14):
            self._pass(12.81)
            self.claim(100)
        late = [id for id in sorted(self.running) if id not in before and self.facts[id][0] == f"even:{value}"]
        if late:
            self._settle(min(late, key=lambda id: self.running[id][0].token), "released")
            self.claim(100)

    def _pass(self, step: float) -> None:
        length = round(step * SECOND) + 7
        self.periods += (self.stage.now + length) // (60 * SECOND) - self.stage.now // (60 * SECOND)
        self.stage.now += length
        self.real += length

    @rule(step=st.sampled_from([1, 30, 100, 7200]))
    def the_clock_is_set_back(self, step: int) -> None:
        if self.stage.now - step * SECOND > 1_600_000_000 * SECOND:
            self.stage.now -= step * SECOND
            self.set_back = True

    @invariant()
    def no_gate_is_over_its_bound(self) -> None:
        for gate, starts in getattr(self, "ledger", {}).items():
            shape = gate.partition(":")[0]
            for n, (time, cost, _) in enumerate(starts):
                if shape == "even":
                    # The last one may be of any cost; 1 % of the period is made good.
                    recent = [one for at, one, _ in starts[:n] if time - at < (PER - PER / 100) * SECOND]
                    assert sum(recent) < 10, (gate, starts)
                elif shape == "window":
                    recent = [one for at, one, _ in starts[: n + 1] if time - at < PER * SECOND]
                    assert sum(recent) <= 10, (gate, starts)
                assert cost in COSTS
            if shape == "clock":
                assert sum(cost for _, cost, _ in starts) <= 10 * self.periods, (gate, starts)

    @invariant()
    def no_gate_is_closed_for_longer_than_it_may(self) -> None:
        if not hasattr(self, "stage"):
            return
        self._renew()
        for member, opens in self.client.zrange(self.keys("timers"), 0, -1, withscores=True):
            gate = member.decode().removeprefix("gate:")
            if not self.client.exists(self.keys(f"behind:{gate}")):
                # The gate opened before its time, by a permit that came back. Its timer is left, and keeps no job waiting.
                continue
            shape = gate.partition(":")[0]
            # What was spent adds to it.
            spent = 5 * 9 * LONGEST[shape] if shape == "even" else LONGEST[shape]
            most = max(spent * SECOND, self.refused.get(gate, 0) - self.real)
            assert opens - self.stage.now <= most + SECOND, (gate, opens - self.stage.now)

    @invariant()
    def every_key_is_explained(self) -> None:
        if hasattr(self, "stage"):
            assert_invariants(self.client)

    def teardown(self) -> None:
        """All that waits starts in the end."""
        if not hasattr(self, "stage"):
            return
        for _ in range(600):
            self.claim(100)
            rows = [(Outcome(claim.id, claim.token, "succeeded", b"", 0), 0) for claim, _ in self.running.values()]
            self.running.clear()
            if rows:
                self.stage.run(consume.settle(self.keys, "w1", self.stage.next(), rows, 0))
            if not self.client.exists(self.keys("classes:default")):
                return
            self._pass(30)
        raise AssertionError("jobs are left")

    def _renew(self) -> None:
        """What a worker does from time to time: it sees a clock that was set back, and promotes what is due."""
        self.stage.run(consume.renew(self.keys, "w1", LEASE))
        while self.stage.run(consume.promote(self.keys, 1000))[0]:
            pass


@pytest.mark.any_server
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rates_are_kept_whatever_happens_and_whatever_the_clock_does(client: redis.Redis) -> None:
    play(RateMachine, client, examples=25, steps=30)
