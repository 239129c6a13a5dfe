"""Scale: what a job costs over several shards beside one, and the fleet that a million jobs a second would take.

Measured: drains of no-op jobs over 1, 3 and 12 shards of one server, and over three servers. On a machine with fewer
cores than processes this shows the cost of a job, not the speed of a fleet. Simulated, with the costs just measured:
dispatchers that claim from all shards, as ``incarnation.py`` does. The network is not measured: a trip takes 0.15 ms.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from bench import tally
from bench.context import Context
from bench.figure import Bar, Figure, percentile
from bench.kinds import system_of
from bench.parts import processor_time
from bench.processes import BenchError, wait_until
from bench.servers import Server, server
from bench.systems import HEADRACE

# Jobs of one drain, and the part of them that is left out at its beginning and at its end.
_JOBS, _EDGE = 60_000, 0.1
# Servers and shards -> how much more server and dispatcher time a job may take, and requests a job.
_DRAINS = {(1, 1): (None, 0.02), (1, 3): (1.05, 0.025), (1, 12): (1.15, 0.03), (3, 3): (1.05, 0.025)}
# Part of the time for which a primary or a dispatcher may be busy; jobs a second of the fleet.
_BUSY, _RATE = 0.7, 1_000_000


@dataclass(frozen=True)
class Cost:
    """Of one job, microseconds of processor time; ``requests``: to all servers."""

    servers: float
    dispatcher: float
    requests: float


def _drained(context: Context, servers: int, shards: int) -> Cost:
    jobs = context.scaled(_JOBS)
    with ExitStack() as stack:
        targets = [stack.enter_context(server()) for _ in range(servers)]
        env = {"HEADRACE_URL": " ".join(one.url for one in targets)}
        if servers == 1 and shards > 1:
            env["HEADRACE_SHARDS"] = str(shards)
        kind = system_of("process", "")
        system = replace(kind, env={**kind.env, **env})
        enqueued = _work(targets)
        context.produce(system, targets[0], "bulk", jobs)
        enqueued = _work(targets) - enqueued
        worker = stack.enter_context(context.worker(system, targets[0]))

        def ran(share: float) -> Callable[[], bool]:
            return lambda: tally.ran(targets[0].tally) > jobs * share

        wait_until(ran(_EDGE), "the first jobs", 60)
        pid = _dispatcher(targets[0])
        before, work, count = processor_time(pid), _work(targets), tally.ran(targets[0].tally)
        trips = _trips(targets)
        wait_until(ran(1 - _EDGE), "the last jobs", 300, pause=0.02)
        count = tally.ran(targets[0].tally) - count
        spent = (processor_time(pid) - before) * 1e6 / count
        # The second reading costs a request of each server.
        asked = (_trips(targets) - trips - servers) / count
        cost = Cost((_work(targets) - work) / count + enqueued / jobs, spent, asked)
        worker.check()
        return cost


def _work(targets: list[Server]) -> float:
    return sum(one.work().cpu for one in targets)


def _trips(targets: list[Server]) -> float:
    return sum(one.work().trips for one in targets)


def _dispatcher(home: Server) -> int:
    client: Any = home.client
    owner = client.zrange("{hr:0}:owners", 0, -1)[0].decode()
    return int(client.hget(f"{{hr:0}}:owner:{owner}", "dispatcher"))


def _request_cost(context: Context) -> float:
    """Microseconds of the server for a request, besides what its jobs cost: jobs enqueued singly beside many."""
    count, cost = context.scaled(10_000), dict[str, float]()
    for verb in ("single", "bulk"):
        with server() as target:
            before = target.work().cpu
            context.produce(HEADRACE, target, verb, count)
            cost[verb] = (target.work().cpu - before) / count
    return cost["single"] - cost["bulk"]


# -- a fleet, simulated ------------------------------------------------------------------------------------------------

_TRIP = 150e-6
# Most jobs of one claim; jobs in hand at most; seconds of work in hand at which the next claim is sent.
_MOST, _ROOM, _AHEAD = 300, 600, 0.004
# Seconds simulated, those of them that do not count, and in which jobs come at once.
_SPAN, _WARM, _STEP = 0.25, 0.08, 0.0005


@dataclass(eq=False)
class _Dispatcher:
    room: int = _ROOM
    waits: int = 0
    busy: float = 0.0
    claims: int = 0
    # Shards that had more jobs, with the time of the oldest; when each was asked last; those asked to wake it.
    more: dict[int, float] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    armed: set[int] = field(default_factory=set)
    again: float = 0.0


class Fleet:
    """Primaries with a shard each, and dispatchers that claim from all of them. Times in seconds.

    Attributes:
        requests, jobs: how many.
        delays: from the arrival of a job until it has run.
        busiest: part of the time for which the busiest primary worked.
    """

    def __init__(self, shards: int, dispatchers: int, rate: float, job: float, request: float, run: float) -> None:
        self.requests = self.jobs = 0
        self.delays: list[float] = []
        self._rate, self._job, self._request, self._run = rate, job, request, run
        self._random = random.Random(1)
        self._queues = [deque[float]() for _ in range(shards)]
        self._sleepers = [deque[_Dispatcher]() for _ in range(shards)]
        self._free, self._worked = [0.0] * shards, [0.0] * shards
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._at(0.0, self._arrive)
        for _ in range(dispatchers):
            one = _Dispatcher()
            self._at(self._random.random() * 1e-3, lambda now, one=one: self._decide(now, one))

    def play(self) -> Fleet:
        while self._events and self._events[0][0] < _SPAN:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return self

    @property
    def busiest(self) -> float:
        return max(self._worked) / _SPAN

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, self._random.getrandbits(60), event))

    def _serve(self, now: float, shard: int, jobs: int) -> float:
        """When a primary has answered a request."""
        work = self._request + self._job / 2 * jobs
        self._free[shard] = max(self._free[shard], now) + work
        self._worked[shard] += work
        return self._free[shard]

    def _arrive(self, now: float) -> None:
        """Jobs come to each shard, and wake those that sleep there. Half of a job's cost is its arrival."""
        for shard, queue in enumerate(self._queues):
            count = int(self._rate * _STEP / len(self._queues) + self._random.random())
            queue.extend([now] * count)
            self._serve(now, shard, count)
            self._wake(now, shard)
        self._at(now + _STEP, self._arrive)

    def _wake(self, now: float, shard: int) -> None:
        sleepers = self._sleepers[shard]
        while sleepers and self._queues[shard]:
            one = sleepers.popleft()
            if shard in one.armed:
                one.armed.discard(shard)
                most = max(1, min(_MOST, one.room) // (len(one.armed) + 1))
                self._claim(now, one, shard, most)
                return

    def _decide(self, now: float, one: _Dispatcher) -> None:
        """One full claim at a time, when little is in hand: of the oldest head, each fourth of the shard asked last."""
        if one.waits or one.room <= 0:
            return
        if (hand := one.busy - now) > _AHEAD + 1e-9:
            if one.again <= now:
                one.again = now + hand - _AHEAD
                self._at(one.again, lambda now: self._decide(now, one))
        elif one.more:
            one.claims += 1
            by = one.asked if one.claims % 4 == 0 else one.more
            shard = min(one.more, key=lambda shard: by.get(shard, 0.0))
            one.armed.discard(shard)
            self.requests += 1
            self._claim(now + _TRIP / 2, one, shard, min(_MOST, one.room))
        else:
            for shard in set(range(len(self._queues))) - one.armed:
                one.armed.add(shard)
                self.requests += 1
                self._sleepers[shard].append(one)
                self._wake(now, shard)

    def _claim(self, now: float, one: _Dispatcher, shard: int, most: int) -> None:
        one.waits, one.room = one.waits + 1, one.room - most
        self._at(now, lambda now: self._answer(now, one, shard, most))

    def _answer(self, now: float, one: _Dispatcher, shard: int, most: int) -> None:
        queue = self._queues[shard]
        took = [queue.popleft() for _ in range(min(most, len(queue)))]
        done = self._serve(now, shard, len(took))
        head = queue[0] if queue else None
        self._wake(done, shard)
        self._at(done + _TRIP / 2, lambda now: self._given(now, one, shard, most, took, head))

    def _given(
        self, now: float, one: _Dispatcher, shard: int, most: int, took: list[float], head: float | None
    ) -> None:
        one.waits, one.room = one.waits - 1, one.room + most - len(took)
        one.asked[shard] = now
        one.more.pop(shard, None)
        if head is not None:
            one.more[shard] = head
        for came in took:
            one.busy = max(one.busy, now) + self._run
            if now > _WARM:
                self.delays.append(one.busy - came)
        self.jobs += len(took)

        def ran(now: float) -> None:
            one.room += len(took)
            self._decide(now, one)

        if took:
            self._at(one.busy, ran)
        self._decide(now, one)


def fleet(cost: Cost, request: float) -> tuple[int, int, Fleet]:
    """Primaries and dispatchers for a million jobs a second, none busy for more than seven tenths of its time. Each
    primary more means more requests, so both are tried until they suffice.
    """
    job = max(1e-7, (cost.servers - cost.requests * request) * 1e-6)
    dispatchers = -int(-_RATE * cost.dispatcher * 1e-6 // _BUSY)
    primaries = -int(-_RATE * cost.servers * 1e-6 // _BUSY)
    while primaries <= 128:
        found = Fleet(primaries, dispatchers, _RATE, job, request * 1e-6, cost.dispatcher * 1e-6).play()
        if found.busiest <= _BUSY:
            return primaries, dispatchers, found
        primaries = max(primaries + 1, int(primaries * found.busiest / _BUSY))
    raise BenchError("a million jobs a second would take more than 128 shards")


def _simulated(cost: Cost, request: float) -> Iterator[Figure]:
    primaries, dispatchers, found = fleet(cost, request)
    yield Figure("scale, a million jobs/s, simulated: primaries", primaries, "cores")
    yield Figure("scale, a million jobs/s, simulated: dispatchers", dispatchers, "cores")
    # Each dispatcher has two to a shard: calls, and a claim that sleeps.
    yield Figure("scale, a million jobs/s, simulated: connections of a primary", 2 * dispatchers, "connections")
    yield Figure("scale, a million jobs/s, simulated: requests per job", found.requests / found.jobs, "requests")
    yield Figure("scale, a million jobs/s, simulated: busiest primary", 100 * found.busiest, "%")
    yield Figure("scale, a million jobs/s, simulated: delay p99", 1e3 * percentile(found.delays, 99), "ms")


def run(context: Context) -> list[Figure]:
    """The cost of a job over shards and over servers beside one, then the fleet."""
    if sys.platform != "linux":
        raise BenchError("scale reads /proc, which only Linux has")
    figures: list[Figure] = []
    one: Cost | None = None
    for (servers, shards), (most, requests) in _DRAINS.items():
        name = f"{shards} shards of {servers} servers" if shards > 1 else "one"
        context.say(f"scale: {name}")
        cost = _drained(context, servers, shards)
        one = one or cost
        bar = None if most is None else Bar("at most", most, "ratio")
        figures += [
            Figure(f"scale, servers' CPU per job: {name}", cost.servers, "µs", "one", one.servers, bar),
            Figure(f"scale, dispatcher CPU per job: {name}", cost.dispatcher, "µs", "one", one.dispatcher, bar),
            Figure(f"scale, requests per job: {name}", cost.requests, "requests", bar=Bar("at most", requests)),
        ]
        if (servers, shards) == (3, 3):
            context.say("scale: a fleet, simulated")
            figures += _simulated(cost, _request_cost(context))
    return figures
