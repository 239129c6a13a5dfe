"""A stage for scripts: one server, one clock that only the test moves, short names for what tests set up and look at.

Every verb goes through its Call, as in production, and runs as a user who may do only what the script declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import redis

from headrace.admin.keyspace import read
from headrace.model.form import Form, NewJob
from headrace.model.ids import make_id, ordered_id, unique_id
from headrace.model.job import Claim, Outcome, StartNote
from headrace.protocol import consume, produce
from headrace.protocol.keys import Keys
from headrace.protocol.script import Call
from tests.scripts.guard import Guard

T = TypeVar("T")

START = 1_700_000_000_000_000
"""The clock's first value: a round number, since servers print those in their own ways."""
SECOND = 1_000_000
LEVEL = 600 * SECOND
"""Head start of one level of priority."""
KEEP = 3600 * SECOND
ARGS = msgspec.msgpack.encode([[], {}])
# Three are as much as one claim brings.
LARGE = msgspec.msgpack.encode([["x", bytes(1_500_000)], {}])


class Stage:
    """One shard on a real server.

    Attributes:
        now: the clock that each call is given, microseconds; tests move it.
    """

    def __init__(
        self, client: redis.Redis, namespace: str = "hr", shard: int = 0, number: str = "1", *, guarded: bool = True
    ) -> None:
        self.client: Any = client
        self.keys = Keys(namespace, shard, number)
        self.now = START
        self._made = 0
        self._requests = 0
        self._guarded = guarded
        self._guard: Guard | None = None

    def run(self, call: Call[T]) -> T:
        return call.parse(self.raw(call))

    def raw(self, call: Call[Any]) -> Any:
        """The reply as the server gave it; at the time of the stage, unless the call has another."""
        call = call.at(self.now)
        if not self._guarded:
            return self._bare(call)
        if self._guard is None:
            self._guard = Guard(self.client, self.keys.prefix)
        return self._guard.run(call)

    def _bare(self, call: Call[Any]) -> Any:
        try:
            return self.client.execute_command(*call.command())
        except redis.exceptions.NoScriptError:
            self.client.execute_command("SCRIPT", "LOAD", call.script.text)
            return self.client.execute_command(*call.command())

    def close(self) -> None:
        if self._guard is not None:
            self._guard.close()

    def commands(self) -> int:
        """How many commands the server has run, those of scripts included."""
        return sum(facts["calls"] for facts in self.client.info("commandstats").values())

    def next(self) -> int:
        """A request number that no call had."""
        self._requests += 1
        return self._requests

    def job(self, **facts: Any) -> NewJob:
        self._made += 1
        id, args = make_id(self.now // 1000, self._made, self.keys.shard), facts.pop("args", ARGS)
        if facts.get("ordered"):
            id = ordered_id(id)
        rule = facts.get("unique")
        name = facts.pop("name", rule.text if rule else "")
        if rule:
            id = unique_id(id)
        return NewJob(facts.pop("id", id), args, Form(**{"task": "add"} | facts), name)

    def enqueue(self, *jobs: NewJob) -> produce.Accepted:
        return self.run(produce.enqueue(self.keys, jobs, "sender", self.next()))

    def put(self, count: int = 1, **facts: Any) -> list[str]:
        """Enqueue ``count`` jobs in calls of a thousand; their ids."""
        jobs = [self.job(**facts) for _ in range(count)]
        for first in range(0, count, 1000):
            self.enqueue(*jobs[first : first + 1000])
        return [job.id for job in jobs]

    def register(
        self,
        owner: str = "w1",
        lease: int = 15 * SECOND,
        queues: str = "default",
        tasks: Mapping[str, str] | None = None,
        facts: Sequence[str | int] = (),
    ) -> str:
        said = ["place", f"host:{owner}", "queues", queues, *facts]
        self.run(consume.register(self.keys, owner, lease, said, tasks))
        return owner

    def lapse(self, lease: int = 15 * SECOND) -> None:
        """Let every lease end but that of a witness, who renews: it is not the server that was away."""
        if not self.client.exists(self.keys("owner:witness")):
            self.register("witness", lease)
        for _ in range(3):
            self.now += lease * 2 // 5
            assert self.run(consume.renew(self.keys, "witness", lease)).alive

    def claim(
        self, owner: str = "w1", limit: int = 1000, queues: Sequence[str] = ("default",), request: int = 0
    ) -> consume.Claimed:
        number = request or self.next()
        return self.run(consume.claim(self.keys, owner, number, limit, queues))

    def take(self, owner: str = "w1", limit: int = 1000, queues: Sequence[str] = ("default",)) -> list[Claim]:
        """Claim for an owner that is registered where it is not yet; the claims."""
        if not self.client.exists(self.keys(f"owner:{owner}")):
            self.register(owner)
        return self.claim(owner, limit, queues).jobs

    def running(self, owner: str = "w1", **facts: Any) -> Claim:
        """One job that runs."""
        (id,) = self.put(**facts)
        return next(c for c in self.take(owner, queues=[facts.get("queue", "default")]) if c.id == id)

    def settle(
        self,
        *outcomes: Outcome,
        owner: str = "w1",
        request: int = 0,
        ready: int = 0,
        starts: Sequence[StartNote] = (),
    ) -> consume.Settled:
        rows = [(outcome, ready) for outcome in outcomes]
        number = request or self.next()
        return self.run(consume.settle(self.keys, owner, number, rows, KEEP, starts))

    def outcome(self, claim: Claim, kind: str = "succeeded", data: bytes = b"", amount: int = KEEP) -> Outcome:
        return Outcome(claim.id, claim.token, kind, data, amount)

    def end(self, claim: Claim, kind: str = "succeeded", data: bytes = b"", amount: int = KEEP) -> None:
        """Settle one start, which must still count."""
        self.end_as("w1", claim, kind, data, amount)

    def end_as(self, owner: str, claim: Claim, kind: str = "succeeded", data: bytes = b"", amount: int = KEEP) -> None:
        answer = self.settle(Outcome(claim.id, claim.token, kind, data, amount), owner=owner)
        assert not answer.stale

    def finished(self, kind: str = "succeeded", data: bytes = b"r", ttl: int = KEEP, **facts: Any) -> str:
        """One job that ended and is kept; its id."""
        claim = self.running(**facts)
        self.end(claim, kind, data, ttl)
        return claim.id

    # Looks, all past the scripts under test.

    def record(self, id: str) -> dict[str, bytes]:
        return {name.decode(): value for name, value in self.client.hgetall(self.keys.job(id)).items()}

    def state(self, id: str) -> str | None:
        return self.record(id).get("st", b"").decode() or None

    def members(self, name: str) -> dict[str, int]:
        """A sorted set: ids with scores, in its order."""
        found = self.client.zrange(self.keys(name), 0, -1, withscores=True)
        return {member.decode(): int(score) for member, score in found}

    def names(self, name: str) -> set[str]:
        return {member.decode() for member in self.client.smembers(self.keys(name))}

    def ready(self, queue: str = "default") -> list[str]:
        return list(self.members(f"ready:{queue}"))

    def tokens(self, queue: str = "default") -> int:
        """How many wake tokens a queue has."""
        return self.client.zcard(self.keys.wake(queue))

    def doze(self, queue: str = "default") -> None:
        """Take a queue's wake token, as an idle dispatcher does that is woken."""
        self.client.delete(self.keys.wake(queue))

    def bytes(self) -> int:
        return int(self.client.hget(self.keys("totals"), "bytes") or 0)

    def everything(self) -> dict[str, Any]:
        """The whole shard as plain values, to compare before and after."""
        return {space.shard: dict(space.values) for space in read(self.client, "hr")}

    def left(self) -> set[str]:
        """Names of all keys up to their first colon, but for the schema, and for what is told of the past."""
        keys = {key.decode().removeprefix(self.keys.prefix).partition(":")[0] for key in self.client.keys("*")}
        return keys - {"events", "deaths", "causes", "cause", "floods", "schema"}

    def subscribe(self, channel: str) -> Any:
        """A subscription that is in force when this returns."""
        pubsub = self.client.pubsub(ignore_subscribe_messages=False)
        pubsub.subscribe(channel)
        assert pubsub.get_message(timeout=20)["type"] == "subscribe"
        return pubsub
