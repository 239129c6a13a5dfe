"""A span around each start of a job, in the trace of its sender or linked to it; see ``tasks/traces.py``. Spans of the
job's own code are below it. Loaded only where the setting ``traces`` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, Status, StatusCode

from headrace.model.ended import Ended
from headrace.model.headers import shown
from headrace.model.hidden_values import Redactor
from headrace.model.ids import flow_of, is_node
from headrace.model.job import Claim, JobError, parse_error
from headrace.model.workflow import correlation_of, parse_facts
from headrace.protocol import produce
from headrace.settings import Settings
from headrace.store.client import Client
from headrace.tasks import traces
from headrace.worker.runner.execute import Drive, aperform, perform
from headrace.worker.runner.interrupts import Gate
from headrace.worker.runner.runner_context import Emit, RunnerContext

# What a start without a sender begins in: it must not find what an earlier one left.
_NOTHING = contexts.Context()
_FAILED = frozenset({"failed", "retry", "crashed", "corrupt"})


class TracedStarts:
    """``perform`` and ``aperform`` with a span around them."""

    def __init__(self, settings: Settings, client: Client) -> None:
        self._mode = settings.traces
        self._client = client
        self._redactor = Redactor.of(settings)

    def perform(self, runner_context: RunnerContext, gate: Gate, claim: Claim, emit: Emit) -> Ended:
        span, context = self._begin(runner_context, claim)
        if claim.crashes and span.is_recording():
            error = None
            with suppress(Exception):  # a trace that lacks something is not a reason to fail the job
                error = _error_of(self._client.run(produce.read(self._client.keys, [claim.id])))
            _report_crash(span, error)
        own = runner_context.context.copy()
        own.run(contexts.attach, context)
        ended = perform(replace(runner_context, context=own), gate, claim, emit)
        self._end(span, ended)
        return ended

    async def aperform(self, runner_context: RunnerContext, drive: Drive, claim: Claim, emit: Emit) -> Ended:
        span, context = self._begin(runner_context, claim)
        if claim.crashes and span.is_recording():
            error = None
            with suppress(Exception):  # as above
                error = _error_of(await self._client.arun(produce.read(self._client.keys, [claim.id])))
            _report_crash(span, error)
        token = contexts.attach(context)
        try:
            ended = await aperform(runner_context, drive, claim, emit)
        finally:
            contexts.detach(token)
        self._end(span, ended)
        return ended

    def _begin(self, runner_context: RunnerContext, claim: Claim) -> tuple[Span, contexts.Context]:
        headers = shown(claim.headers)
        sent = _NOTHING
        links: tuple[Link, ...] = ()
        if headers:
            sent = propagate.extract(headers, _NOTHING)
            sender = trace.get_current_span(sent).get_span_context()
            task = runner_context.tasks.get(claim.task)
            mode = (task.trace if task is not None else "") or self._mode
            if sender.is_valid and not traces.is_child(claim, headers, mode):
                links = (Link(sender),)
                # Its baggage stays.
                sent = trace.set_span_in_context(trace.INVALID_SPAN, sent)
        # It begins now: the time of the token is of the server's clock, which is another one.
        span = traces.tracer.start_span(
            f"process {claim.task}", sent, trace.SpanKind.CONSUMER,
            _sampling_attributes(claim.queue, claim.task, runner_context.place), links,
        )  # fmt: skip
        if span.is_recording():
            span.set_attributes(_attributes(claim, headers))
        return span, trace.set_span_in_context(span, sent)

    def _end(self, span: Span, ended: Ended) -> None:
        if span.is_recording():
            outcome = "succeeded" if ended.kind == "growing" else ended.kind
            span.set_attribute(traces.OUTCOME, outcome)
            if outcome in _FAILED and (error := parse_error(ended.data)) is not None:
                message, stack = self._redactor.text(error.message), self._redactor.text(error.traceback)
                span.set_attribute(traces.ERROR, error.type)
                span.set_status(Status(StatusCode.ERROR, f"{error.type}: {message}"))
                facts = {"exception.type": error.type, "exception.message": message, "exception.stacktrace": stack}
                span.add_event("exception", facts)
            elif outcome in _FAILED:
                span.set_status(Status(StatusCode.ERROR))
        span.end()


def _report_crash(span: Span, error: JobError | None) -> None:
    """Tell of the start before, which was killed, so that it could not export anything."""
    facts: dict[str, Any] = {}
    if error is not None and error.type == "Crashed":
        names = ("signal", "exit_code", "peak_memory", "attempt", "worker", "where", "message")
        known = {name: getattr(error, name) for name in names}
        facts = {f"headrace.crash.{name}": value for name, value in known.items() if value not in (None, "")}
    span.add_event("previous start crashed", facts)


def _error_of(found: list[Any]) -> JobError | None:
    return found[0].error if found and found[0] is not None else None


@lru_cache(1024)
def _sampling_attributes(queue: str, task: str, place: str) -> Mapping[str, str]:
    return {
        traces.SYSTEM: "headrace", traces.OPERATION: "process", traces.OPERATION_TYPE: "process",
        traces.DESTINATION: queue, traces.CLIENT: place, traces.TASK: task,
    }  # fmt: skip


def _attributes(claim: Claim, headers: Mapping[str, str]) -> dict[str, Any]:
    """The others, for spans that are recorded. Never arguments: only their size."""
    found: dict[str, Any] = {
        traces.MESSAGE: claim.id, traces.BODY_SIZE: len(claim.args), traces.ATTEMPT: claim.attempt,
        traces.CORRELATED: correlation_of(claim.id, headers),
    }  # fmt: skip
    if (waited := claim.waited) is not None:
        found[traces.WAITED] = waited / 1e6
    if is_node(claim.id):
        found[traces.CONVERSATION] = flow_of(claim.id)
        found[traces.NODE] = parse_facts(claim.facts).name
        if names := [one.name for one in claim.inputs if one.name]:
            found[traces.PARENTS] = names
    return found
