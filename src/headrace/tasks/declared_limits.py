"""Limits of an application: how they are declared, and what its workers tell the store of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import NotFound, OptionsError
from headrace.model import codec
from headrace.model.hidden_values import hides
from headrace.model.limit_rules import (
    MOST_LIMITS,
    Concurrency,
    DeclaredLimits,
    Full,
    LimitPage,
    LimitRule,
    Rate,
    limit_rule,
    task_row,
    value_name,
)
from headrace.protocol.limit_verbs import MOST_ROWS, read_limits
from headrace.protocol.script import Call
from headrace.store.client import twin, verb
from headrace.tasks.app_context import AppContext
from headrace.tasks.limit import Limit, check_cost
from headrace.tasks.task import Task


class LimitSet:
    """``app.limits``: by name, those that the application declares, and those that the store knows."""

    def __init__(self, context: AppContext, tasks: Mapping[str, Task[..., Any, Any]]) -> None:
        self._context, self._client = context, context.client
        self._tasks = tasks

    def declare(
        self,
        name: str,
        *numbers: Rate | Concurrency,
        by: str | None = None,
        queue: str | None = None,
        backlog: int | None = None,
        full: Full = "wait",
    ) -> Limit:
        """Declare a limit that jobs share, over all workers: ``api = app.limit("api", Rate(500, per=60))``.

        The tasks that have it name it: ``@app.task(limits=[api])``. A job starts when all of its limits let it; until
        then it waits on the server, and no worker holds it. Workers tell the store of limits when they start: numbers
        that changed count at once, also for jobs that wait or run. Raises OptionsError: a name or number cannot be
        used. Raises OptionsError: another limit has this name. Cost: none.

        Args:
            name: of the limit, shared by all programs of the namespace.
            numbers: a :class:`headrace.Rate`, a :class:`headrace.Concurrency`, or both; without one, values take
                turns and nothing else.
            by: each value of this argument, or with ``"key"`` each ``key`` of jobs, has a limit of its own. Values
                of one limit take turns. They show in lists and in names of keys, so they must not be secrets. Jobs
                without the value share one.
            queue: all jobs of this queue have the limit, whatever their task.
            backlog: the most jobs that wait in one queue with the same values; ``enqueue`` of more raises
                :class:`headrace.errors.LaneFull`. Delayed jobs, ordered and unique ones, retries and nodes of
                workflows are never refused.
            full: what becomes of jobs that come while as many run as ``Concurrency`` lets run. ``wait`` (default).
                ``cancel_new``: they are cancelled. ``cancel_running``: the oldest that run are, and the new ones
                follow them. ``keep_newest``: of those that wait only the newest stays, the others are cancelled.
        """
        limit = Limit(self._client, name, limit_rule(name, numbers, by, queue, backlog, full))
        if name in self._context.limits:
            raise OptionsError(f"there is a limit {name} already: give this one another name")
        self._context.limits[name] = limit
        return limit

    @verb
    def page(self, after: str | None = None, limit: int = 100) -> Call[LimitPage]:
        """Limits that the store knows, by name, those behind ``after``; at most 500. Cost: one round trip."""
        return read_limits(self._client.keys, (), after or "", min(limit, MOST_ROWS))

    def __getitem__(self, name: str) -> Limit:
        """The limit of this name, declared here or not. Cost: none. Raises OptionsError: nothing can have this name."""
        return self._context.limits.get(name) or Limit(self._client, name)

    def __iter__(self) -> Iterator[Limit]:
        """Those that are declared here. Cost: none."""
        return iter(tuple(self._context.limits.values()))

    def declared(self) -> DeclaredLimits:
        """What a worker tells the store of them. Raises NotFound: a task names a limit that is not declared. Raises
        OptionsError: a limit goes by an argument that a task does not take, or the jobs of a task have too many.
        """
        known, rows = self._context.limits, list[str | bytes]()
        of_queue: dict[str, list[LimitRule]] = {}
        for limit in known.values():
            if limit.rule.queue:
                of_queue.setdefault(limit.rule.queue, []).append(limit.rule)
        for queue, rules in of_queue.items():
            rows += (f"queue:{queue}", task_row(rules, (), {}))
        for name, task in self._tasks.items():
            own = [_own_limit(known, task, limit).rule for limit in task.limits]
            together = {rule.name for rule in (*own, *of_queue.get(task.defaults.queue, ()))}
            if len(together) > MOST_LIMITS:
                raise OptionsError(
                    f"jobs of {name} have the limits {', '.join(sorted(together))}: a job has at most {MOST_LIMITS}"
                )
            check_cost(self._context.limits_of(task.limits, task.defaults.queue), task.defaults.cost)
            if own:
                rows += (f"task:{name}", task_row(own, task.signature.parameters.positions, _defaults(task)))
        return DeclaredLimits([(limit.name, limit.rule.fields) for limit in known.values()], rows)

    apage = twin(page)


def _own_limit(known: Mapping[str, Limit], task: Task[..., Any, Any], name: str) -> Limit:
    if name not in known:
        raise NotFound(
            f"task {task.name} has a limit {name!r}, which is not declared: the limits of this application are "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    limit, takes = known[name], task.signature.parameters
    by = limit.rule.by
    if by and by != "key" and by not in takes.positions and by not in takes.keywords:
        raise OptionsError(f"limit {name} goes by {by!r}, and {task.name}{takes.text} has no such argument")
    if by and by != "key" and hides(task.signature.secrets, by):
        raise OptionsError(
            f"limit {name} goes by {by!r}, which is secret in {task.name}: values of limits show in lists"
        )
    return limit


def _defaults(task: Task[..., Any, Any]) -> dict[str, str]:
    found, encoder = dict[str, str](), task.context.types.encoder
    for parameter in inspect.signature(task.function).parameters.values():
        default = parameter.default
        if default is not parameter.empty and codec.is_sendable(default, encoder):
            found[parameter.name] = value_name(encoder.encode(default))
    return found
