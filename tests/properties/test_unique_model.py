"""Unique jobs on the real scripts, in random orders of enqueues, lost replies, ends and dead workers.

No name has two jobs at work, no name outlives its job, and the newest arguments are those that run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.model.ids import FINAL
from headrace.model.job import Claim, Outcome
from headrace.model.unique_rules import UniqueRule
from headrace.protocol import consume, operations, produce
from headrace.protocol.produce import Accepted
from headrace.protocol.script import Call
from headrace.testing import assert_invariants
from tests.properties.machines import play
from tests.scripts.stage import KEEP, SECOND, Stage

OWNERS = ("w1", "w2")
LEASE = 10_000 * SECOND
RULES = {
    "existing": UniqueRule("existing"),
    "raise": UniqueRule("raise", clash="raise"),
    "replace": UniqueRule("replace", clash="replace"),
    "cancel": UniqueRule("cancel", clash="cancel"),
    "latest": UniqueRule("latest", clash="latest"),
    "start": UniqueRule("start", "start", "replace"),
    "debounce": UniqueRule("debounce", "start", "debounce", 5 * SECOND, 9 * SECOND),
    "within": UniqueRule("within", "within", span=3600 * SECOND),
    "trailing": UniqueRule("trailing", "window", "trailing", 3600 * SECOND),
}
FOLLOWED = ("cancel", "latest")
UNTIL_END = ("existing", "raise", "replace", *FOLLOWED)
UNTIL_START = ("start", "debounce")
KINDS = ("succeeded", "failed", "retry", "snoozed", "crashed", "released", "interrupted", "parked", "cancelled")


class Look(NamedTuple):
    """What is stored: of names that are held until an end or a start their live jobs and values; all that ended; keys."""

    live: dict[str, list[str]]
    values: dict[str, str]
    ended: set[str]
    there: set[str]


class NameMachine(RuleBasedStateMachine):
    client: Any

    @initialize()
    def begin(self) -> None:
        self.client.flushall()
        self.stage = Stage(self.client, guarded=False)
        self.keys = self.stage.keys
        # Of each job its name; of each name its newest arguments, and the job that has them.
        self.names: dict[str, str] = {}
        self.newest: dict[str, tuple[bytes, str]] = {}
        self.running: dict[str, tuple[str, Claim]] = {}
        self.started: set[str] = set()
        self.last: tuple[Call[Accepted], Accepted] | None = None
        self.count = 0
        self.look = Look({}, {}, set(), set())
        for owner in OWNERS:
            self.stage.register(owner, LEASE)

    # -- what happens ----------------------------------------------------------------------------------------------

    @rule(
        names=st.lists(st.sampled_from(list(RULES)), min_size=1, max_size=4),
        order=st.sampled_from(["", "", "k"]),
        delay=st.sampled_from([0, 0, SECOND]),
    )
    def enqueue(self, names: list[str], order: str, delay: int) -> None:
        self._enqueue(names, order, delay)

    def _enqueue(self, names: list[str], order: str, delay: int) -> None:
        jobs = [self._job(name, order, delay) for name in names]
        live = self.look.live
        waiting = {name: self._never_started(name) for name in UNTIL_START}
        call = produce.enqueue(self.keys, jobs, "p", self.stage.next()).at(self.stage.now)
        answer = self.stage.run(call)
        self.last = call, answer
        if answer.clashes:
            assert {job.name for job in jobs if job.id in answer.clashes} == {"raise"}
            assert live["raise"] or names.count("raise") > 1
            return
        fresh = {
            name: [job.id for job in jobs if job.name == name and job.id not in answer.duplicates] for name in names
        }
        for name, ids in fresh.items():
            if name in UNTIL_END:
                free = not live[name]
                followed = name in FOLLOWED and len(live[name]) == 1 and live[name][0] in self.running
                assert len(ids) == int(free or followed)
            elif name in UNTIL_START:
                assert len(ids) == int(not waiting[name])
        for job in jobs:
            id = answer.duplicates.get(job.id, job.id)
            assert self.names.setdefault(id, job.name) == job.name
            if job.name in FOLLOWED:
                assert id not in self.running
            self.newest[job.name] = (job.args, id)

    @rule(name=st.sampled_from(list(RULES)))
    def enqueue_one(self, name: str) -> None:
        self._enqueue([name], "", 0)

    @precondition(lambda self: bool(self.names))
    @rule(which=st.integers(0, 9))
    def enqueue_again(self, which: int) -> None:
        """A name that has a job, most of the time."""
        self._enqueue([self.names[sorted(self.names)[-1 - which % len(self.names)]]], "", 0)

    def _job(self, name: str, order: str, delay: int) -> Any:
        self.count += 1
        facts: dict[str, Any] = {"key": order, "ordered": True} if order else {}
        if delay and RULES[name].clash in ("existing", "raise", "replace"):
            facts["delay"] = delay
        return self.stage.job(
            unique=RULES[name], args=msgspec.msgpack.encode([[self.count], {}]), max_crashes=2, **facts
        )

    @precondition(lambda self: bool(self.last is not None))
    @rule(times=st.integers(1, 2))
    def lose_the_reply(self, times: int) -> None:
        assert self.last is not None
        call, answer = self.last
        for _ in range(times):
            assert self.stage.run(call) == (answer if answer != Accepted("ok") else Accepted("repeated"))

    @precondition(lambda self: bool(self.names))
    @rule(owner=st.sampled_from(OWNERS), limit=st.integers(1, 3))
    def claim(self, owner: str, limit: int) -> None:
        for claim in self.stage.claim(owner, limit).jobs:
            self.running[claim.id] = (owner, claim)
            self.started.add(claim.id)
            name = self.names[claim.id]
            args, id = self.newest[name]
            if id == claim.id and RULES[name].clash in ("replace", "cancel", "latest", "debounce"):
                assert claim.args == args

    @precondition(lambda self: bool(self.running))
    @rule(which=st.integers(0, 9), kind=st.sampled_from(KINDS), ttl=st.sampled_from([0, KEEP]))
    def settle(self, which: int, kind: str, ttl: int) -> None:
        id = sorted(self.running)[which % len(self.running)]
        owner, claim = self.running.pop(id)
        amount = SECOND if kind in ("retry", "snoozed") else ttl
        assert not self.stage.settle(Outcome(id, claim.token, kind, b"{}", amount), owner=owner).stale

    @precondition(lambda self: bool(self.names))
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        id = sorted(self.names)[which % len(self.names)]
        self.stage.run(produce.cancel(self.keys, id, KEEP))

    @precondition(lambda self: bool(self.names))
    @rule(which=st.integers(0, 99))
    def retry_by_hand(self, which: int) -> None:
        ended = sorted(self.look.ended)
        if not ended:
            return
        id = ended[which % len(ended)]
        name = self.names[id]
        others = self.look.live.get(name)
        word = self.stage.run(produce.rerun(self.keys, id, f"r{self.stage.next()}"))
        assert word.startswith("taken ") == (bool(others) and name in UNTIL_END)
        # It takes a name that it would hold until its start no more.
        self.started.add(id)
        if name in UNTIL_END and not others:
            # Its own arguments are the newest of what is at work.
            self.newest[name] = (self.stage.record(id)["args"], id)

    @precondition(lambda self: bool(self.running))
    @rule(owner=st.sampled_from(OWNERS))
    def kill(self, owner: str) -> None:
        while self.stage.run(consume.reclaim(self.keys, owner, True, 2, KEEP))[0] == "some":
            pass
        self.running = {id: held for id, held in self.running.items() if held[0] != owner}
        self.stage.register(owner, LEASE)

    @precondition(lambda self: "scheduled" in self.look.there)
    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.stage.now += seconds * SECOND
        self.stage.run(consume.promote(self.keys, 100))

    @precondition(lambda self: "ready:default" in self.look.there and self.count % 4 == 0)
    @rule()
    def purge(self) -> None:
        self.stage.run(operations.purge(self.keys, "default", 100))

    @precondition(lambda self: "parking" in self.look.there)
    @rule()
    def unpark(self) -> None:
        self.stage.run(consume.unpark(self.keys, "add", 100, ["default"]))

    # -- what holds ------------------------------------------------------------------------------------------------

    @invariant()
    def one_job_of_a_name_is_at_work(self) -> None:
        self.look = look = self._look()
        for name in UNTIL_END:
            live, held = look.live[name], look.values[name].split()
            at_work = [id for id in live if held[1:] != [id]]
            assert len(at_work) <= 1
            assert len(live) <= (2 if name in FOLLOWED else 1)
            assert sorted(held) == sorted(live)
        for name in UNTIL_START:
            assert len(self._never_started(name)) <= 1

    @invariant()
    def every_key_is_explained(self) -> None:
        assert_invariants(self.client)

    def teardown(self) -> None:
        """All that is left runs, and leaves no name but those of a time."""
        for _ in range(20):
            self.stage.now += 4 * SECOND
            self.stage.run(consume.promote(self.keys, 100))
            self.stage.run(consume.unpark(self.keys, "add", 100, ["default"]))
            for owner in OWNERS:
                self.claim(owner, 3)
            while self.running:
                self.settle(0, "succeeded", 0)
        assert not any(self._look().values.values())
        assert_invariants(self.client)

    def _never_started(self, name: str) -> list[str]:
        return [id for id in self.look.live[name] if id not in self.started]

    def _look(self) -> Look:
        """What is stored now, in one round trip."""
        names, keys = (*UNTIL_END, *UNTIL_START), ("scheduled", "ready:default", "parking")
        pipe = self.client.pipeline(transaction=False)
        pipe.mget([self.keys(f"unique:{name}") for name in names])
        for key in keys:
            pipe.exists(self.keys(key))
        for id in self.names:
            pipe.hget(self.keys.job(id), "st")
        values, *found = pipe.execute()
        states = {id: state.decode() for id, state in zip(self.names, found[len(keys) :], strict=True) if state}
        return Look(
            {
                name: [id for id, state in states.items() if self.names[id] == name and state not in FINAL]
                for name in names
            },
            {name: (value or b"").decode() for name, value in zip(names, values, strict=True)},
            {id for id, state in states.items() if state in FINAL},
            {key for key, there in zip(keys, found, strict=False) if there},
        )


@pytest.mark.any_server
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_name_has_two_jobs_and_none_outlives_its_job(client: redis.Redis) -> None:
    play(NameMachine, client, examples=60, steps=40)
