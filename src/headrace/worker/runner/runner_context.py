"""What the starts of one runner share, read off the application once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import msgspec

from headrace.app import Headrace
from headrace.context import CurrentJob
from headrace.model.hidden_values import hiding
from headrace.model.job import Claim
from headrace.model.options import Kind
from headrace.protocol.consume import Note
from headrace.settings import microseconds
from headrace.tasks.app_context import AppContext
from headrace.tasks.limit import name_of_own
from headrace.tasks.middleware import Middleware
from headrace.tasks.run_plan import NO_PLAN, RunPlan
from headrace.tasks.task import Task
from headrace.worker.channel import Channel
from headrace.worker.messages import ToRunner
from headrace.worker.runner import dynamic_nodes
from headrace.workflows.definition_facts import Lookup

Emit = Callable[[Note], None]


class RunnerOptions(msgspec.Struct, frozen=True):
    """What one runner is told by the supervisor that forked it.

    Attributes:
        channel: to the dispatcher.
        tickets: reading end of the ticket pipe, not blocking.
        slots: jobs at once: threads or coroutines; 1 for the process and fork kinds.
        measure_memory: whether each outcome carries the peak memory of the process; one system call per job.
        place: ``host:pid`` of the worker, for errors.
        forked: when the supervisor began to fork this runner (nanoseconds of the monotonic clock) if it is to note what
            is done again in it; else 0.
        is_fork_server: be one that forks a child for each job; the fork kind only.
        exit_deadline: seconds that leaving lifespans, exit hooks and the flushing of logs and streams may take.
    """

    kind: Kind
    channel: Channel[ToRunner]
    tickets: int
    slots: int
    measure_memory: bool
    place: str
    forked: int = 0
    is_fork_server: bool = False
    exit_deadline: float = 5.0


class RunnerContext(msgspec.Struct, frozen=True, eq=False):
    """What every start of one runner needs. A structure, since traces copy it for each start.

    Attributes:
        tasks: by name.
        middlewares: of the application, around user code.
        failure_ttl: microseconds that a job stays whose own options cannot be read.
        context: the context variables that every start begins with: what one job sets (a tenant, a trace), the next
            one must not see. A task on an event loop has its own copy anyway.
        place: ``host:pid`` of the worker, for errors.
        dice: random numbers from 0 to 1, for the jitter of retries.
        app: the application, as its tasks know it.
        registered: what the nodes may name that a job adds to its workflow.
        state: what the runner's lifespans yielded.
        raised: told what left the code of a start, before its tracebacks are taken off; only the test kit listens.
    """

    tasks: dict[str, Task[..., Any, Any]]
    middlewares: Sequence[Middleware]
    failure_ttl: int
    context: Context
    place: str
    dice: Callable[[], float]
    app: AppContext
    registered: Lookup
    state: Any = None
    raised: Callable[[BaseException], None] | None = None

    def job(self, claim: Claim, emit: Emit, args: Any, kwargs: Any, plan: RunPlan = NO_PLAN) -> CurrentJob:
        """What the code of this start sees of itself."""
        flow = partial(dynamic_nodes.collecting, self.registered) if claim.facts else None
        hide = hiding(plan.secrets, args, kwargs) if plan.secrets else str
        return CurrentJob(claim, emit, flow, self.state, args, kwargs, self.limit_of, plan.retry, hide)

    def limit_of(self, claim: Claim, limit: object) -> str:
        """The name of one of the job's limits; raises ``UnknownLimit`` for any other."""
        limits = self.app.limits_of(self.tasks[claim.task].limits, claim.queue)
        return name_of_own(limits, claim.task, limit)


def runner_context(app: Headrace, place: str, dice: Callable[[], float], state: Any = None) -> RunnerContext:
    """What the starts of one runner share, read off the application once."""
    ttl = microseconds(app.settings.failure_ttl)
    return RunnerContext(
        app.tasks, app.middlewares, ttl, copy_context(), place, dice, app.context, app.registered, state
    )
