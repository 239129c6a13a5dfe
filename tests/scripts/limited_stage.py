"""What tests of limits set up: limits that are declared as a worker declares them, and jobs with values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.admin.keyspace_rules import gate_facts
from headrace.model.form import NewJob
from headrace.model.job import Claim
from headrace.model.limit_rules import (
    ALL,
    Concurrency,
    DeclaredLimits,
    LimitRule,
    LimitState,
    Rate,
    name_of,
    part_of,
    task_row,
)
from headrace.protocol import consume
from headrace.protocol.limit_verbs import HoldAnswer, change_limit, declare_limits, hold_limit, read_limits
from tests.scripts.stage import SECOND, Stage

LEASE = 100_000 * SECOND
API = LimitRule("api", concurrency=Concurrency(2))
ACCOUNT = LimitRule("account", Rate(1, per=100), Concurrency(1), by="account")


def declare(
    stage: Stage, tasks: Mapping[str, Sequence[LimitRule]], owner: str = "w1", *, of: str = "task", **defaults: str
) -> int:
    """Have a worker begin whose tasks (or, ``of`` queue, queues) have these limits; what newer code says otherwise.

    ``defaults`` are those of the tasks' arguments.
    """
    rows: list[str | bytes] = []
    for name, rules in tasks.items():
        if rules:
            rows += (f"{of}:{name}", task_row(rules, ["account", "n"], defaults))
    limits = {rule.name: rule.fields for rules in tasks.values() for rule in rules}
    facts = ["place", f"host:{owner}", "queues", "default"]
    known = dict.fromkeys(tasks, "process") if of == "task" else {}
    declared = DeclaredLimits(list(limits.items()), rows)
    stage.run(consume.register(stage.keys, owner, LEASE, facts, known))
    return stage.run(declare_limits(stage.keys, owner, known, declared))


def put(stage: Stage, *values: object, task: str = "call", **facts: object) -> list[str]:
    """Enqueue one job for each value of the argument ``account``; their ids."""
    jobs: list[NewJob] = [stage.job(task=task, args=msgspec.msgpack.encode([[value], {}]), **facts) for value in values]
    stage.enqueue(*jobs)
    return [job.id for job in jobs]


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.id for claim in claims]


def gate(stage: Stage, name: str) -> tuple[float, int, bool]:
    """When a gate lets the next start, how many it holds, whether anything waits."""
    return gate_facts(stage.client.get(stage.keys(f"gate:{name}")))


def promote(stage: Stage) -> int:
    return stage.run(consume.promote(stage.keys, 1000))[0]


def change(
    stage: Stage,
    limit: str,
    *numbers: Rate | Concurrency,
    value: object = None,
    weight: float | None = None,
    paused: bool = False,
    duration: int = 0,
    gone: Sequence[str] = (),
    declared: LimitRule | None = None,
) -> str | frozenset[str]:
    """What an operator does; ``duration`` in microseconds."""
    parts = [(*part_of(one), duration) for one in (*numbers, *(() if weight is None else (weight,)))]
    rows = [(part, ends, fields) for part, fields, ends in parts]
    rows += [("paused", duration, [])] if paused else []
    named, fields = ALL if value is None else name_of(value), declared.fields if declared else []
    return stage.run(change_limit(stage.keys, limit, named, fields, rows, gone))


def look(stage: Stage, limit: str, value: object = None) -> LimitState:
    named = ALL if value is None else name_of(value)
    return stage.run(read_limits(stage.keys, [limit], value=named)).rows[0]


def hold(stage: Stage, limit: str, value: object = None, holder: str = "a", lease: int = 15 * SECOND) -> HoldAnswer:
    named = ALL if value is None else name_of(value)
    return stage.run(hold_limit(stage.keys, limit, named, holder, lease, []))
