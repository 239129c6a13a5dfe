"""Limited jobs that wait: what they cost others, and whether values get their shares. Counts, no clock.

A worker is played by its calls, on one connection: claims of a hundred, each settled at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import msgspec

from bench.context import Context
from bench.figure import Bar, Figure
from bench.servers import Server, server
from headrace import Concurrency, Headrace
from headrace.model.job import Claim, Outcome
from headrace.protocol import consume
from headrace.protocol.limit_verbs import declare_limits

_OWNER, _LEASE = "bench", 3600 * 10**6
_VALUES, _STARTS, _ROUNDS = 1000, 10_000, 10


class _Worker:
    """The calls of one dispatcher."""

    def __init__(self, app: Headrace) -> None:
        self.app, self.keys, self.request = app, app.client.keys, 0
        tasks = dict.fromkeys(app.tasks, "process")
        app.client.run(consume.register(self.keys, _OWNER, _LEASE, [], tasks=tasks))
        app.client.run(declare_limits(self.keys, _OWNER, tasks, app.limits.declared()))

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


def share_error(context: Context) -> float:
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


class _Backlog:
    """A server with a backlog that no claim may take.

    Attributes:
        idle: commands of the server for a claim that brings nothing.
    """

    def __init__(self, stack: ExitStack, backlog: int, delay: int) -> None:
        self._target, self._app = stack.enter_context(_scene())
        self._worker = _Worker(self._app)
        task = self._app.tasks["closed"].options(delay=delay)
        self._app.enqueue_many(task.job("x") for _ in range(backlog))
        self._worker.claim()
        first = self._commands()
        for _ in range(100):
            self._worker.claim()
        self.idle = (self._commands() - first - 1) / 100

    def _commands(self) -> int:
        client: Any = self._target.client
        return sum(facts["calls"] for facts in client.info("commandstats").values())

    def others(self, count: int) -> float:
        """Server time, microseconds, of a job without limits, from its enqueue to its settle."""
        first = self._target.work().cpu
        self._app.enqueue_many(self._app.tasks["plain"].job() for _ in range(count))
        left = count
        while left:
            claims = self._worker.claim()
            self._worker.settle(claims)
            left -= len(claims)
        return (self._target.work().cpu - first) / count


def _closed(context: Context) -> list[Figure]:
    """A backlog behind a closed gate, beside one that is delayed by a day (LN4)."""
    backlog = context.scaled(1_000_000)
    with ExitStack() as stack:
        delayed, behind = (_Backlog(stack, backlog, delay) for delay in (86400, 0))
        # In turn, so that what else the machine does meets both alike; the first round warms up.
        rounds = [(delayed.others(2000), behind.others(2000)) for _ in range(_ROUNDS + 1)][1:]
    rows = (
        ("commands of an idle claim", behind.idle, "commands", delayed.idle, 1),
        ("server time of another job", median(b for _, b in rounds), "us", median(d for d, _ in rounds), 1.05),
    )
    name = f"{backlog:,} jobs behind a closed gate"
    return [
        Figure(f"{name}: {what}", value, unit, "as many delayed ones", reference, Bar("at most", bar, "ratio"))
        for what, value, unit, reference, bar in rows
    ]


def run(context: Context) -> list[Figure]:
    """LN4 and LN6 of the design of limits."""
    shares = Figure(
        f"shares of {context.scaled(_VALUES):,} values with weights 1 to 5: largest error", share_error(context), "%",
        bar=Bar("at most", 5),
    )  # fmt: skip
    return [shares, *_closed(context)]
