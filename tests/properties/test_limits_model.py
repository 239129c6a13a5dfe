"""Limits on the real scripts, in random orders: never exceeded, never idle with work that may start."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from headrace.model.job import Outcome
from headrace.model.limit_rules import Concurrency, DeclaredLimits, LimitRule, Rate, gates_of, part_of, task_row
from headrace.protocol import consume, operations, overviews, produce
from headrace.protocol.limit_verbs import change_limit, declare_limits
from headrace.testing import assert_invariants
from tests.properties.machines import play
from tests.scripts.stage import SECOND, Stage

LEASE = 10_000 * SECOND
VALUES = ("a", "b", "c")
OWNERS = ("w1", "w2")
QUEUES = ("default", "low")
API = [LimitRule("api", concurrency=Concurrency(most)) for most in (1, 2, 3)]
ACCOUNT = [
    LimitRule("account", Rate(rate, per=1000), Concurrency(most) if most else None, by="account")
    for rate, most in ((4, 1), (10, 0), (2, 2))
]
# Limits of each task, by name; and as other releases have them.
TASKS: dict[str, tuple[str, ...]] = {"plain": (), "api": ("api",), "account": ("account",), "both": ("api", "account")}
RELEASES = [
    TASKS, TASKS,
    {"plain": ("account",), "api": ("account",), "account": ("api",), "both": ("api",)},
    {"plain": (), "api": ("api", "account"), "account": (), "both": ("account",)},
]  # fmt: skip


class Gate:
    """What a limit lets start, told once more.

    Attributes:
        next, soonest: when the next may start at the latest, and at the soonest. They differ once the numbers changed:
            a gate that is looked at opens sooner for a faster rate, and stays so.
    """

    def __init__(self) -> None:
        self.next, self.soonest, self.held = 0.0, 0.0, 0

    def open(self, rule: LimitRule | None, now: int, *, soonest: bool = False) -> bool:
        if rule is None:
            return False
        if rule.concurrency and self.held >= rule.concurrency.n:
            return False
        return not rule.rate or min(self.soonest if soonest else self.next, now + self.step(rule)) <= now

    def step(self, rule: LimitRule) -> float:
        assert rule.rate
        return float(rule.rate.per) * SECOND / rule.rate.n

    def charge(self, rule: LimitRule | None, now: int) -> None:
        assert rule
        self.held += 1
        if rule.rate:
            slack = max(10_000, float(rule.rate.per) * SECOND / 100)
            self.next, self.soonest = (
                max(min(one, now + self.step(rule)), now - slack) + self.step(rule) for one in (self.next, self.soonest)
            )


class LaneMachine(RuleBasedStateMachine):
    client: Any

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.stage = Stage(self.client, guarded=False)
        self.keys = self.stage.keys
        self.rules = {"api": API[1], "account": ACCOUNT[0]}
        self.limited, self.has = False, TASKS
        self.gates: dict[str, Gate] = {}
        # What an operator said: by limit and value ("*": of all) its parts, each with its end.
        self.over: dict[tuple[str, str], dict[str, tuple[int, object]]] = {}
        self.waiting: dict[str, tuple[str, str, str]] = {}
        self.scheduled: dict[str, tuple[str, str, str]] = {}
        self.running: dict[str, dict[str, tuple[int, list[str]]]] = {owner: {} for owner in OWNERS}
        self.facts: dict[str, tuple[str, str, str]] = {}
        for owner in OWNERS:
            self.stage.register(owner, LEASE)

    # -- what happens ------------------------------------------------------------------------------------------------

    @rule(api=st.sampled_from(API), account=st.sampled_from(ACCOUNT), has=st.sampled_from(RELEASES))
    def declare(self, api: LimitRule, account: LimitRule, has: dict[str, tuple[str, ...]]) -> None:
        self.rules, self.limited, self.has = {"api": api, "account": account}, True, has
        self._numbers_change()
        rows: list[Any] = []
        for task, names in has.items():
            if names:
                rows += [f"task:{task}", task_row([self.rules[name] for name in names], ["account"], {})]
        limits = DeclaredLimits([(one.name, one.fields) for one in self.rules.values()], rows)
        self.stage.run(declare_limits(self.keys, "w1", TASKS, limits))

    @precondition(lambda self: self.limited)
    @rule(
        where=st.sampled_from([("api", "*"), ("account", "*"), *(("account", value) for value in VALUES)]),
        what=st.sampled_from(["paused", Concurrency(1), Concurrency(3), Rate(20, per=1000), 5]),
        duration=st.sampled_from([0, SECOND, 300 * SECOND]), taken=st.booleans(),
    )  # fmt: skip
    def operate(self, where: tuple[str, str], what: Any, duration: int, taken: bool) -> None:
        part = part_of(what)[0] if what != "paused" else what
        if part == "weight" and where[1] == "*":
            return
        self._numbers_change()
        put = [(part, duration, part_of(what)[1] if what != "paused" else [])]
        call = change_limit(self.keys, *where, [], [] if taken else put, [part] if taken else [])
        known = self.over.setdefault(where, {})
        assert self.stage.run(call) == {one for one, (ends, _) in known.items() if not 0 < ends <= self.stage.now}
        if taken:
            known.pop(part, None)
        else:
            known[part] = (self.stage.now + duration if duration else 0, what)

    @rule(
        task=st.sampled_from(list(TASKS)), values=st.lists(st.sampled_from(VALUES), min_size=1, max_size=6),
        queue=st.sampled_from(QUEUES), priority=st.sampled_from([0, 0, 1]), delay=st.sampled_from([0, 0, SECOND]),
    )  # fmt: skip
    def enqueue(self, task: str, values: list[str], queue: str, priority: int, delay: int) -> None:
        jobs = [
            self.stage.job(
                task=task, queue=queue, priority=priority, delay=delay, args=msgspec.msgpack.encode([[value], {}])
            )
            for value in values
        ]
        self.stage.enqueue(*jobs)
        for job, value in zip(jobs, values, strict=True):
            self.facts[job.id] = (task, value, queue)
            (self.scheduled if delay else self.waiting)[job.id] = self.facts[job.id]

    @rule(owner=st.sampled_from(OWNERS), limit=st.sampled_from([1, 2, 5, 100]))
    def claim(self, owner: str, limit: int) -> None:
        """What a worker does: it wakes by a token, promotes what is due, claims."""
        self._promote()
        answer = self.stage.run(consume.claim(self.keys, owner, self.stage.next(), limit, QUEUES))
        assert answer.lost == []
        for claim in answer.jobs:
            assert claim.id in self.waiting
            gates = self._gates_of(claim.id)
            for gate, rule_ in gates:
                assert gate.open(rule_, self.stage.now, soonest=True), f"{claim.id} exceeds {rule_}"
                gate.charge(rule_, self.stage.now)
            del self.waiting[claim.id]
            names = gates_of(claim.lane)
            assert len(names) == len(gates)
            self.running[owner][claim.id] = (claim.token, names)
        # One that is moved to its lane is not taken by the claim that met it.
        if len(answer.jobs) < limit and not self._tokens():
            assert self._startable() == []

    @precondition(lambda self: any(self.running.values()))
    @rule(
        owner=st.sampled_from(OWNERS), count=st.integers(1, 4),
        kind=st.sampled_from(["succeeded", "failed", "retry", "snoozed", "released", "interrupted", "crashed"]),
        delay=st.sampled_from([0, SECOND]),
    )  # fmt: skip
    def settle(self, owner: str, count: int, kind: str, delay: int) -> None:
        some = list(self.running[owner].items())[:count]
        amount = {"retry": delay, "snoozed": delay}.get(kind, 0)
        rows = [(Outcome(id, token, kind, b"{}", amount), 0) for id, (token, _) in some]
        if not rows:
            return
        answer = self.stage.run(consume.settle(self.keys, owner, self.stage.next(), rows, 0))
        assert not answer.stale
        for id, (_, names) in some:
            self._freed(owner, id, names, unused=kind == "released")
            self._follow(id)

    @rule(owner=st.sampled_from(OWNERS))
    def die(self, owner: str) -> None:
        while self.stage.run(consume.reclaim(self.keys, owner, True, 3, 0))[0] == "some":
            pass
        for id, (_, names) in list(self.running[owner].items()):
            self._freed(owner, id, names, unused=False)
            self._follow(id)
        self.stage.register(owner, LEASE)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.stage.run(produce.cancel(self.keys, id, 0)) == "cancelled"
        del self.waiting[id]

    @rule(queue=st.sampled_from(QUEUES), limit=st.sampled_from([2, 1000]))
    def purge(self, queue: str, limit: int) -> None:
        removed, left = self.stage.run(operations.purge(self.keys, queue, limit))
        mine = [id for id, facts in self.waiting.items() if facts[2] == queue]
        assert removed == min(limit, len(mine))
        assert left == len(mine) - removed
        for id in mine:
            if not self.client.exists(self.keys.job(id)):
                del self.waiting[id]

    @rule(step=st.sampled_from([1000, SECOND, 100 * SECOND, 400 * SECOND, -SECOND, -3000 * SECOND]))
    def the_clock_moves(self, step: int) -> None:
        if self.stage.now + step > 1_700_000_000_000_000:
            self.stage.now += step

    @rule()
    def look(self) -> None:
        seen = self.stage.run(overviews.overview(self.keys))
        assert seen.states["ready"] == len(self.waiting)
        assert seen.states["scheduled"] == len(self.scheduled)

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def every_key_is_explained(self) -> None:
        if hasattr(self, "stage"):
            assert_invariants(self.client)

    @invariant()
    def no_work_that_may_start_is_left_asleep(self) -> None:
        if not hasattr(self, "stage"):
            return
        startable = {queue for _, _, queue in map(self.facts.__getitem__, self._startable())}
        due = self.client.zrange(self.keys("scheduled"), 0, 0, withscores=True)
        for queue in startable - self._tokens():
            # Its time has come, and a dispatcher that slept until then promotes it.
            assert due, queue
            assert due[0][1] <= self.stage.now, queue

    def teardown(self) -> None:
        """All that waits can start in the end, and nothing is left."""
        if not hasattr(self, "stage"):
            return
        for where, parts in list(self.over.items()):
            self.stage.run(change_limit(self.keys, *where, [], [], list(parts)))
        self.over.clear()
        for _ in range(400):
            for owner in OWNERS:
                self.stage.run(consume.renew(self.keys, owner, LEASE))
                self.claim(owner, 100)
                self.settle(owner, 1000, "succeeded", 0)
            self.stage.now += 600 * SECOND
            if not (self.waiting or self.scheduled):
                break
        assert not self.waiting
        assert not self.scheduled
        self.stage.now += 1000 * SECOND
        self._promote()
        assert_invariants(self.client)
        left = {key.partition(b"}:")[2].partition(b":")[0].decode() for key in self.client.keys("*")}
        assert left - {"events", "deaths", "causes", "cause", "floods", "schema"} <= {
            "token",
            "sender",
            "limit",
            "limits",
            "limited",
            "superseded",
            "tasks",
            "owner",
            "owners",
            "replaced",
            "rewound",
            "gate",
            "queues",
            "wake",
        }, left

    # -- the model ---------------------------------------------------------------------------------------------------

    def _promote(self) -> None:
        while self.stage.run(consume.promote(self.keys, 1000))[0]:
            pass
        for id in list(self.scheduled):
            if self.client.hget(self.keys.job(id), "st") == b"ready":
                self.waiting[id] = self.scheduled.pop(id)

    def _follow(self, id: str) -> None:
        """Where a job is after its start ended."""
        state = self.client.hget(self.keys.job(id), "st")
        if state == b"ready":
            self.waiting[id] = self.facts[id]
        elif state == b"scheduled":
            self.scheduled[id] = self.facts[id]

    def _freed(self, owner: str, id: str, names: list[str], *, unused: bool) -> None:
        del self.running[owner][id]
        for name in names:
            gate, rule_ = self.gates[name], self._counting(*name.split(":"), paused=False)
            assert rule_
            gate.held -= 1
            if rule_.rate:
                back, most = (gate.step(rule_) if unused else 0), self.stage.now + gate.step(rule_)
                gate.next, gate.soonest = min(gate.next, most) - back, min(gate.soonest, most) - back

    def _numbers_change(self) -> None:
        for gate in self.gates.values():
            gate.soonest = 0

    def _gates_of(self, id: str) -> list[tuple[Gate, LimitRule | None]]:
        task, value, _ = self.facts[id]
        if not self.limited:
            return []
        values = {"api": "", "account": value}
        return [
            (self.gates.setdefault(f"{one}:{values[one]}", Gate()), self._counting(one, values[one]))
            for one in self.has[task]
        ]

    def _counting(self, name: str, value: str, *, paused: bool = True) -> LimitRule | None:
        """A limit as it counts for a value now; None: it is paused."""
        rule_ = self.rules[name]
        for where in ((name, "*"), (name, value)):
            for part, (ends, what) in self.over.get(where, {}).items():
                if 0 < ends <= self.stage.now:
                    continue
                if part == "paused" and paused:
                    return None
                if part in ("rate", "concurrency"):
                    rule_ = replace(rule_, **{part: what})  # type: ignore[arg-type]
        return rule_

    def _startable(self) -> list[str]:
        return [
            id for id in self.waiting if all(gate.open(rule_, self.stage.now) for gate, rule_ in self._gates_of(id))
        ]

    def _tokens(self) -> set[str]:
        return {queue for queue in QUEUES if self.client.exists(self.keys.wake(queue))}


@pytest.mark.any_server
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_limits_are_never_exceeded_and_never_idle(client: redis.Redis) -> None:
    play(LaneMachine, client, examples=60, steps=40)
