"""Traces of OpenTelemetry: the spans around what stores work, and the names of all attributes.

Loaded only where the setting ``traces`` is not ``off``; needs the extra ``otel``. The SDK, its exporter and its
sampling are the program's: without one the spans go nowhere. Contexts travel in the headers of jobs, as the program's
propagators write them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any

from headrace.errors import SettingsError
from headrace.model.headers import SCHEDULE
from headrace.model.ids import is_node
from headrace.model.job import Claim
from headrace.store.client import Client
from headrace.tasks.submission import Submission

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError:
    raise SettingsError("HEADRACE_TRACES needs opentelemetry-api: pip install 'headrace[otel]'") from None

# The names of the conventions for messaging, which are in development: all that is to change with them is here.
SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE = "messaging.message.id"
CONVERSATION = "messaging.message.conversation_id"
BODY_SIZE = "messaging.message.body.size"
BATCH = "messaging.batch.message_count"
CLIENT = "messaging.client.id"
ERROR = "error.type"
TASK = "headrace.task"
ATTEMPT = "headrace.attempt"
WAITED = "headrace.waited"
OUTCOME = "headrace.outcome"
CORRELATED = "headrace.correlation"
NODE = "headrace.node"
PARENTS = "headrace.parents"

# The header of a job that is not a child of its sender: delayed, or one of many.
LINK = "headrace-link"
# A job enqueued with more than this many others is not a child: one trace of thousands of jobs defeats sampling.
MOST_SIBLINGS = 20
# Nor is one that waited longer (microseconds): a trace with a gap of days is not a trace.
MOST_WAITED = 60_000_000
# Seconds that a runner gives the exporter when it leaves.
FLUSH = 2.0

# For the life of the process: providers that are set later, such as after a fork, are used from then on.
tracer = trace.get_tracer("headrace")


def install(client: Client, closers: list[Callable[[], object]]) -> None:
    client.enqueue_middlewares.append(sending)
    closers.append(flush)


def is_child(claim: Claim, headers: Mapping[str, str], mode: str) -> bool:
    """Whether a start belongs to the trace of its sender; else it begins a trace of its own, which links to that."""
    if mode == "link" or claim.attempt > 1 or SCHEDULE in headers:
        return False
    if mode == "parent" or is_node(claim.id):
        return True
    return LINK not in headers and (claim.waited or 0) <= MOST_WAITED


class sending:  # noqa: N801 - a middleware, used as a function
    """A span around the round trip, whose context goes into the headers of the jobs.

    A class, since each generator that is a context manager costs a start two microseconds; the SDK's own
    ``start_as_current_span`` is two of them.
    """

    __slots__ = ("_act", "_span", "_token")

    def __init__(self, act: Submission) -> None:
        self._act = act
        self._span: trace.Span | None = None
        self._token: Any = None

    def __enter__(self) -> None:
        act, context = self._act, None
        # What a running node adds belongs to its own span; a start stores nothing.
        if act.verb not in ("start", "grow"):
            span = self._span = tracer.start_span(_name(act), None, trace.SpanKind.PRODUCER, _attributes(act))
            context = trace.set_span_in_context(span)
            self._token = contexts.attach(context)
        try:
            _inject(act, context)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        contexts.detach(self._token)
        if isinstance(error, Exception) and span.is_recording():
            span.record_exception(error)
            span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        span.end()


def _name(act: Submission) -> str:
    if act.verb == "create":
        return f"create {act.definition or 'workflow'}"
    if len(act.jobs) == 1:
        return f"send {act.jobs[0].task}"
    tasks = {job.task for job in act.jobs}
    return f"send {tasks.pop() if len(tasks) == 1 else 'jobs'}"


def _attributes(act: Submission) -> dict[str, Any]:
    if not act.jobs:
        return {}
    if act.verb in ("enqueue", "broadcast"):
        job = act.jobs[0]
        found = {**_of_task(act.verb, job.queue, job.task), BODY_SIZE: job.size}
        if job.id:
            found[MESSAGE] = job.id
        return found
    found = {**_of_task(act.verb, "", ""), BATCH: len(act.jobs)}
    if act.workflow_id:
        found[CONVERSATION] = act.workflow_id
    return found


@lru_cache(1024)
def _of_task(verb: str, queue: str, task: str) -> Mapping[str, str]:
    found = {SYSTEM: "headrace", OPERATION: verb, OPERATION_TYPE: "create" if verb == "create" else "send"}
    return found | ({DESTINATION: queue, TASK: task} if task else {})


def _inject(act: Submission, context: contexts.Context | None) -> None:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    if not carrier:
        return
    many = len(act.jobs) > MOST_SIBLINGS + 1
    for job in act.jobs:
        headers = {**job.headers, **carrier}
        # Inherited from the job that makes this one.
        headers.pop(LINK, None)
        if many or job.delayed:
            headers[LINK] = "1"
        # Without room for them it is stored as it is: a trace is never why work is not stored.
        job.carry(headers)


def flush() -> None:
    """Have the exporter send what it holds, for two seconds at most: one that hangs must not keep a runner."""
    provider: Any = trace.get_tracer_provider()
    force = getattr(provider, "force_flush", None)
    if force is None:
        return
    thread = threading.Thread(target=force, args=(round(FLUSH * 1000),), name="headrace-flush", daemon=True)
    thread.start()
    thread.join(FLUSH)
