"""The real scripts against the small model: whatever order people and workers do things in, both end up alike.

The usual run takes seconds; ``HR_PROPERTIES=long`` makes it minutes, for those who changed a script.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.admin.keyspace import read
from headrace.model.ids import FINAL
from headrace.model.job import Outcome
from headrace.protocol import consume, operations, overviews, produce
from headrace.testing import assert_invariants
from tests.properties.model import LEASE, WEEK, Job, Model
from tests.scripts.asked import why
from tests.scripts.stage import KEEP, SECOND, Stage

LONG = os.environ.get("HR_PROPERTIES") == "long"
PROFILE = settings(
    max_examples=1500 if LONG else 40,
    stateful_step_count=80 if LONG else 40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Explaining a failure re-runs it hundreds of times; the steps that are printed suffice.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    print_blob=True,
)

QUEUES = ("a", "b")
OWNERS = ("w1", "w2", "w3")
TASKS = ("add", "mul")
ORDERED = ("k1", "k2")
KINDS = (
    "succeeded", "failed", "cancelled", "corrupt", "crashed", "retry", "snoozed", "released", "interrupted", "parked"
)  # fmt: skip

queues = st.sampled_from(QUEUES)
owners = st.sampled_from(OWNERS)
limits = st.integers(0, 5)
keeps = st.sampled_from([0, SECOND, KEEP])
several = st.permutations(QUEUES).flatmap(lambda order: st.integers(1, len(order)).map(lambda n: order[:n]))


class Machine(RuleBasedStateMachine):
    """Each rule says one verb to the store and to the model, and compares the answers."""

    client: redis.Redis

    @initialize()
    def empty(self) -> None:
        self.client.flushall()
        self.stage = Stage(self.client, guarded=False)
        self.keys = self.stage.keys
        self.model = Model()
        self.ever: list[str] = []
        self.requests: dict[str, str] = {}
        self.sent: Any = None
        self.claimed: dict[str, tuple[int, int, list[str]]] = {}
        self.settled: dict[str, Any] = {}
        self.ready_of: dict[str, int] = {}

    @property
    def now(self) -> int:
        return self.stage.now

    # Producers.

    @rule(
        count=st.integers(1, 4), queue=queues, task=st.sampled_from(TASKS), priority=st.sampled_from([0, 0, -1, 2]),
        delay=st.sampled_from([0, 0, 1, SECOND]), once=st.booleans(), budget=st.sampled_from([0, 1, 2]),
        expires=st.sampled_from([0, 0, 2 * SECOND]), key=st.sampled_from(["", "", *ORDERED]),
    )  # fmt: skip
    def enqueue(
        self, count: int, queue: str, task: str, priority: int, delay: int, once: bool, budget: int, expires: int,
        key: str,
    ) -> None:  # fmt: skip
        jobs = [
            self.stage.job(
                task=task,
                queue=queue,
                priority=priority,
                delay=delay,
                at_most_once=once,
                max_crashes=budget,
                expires=expires,
                key=key,
                ordered=bool(key),
            )
            for _ in range(count)
        ]
        self.sent = produce.enqueue(self.keys, jobs, "p", self.stage.next()).at(self.now)
        assert self.stage.run(self.sent).word == "ok"
        # A new job that is due before all others wakes its queue, since somebody may sleep until the next one.
        waiting = self.model.where("scheduled")
        if delay and (not waiting or self.now + delay < waiting[0].place):
            self.model.tokens.add(queue)
        for job in jobs:
            self.ever.append(job.id)
            ends = self.now + expires if expires else 0
            new = Job(job.id, task, queue, priority, once, budget or 3, ends, key=key)
            self.model.enqueue(new, self.now, delay)

    @precondition(lambda self: self.sent is not None)
    @rule()
    def enqueue_again_since_the_reply_was_lost(self) -> None:
        assert self.stage.run(self.sent).word == "repeated"

    @rule(request=st.sampled_from(["r1", "r2"]), queue=queues)
    def enqueue_with_a_request_id(self, request: str, queue: str) -> None:
        job = self.stage.job(queue=queue)
        call = produce.enqueue(self.keys, [job], "q", self.stage.next(), [request]).at(self.now)
        earlier = self.requests.get(request)
        for attempt in range(2):
            answer = self.stage.run(call)
            assert answer.word == ("repeated" if attempt else "ok")
            assert answer.duplicates == ({job.id: earlier} if earlier else {})
        if not earlier:
            self.requests[request] = job.id
            self.ever.append(job.id)
            self.model.enqueue(Job(job.id, "add", queue, 0, False, 3, 0), self.now, 0)

    # Dispatchers.

    @rule(owner=owners)
    def register(self, owner: str) -> None:
        self.stage.register(owner, LEASE)
        self.model.register(owner, self.now)

    @rule(owner=owners, names=several)
    def renew(self, owner: str, names: list[str]) -> None:
        answer = self.stage.run(consume.renew(self.keys, owner, LEASE, ["load", "1"], names))
        assert answer.alive == self.model.renew(owner, self.now)
        if not answer.alive:
            return
        known = self.model.owners[owner]
        self.model.tokens |= {queue for queue in names if self.model.where("ready", queue=queue)}
        asked = {job.id for job in self.model.where("running", owner=owner) if job.asked}
        assert set(answer.cancels) == asked
        assert set(answer.parking) == {job.task for job in self.model.where("parked")}
        others = [(one.lease, name) for name, one in self.model.owners.items() if name != owner]
        assert (answer.lapse, answer.lapsing) == min(others, default=(known.lease, owner))

    @rule(owner=owners, limit=limits, names=several)
    def claim(self, owner: str, limit: int, names: list[str]) -> None:
        self._claim(owner, self.stage.next(), limit, names)

    @precondition(lambda self: self.claimed)
    @rule(owner=owners)
    def claim_again_since_the_reply_was_lost(self, owner: str) -> None:
        if owner in self.claimed:
            self._claim(owner, *self.claimed[owner])

    @rule(owner=owners, limit=limits, names=several)
    def wake_and_claim(self, owner: str, limit: int, names: list[str]) -> None:
        """What an idle dispatcher does: take one token of the queues that it serves, then claim."""
        known = self.model.owners.get(owner)
        token = next((queue for queue in names if queue in self.model.tokens), None)
        if known and known.lease > self.now and token:
            self.stage.doze(token)
            self.model.tokens.discard(token)
            self._claim(owner, self.stage.next(), limit, names)

    def _claim(self, owner: str, number: int, limit: int, names: list[str]) -> None:
        answer = self.stage.run(consume.claim(self.keys, owner, number, limit, names))
        expected = self.model.claim(owner, number, limit, names, self.now)
        assert answer.alive == (expected is not None)
        if expected is None:
            return
        self.claimed[owner] = (number, limit, names)
        assert [(c.id, c.token, c.queue) for c in answer.jobs] == [(j.id, j.token, j.queue) for j in expected]
        assert answer.lost == []
        for claim, job in zip(answer.jobs, expected, strict=True):
            counts = (claim.failures, claim.crashes, claim.interruptions, claim.snoozes)
            assert counts == tuple(job.counts.get(n, 0) for n in ("failures", "crashes", "interruptions", "snoozes"))
            assert (claim.task, claim.once, claim.expires) == (job.task, job.once, job.expires)
            self.ready_of[claim.id] = claim.ready

    @rule(
        owner=owners, outcomes=st.lists(st.tuples(st.sampled_from(KINDS), keeps, st.booleans()), max_size=4),
        stale=st.booleans(), place=st.booleans(),
    )  # fmt: skip
    def settle(self, owner: str, outcomes: list[tuple[str, int, bool]], stale: bool, place: bool) -> None:
        held = self.model.where("running", owner=owner)
        rows: list[tuple[Outcome, int]] = []
        late: list[str] = []
        doomed: list[tuple[Job, str, int, int]] = []
        for job, (kind, amount, _) in zip(held, outcomes, strict=False):
            score = self.ready_of[job.id] if place else 0
            rows.append((Outcome(job.id, job.token, kind, b"data", amount), score))
            doomed.append((job, kind, amount, score))
        if stale and self.ever:
            rows.append((Outcome(self.ever[0], 1, "succeeded", b"late", KEEP), 0))
            late.append(self.ever[0])
        if not rows:
            return
        call = consume.settle(self.keys, owner, self.stage.next(), rows, WEEK).at(self.now)
        answer = self.stage.run(call)
        assert (answer.repeated, answer.stale) == (False, late)
        for job, kind, amount, score in doomed:
            self.model.settle(owner, job, kind, amount, self.now, score)
        if owner in self.model.owners:
            self.settled[owner] = call

    @precondition(lambda self: self.settled)
    @rule(owner=owners)
    def settle_again_since_the_reply_was_lost(self, owner: str) -> None:
        if owner in self.settled:
            answer = self.stage.run(self.settled[owner])
            assert answer.repeated == (owner in self.model.owners) or answer.stale

    @rule(owner=owners, known=st.booleans(), limit=st.integers(0, 3), keep=keeps)
    def reclaim(self, owner: str, known: bool, limit: int, keep: int) -> None:
        answer = self.stage.run(consume.reclaim(self.keys, owner, known, limit, keep))
        assert answer == self.model.reclaim(owner, known, limit, keep, self.now)
        if owner not in self.model.owners:
            self.claimed.pop(owner, None)

    @rule(owner=owners)
    def retire(self, owner: str) -> None:
        busy = bool(self.model.where("running", owner=owner))
        assert self.stage.run(consume.retire(self.keys, owner)) is not busy
        if not busy:
            self.model.owners.pop(owner, None)
            self.claimed.pop(owner, None)

    @rule(owner=owners, current=st.booleans())
    def note(self, owner: str, current: bool) -> None:
        held = self.model.where("running", owner=owner)
        if held:
            token = held[0].token if current else held[0].token - 1
            note = consume.Note(held[0].id, token, 0.5, "half", ("line",))
            call = consume.note(self.keys, owner, [note], 3, self.stage.next())
            assert self.stage.run(call) == int(current)
            assert self.stage.run(call) == 0

    # Upkeep and people.

    @rule(step=st.sampled_from([1, SECOND, 3 * SECOND, LEASE, KEEP, -SECOND]))
    def the_clock_moves(self, step: int) -> None:
        self.stage.now += step

    @rule(limit=limits)
    def promote(self, limit: int) -> None:
        moved, _, due, _ = self.stage.run(consume.promote(self.keys, limit))
        assert moved == self.model.promote(limit, self.now)
        left = self.model.where("scheduled")
        assert due == (left[0].place if left else 0)

    @rule(limit=limits, most=st.sampled_from([0, 2, 10**6]))
    def sweep(self, limit: int, most: int) -> None:
        gone, _, _ = self.stage.run(consume.sweep(self.keys, limit, most, 10**9))
        assert gone == self.model.sweep(limit, most, self.now)

    @rule(task=st.sampled_from(TASKS), limit=limits, names=st.sampled_from([QUEUES, QUEUES[:1], ()]))
    def unpark(self, task: str, limit: int, names: tuple[str, ...]) -> None:
        moved = self.stage.run(consume.unpark(self.keys, task, limit, names))
        assert moved == self.model.unpark(task, limit, names, self.now)

    @precondition(lambda self: self.ever)
    @rule(data=st.data(), keep=keeps)
    def cancel(self, data: st.DataObject, keep: int) -> None:
        id = data.draw(st.sampled_from(self.ever))
        answer = self.stage.run(produce.cancel(self.keys, id, keep))
        assert answer == self.model.cancel(id, keep, self.now)

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def rerun(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.ever))
        assert self.stage.run(produce.rerun(self.keys, id, str(self.stage.next()))) == self.model.rerun(id, self.now)

    @precondition(lambda self: self.ever)
    @rule(data=st.data(), wait=st.sampled_from([0, SECOND, KEEP]))
    def watch(self, data: st.DataObject, wait: int) -> None:
        id = data.draw(st.sampled_from(self.ever))
        seen = self.stage.run(produce.watch(self.keys, id, wait))
        job = self.model.jobs.get(id)
        assert seen.state == (job.state if job else None)
        if job and job.state not in FINAL and wait:
            self.model.waited[id] = max(self.model.waited.get(id, 0), self.now + wait)

    @precondition(lambda self: self.ever)
    @rule(data=st.data())
    def why(self, data: st.DataObject) -> None:
        """Whatever state is reached, there is an answer; none that the model knows to be wrong."""
        id = data.draw(st.sampled_from(self.ever))
        job = self.model.jobs.get(id)
        said = {reason.code for reason in why(self.stage, id, looks=False).reasons}
        assert said
        assert ("unknown" in said) == (job is None)
        assert ("ended" in said) == (job is not None and job.state in FINAL)
        assert "not_consistent" not in said
        assert "queue_paused" not in said or (job is not None and job.queue in self.model.paused)
        if "claims_stopped" in said:
            assert job is not None
            assert job.state == "ready"
            assert any(owner.lease > self.now for owner in self.model.owners.values())
        if job is not None and job.state == "scheduled":
            assert said & {"scheduled", "overdue"}

    @rule(queue=queues, duration=st.sampled_from([0, 0, 1, SECOND]))
    def pause(self, queue: str, duration: int) -> None:
        changed = self.stage.run(operations.pause(self.keys, queue, duration))
        assert changed == (queue not in self.model.paused)
        self.model.pause(queue, duration, self.now)

    @rule(queue=queues)
    def resume(self, queue: str) -> None:
        assert self.stage.run(operations.resume(self.keys, queue)) == (queue in self.model.paused)
        self.model.resume(queue)

    @rule(limit=limits)
    def resume_due(self, limit: int) -> None:
        ends = sorted((end, queue) for queue, end in self.model.resumes.items())
        due = [queue for end, queue in ends if end <= self.now][:limit]
        for queue in due:
            self.model.resume(queue)
        left = min(self.model.resumes.values(), default=0)
        assert self.stage.run(operations.resume_due(self.keys, limit)) == (len(due), self.now, left)

    @rule(queue=queues, limit=limits)
    def purge(self, queue: str, limit: int) -> None:
        answer = self.stage.run(operations.purge(self.keys, queue, limit))
        assert answer == self.model.purge(queue, limit, self.now)

    @rule()
    def overview(self) -> None:
        seen = self.stage.run(overviews.overview(self.keys))
        for state, count in seen.states.items():
            assert count == len(self.model.where(state)), state
        assert {queue.name for queue in seen.queues if queue.paused} == self.model.paused

    # What must hold after each step.

    @invariant()
    def the_store_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        model = self.model
        (space,) = read(self.client) or [None]
        if space is None:
            assert not model.jobs
            return
        values = space.values

        def index(jobs: list[Job]) -> dict[str, int]:
            return {job.id: job.place for job in jobs}

        for queue in QUEUES:
            assert values["ready"].get(queue, {}) == index(model.where("ready", queue=queue))
        for owner in OWNERS:
            running = model.where("running", owner=owner)
            assert values["claims"].get(owner, {}) == index(running)
            assert values["cancels"].get(owner, set()) == {job.id for job in running if job.asked}
        for task in TASKS:
            assert values["parked"].get(task, {}) == index(model.where("parked", task=task))
        for key in ORDERED:
            assert values["chain"].get(key, {}) == index(model.where("blocked", key=key))
        assert values["turn"] == model.turns
        for state in ("scheduled", *FINAL):
            assert space.one(state) == index(model.where(state))
        assert space.one("expires") == {job.id: job.ends for job in model.kept()}
        assert space.one("owners") == {name: owner.lease for name, owner in model.owners.items()}
        assert space.one("waited") == model.waited
        assert space.one("resumes") == model.resumes
        assert int(space.one("token") or 0) == model.last
        assert values["job"].keys() == model.jobs.keys()
        for id, record in values["job"].items():
            job = model.jobs[id]
            for name in ("failures", "crashes", "interruptions", "snoozes"):
                assert int(record.get(name, b"0")) == job.counts.get(name, 0), name
            assert int(record.get("token", b"0")) == job.token
            assert int(record.get("expires", b"0")) == job.expires
        assert set(values["wake"]) == model.tokens

    @invariant()
    def every_key_is_explained(self) -> None:
        assert_invariants(self.client)

    @invariant()
    def whoever_sleeps_is_woken_for_work(self) -> None:
        """A queue that could be claimed from has a token: nobody who waits for it sleeps on."""
        if hasattr(self, "model"):
            for queue in set(QUEUES) - self.model.paused:
                assert queue in self.model.tokens or not self.model.where("ready", queue=queue), queue

    def teardown(self) -> None:
        """Everything ends: what is finished, swept and retired leaves nothing behind."""
        if not hasattr(self, "model"):
            return
        self.stage.now += 100 * KEEP
        for queue in QUEUES:
            self.stage.run(operations.resume(self.keys, queue))
            self.model.paused.discard(queue)
        for owner in OWNERS:
            while self.stage.run(consume.reclaim(self.keys, owner, True, 500, 0))[0] == "some":
                pass
        for task in TASKS:
            self.stage.run(consume.unpark(self.keys, task, 500, QUEUES))
        self.stage.run(consume.promote(self.keys, 1000))
        # Until nothing is left in any, since an ordered job of one queue may wait for one of the other.
        while sum(self.stage.run(operations.purge(self.keys, queue, 1000))[0] for queue in QUEUES):
            pass
        self.stage.now += 100 * KEEP + 8 * 86400 * SECOND
        self.stage.run(consume.sweep(self.keys, 1000, 0, 0))
        assert_invariants(self.client)
        assert self.stage.bytes() == 0
        assert not self.stage.client.exists(*(self.keys(f"turn:{key}") for key in ORDERED))
        left = {key.partition(b"}:")[2].partition(b":")[0].decode() for key in self.client.keys("*")}
        assert left - {"events", "deaths", "causes", "cause", "floods", "schema"} <= {
            "token",
            "sender",
            "request",
            "totals",
        }, left


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
def test_scripts_and_model_agree(client: redis.Redis) -> None:
    machine = type("Bound", (Machine,), {"client": client})
    run_state_machine_as_test(machine, settings=PROFILE)
