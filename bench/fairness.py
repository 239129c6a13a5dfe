"""Limited jobs that wait: what they cost others, and whether values get their shares. Counts, no clock.

A worker is played by its calls, on one connection: claims of a hundred, each settled at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from bench.context import Context
from bench.figure import Bar, Figure
from bench.servers import Server, server
from headrace import Concurrency, Headrace
from headrace.model.job import Claim, Outcome
from headrace.protocol import consume

_OWNER, _LEASE = "bench", 3600 * 10**6
_VALUES, _STARTS = 1000, 10_000


class _Worker:
    """The calls of one dispatcher."""

    def __init__(self, app: Headrace) -> None:
        self.app, self.keys, self.request = app, app.client.keys, 0
        tasks = dict.fromkeys(app.tasks, "process")
        app.client.run(consume.register(self.keys, _OWNER, _LEASE, [], 0, tasks, app.limits.declared()))

    def claim(self, limit: int = 100) -> list[Claim]:
        self.request += 1
        return self.app.client.run(consume.claim(self.keys, _OWNER, self.request, limit, ["default"])).jobs

    def settle(self, claims: list[Claim]) -> None:
        self.request += 1
        rows = [(Outcome(claim.id, claim.token, "succeeded", b"", 0), claim.ready) for claim in claims]
        self.app.client.run(consume.settle(self.keys, _OWNER, self.request, rows, 0))


def _noop(account: str) -> None: ...


def _plain() -> None: ...


@contextmanager
def _scene() -> Generator[tuple[Server, Headrace]]:
    with server() as target, Headrace(target.url) as app:
        app.limit("fair", by="account")
        app.limit("one", Concurrency(1))
        app.task(name="fair", limits=["fair"])(_noop)
        app.task(name="closed", limits=["one"])(_noop)
        app.task(name="plain")(_plain)
        yield target, app


def _shares(context: Context) -> float:
    """How far the share of a weight is off, at most, percent, of twice as many starts after so many (LN6).

    The first start of each value does not go by its weight: one that is new has a turn as soon as others.
    """
    values, starts = context.scaled(_VALUES), context.scaled(_STARTS)
    with _scene() as (_, app):
        worker, limit, task = _Worker(app), app.limits["fair"], app.tasks["fair"]
        for n in range(values):
            limit.set(value=f"v{n}", weight=n % 5 + 1)
        each = starts * 5 // values + 20
        app.enqueue_many(task.job(f"v{n}") for _ in range(each) for n in range(values))
        taken: Counter[int] = Counter()
        begun = 0
        while taken.total() < 2 * starts:
            claims = worker.claim()
            for claim in claims:
                begun += 1
                ((account,), _) = msgspec.msgpack.decode(claim.args)
                taken[int(account[1:]) % 5 + 1] += begun > starts
            worker.settle(claims)
    return max(abs(taken[weight] / taken.total() * 15 / weight - 1) for weight in range(1, 6)) * 100


def _cost(target: Server, worker: _Worker, app: Headrace, count: int) -> tuple[float, float]:
    """Commands of the server for a claim that brings nothing, and server time of one that brings a hundred others."""
    client: Any = target.client

    def used() -> tuple[int, float]:
        calls = sum(facts["calls"] for facts in client.info("commandstats").values())
        cpu = client.info("cpu")
        return calls, cpu["used_cpu_user"] + cpu["used_cpu_sys"]

    first = used()[0]
    for _ in range(100):
        worker.claim()
    idle = (used()[0] - first - 1) / 100
    app.enqueue_many(app.tasks["plain"].job() for _ in range(count))
    first_cpu = used()[1]
    left = count
    while left:
        claims = worker.claim()
        worker.settle(claims)
        left -= len(claims)
    return idle, (used()[1] - first_cpu) / count * 1e6


def _closed(context: Context) -> list[Figure]:
    """A backlog behind a closed gate, beside one that is delayed by a day (LN4)."""
    found: list[tuple[float, float]] = []
    backlog = context.scaled(1_000_000)
    for delay in (86400, 0):
        with _scene() as (target, app):
            worker = _Worker(app)
            task = app.tasks["closed"].options(delay=delay)
            app.enqueue_many(task.job("x") for _ in range(backlog))
            worker.claim()
            found.append(_cost(target, worker, app, context.scaled(20_000)))
    (idle, others), (idle_behind, others_behind) = found
    rows = (
        ("commands of an idle claim", idle_behind, "commands", idle, 1),
        ("server time of another job", others_behind, "us", others, 1.05),
    )
    name = f"{backlog:,} jobs behind a closed gate"
    return [
        Figure(f"{name}: {what}", value, unit, "as many delayed ones", reference, Bar("at most", bar, "ratio"))
        for what, value, unit, reference, bar in rows
    ]


def run(context: Context) -> list[Figure]:
    """LN4 and LN6 of the design of limits."""
    shares = Figure(
        f"shares of {context.scaled(_VALUES):,} values with weights 1 to 5: largest error", _shares(context), "%",
        bar=Bar("at most", 5),
    )  # fmt: skip
    return [shares, *_closed(context)]
