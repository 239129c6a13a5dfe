"""Sentry for the jobs of an application: errors by their cause, traces from the sender, check-ins of schedules.

It makes no client: call ``sentry_sdk.init`` as in any program. Needs ``pip install 'headrace[sentry]'``.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import CancelRequested, JobInterrupted, MissingExtra, OptionsError, Snooze
from headrace.model.headers import SCHEDULE
from headrace.model.hidden_values import Redactor, map_texts
from headrace.model.ids import milliseconds_of
from headrace.model.job import JobError, parse_error
from headrace.model.job_record import cause_id
from headrace.model.retry import signal_in
from headrace.protocol import produce
from headrace.worker.runner.reporting import evidence

try:
    import sentry_sdk
except ImportError:
    raise MissingExtra("this needs sentry-sdk: pip install 'headrace[sentry]'") from None

from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.utils import event_from_exception

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.context import CurrentJob
    from headrace.model.activity import EventRecord
    from headrace.tasks.submission import Submission

# Seconds after which a start is a trace of its own, and jobs of one act that share the sender's trace at most: as many
# as with the traces of OpenTelemetry, one and 20 others.
LATE = 60.0
FEW = 21
# Seconds that a runner waits for what is on its way to Sentry before it leaves.
FLUSH = 2.0
TRACE = "sentry-trace"
BAGGAGE = "baggage"

# Of the transaction of a start that ended by one of these, which are no errors.
_STATUS: Mapping[type[BaseException], str] = {Snooze: "ok", CancelRequested: "cancelled", JobInterrupted: "aborted"}

Report = Literal["final", "each"] | int


def install(
    app: Headrace, *, report: Report = "final", monitors: bool = True, variables: bool = False, killed: bool = True
) -> None:
    """Tell Sentry of the application's jobs. Call it once, beside ``sentry_sdk.init``, where the application is made.

    Each start has a scope and, where tracing is on, a transaction ``queue.process``; what stores work is a span
    ``queue.publish``. An error is grouped by the cause that the dashboard and ``headrace events`` know. Snoozes,
    cancellations and interruptions by a shutdown are no errors. A job's first start continues the sender's trace if it
    begins within a minute and was stored with at most 20 others; a retry, and each tick of a schedule, has its own.
    Raises OptionsError: ``report`` is not one of these. Cost: no round trip. With tracing, about 200 bytes of headers
    for each job.

    Args:
        report: ``final``: an error is reported if the job does not run again; ``each``: at every start; a number:
            from this start on, and the final one.
        monitors: ticks of the schedules that the code declares are check-ins of a monitor of the same name.
        variables: send the local variables of frames, which hold the arguments of jobs; without it they never
            leave.
        killed: a hook reports jobs that were quarantined, or killed at their hard time limit, whose process could
            not do it; see :meth:`EventHooks.on`.
    """
    number = isinstance(report, int) and not isinstance(report, bool) and report >= 1
    if not number and report not in ("final", "each"):
        raise OptionsError(f"report is 'final', 'each' or the number of a start, not {report!r}")
    # The dispatcher's lines about failed jobs would be reported once more, from a process that may have no thread.
    for name in ("headrace", "headrace.*"):
        ignore_logger(name)
    told = _Told(app, report, monitors, variables)
    app.middleware(told.around)
    app.enqueue_middleware(_publish)
    app.on_exit(lambda: sentry_sdk.flush(timeout=FLUSH))
    if killed:
        app.on("failed", "quarantined")(told.killed)


class _Told:
    """What Sentry is told of each start."""

    def __init__(self, app: Headrace, report: Report, monitors: bool, variables: bool) -> None:
        self._app = app
        self._report = report
        self._monitors = monitors
        self._variables = variables
        self._redactor = Redactor.of(app.settings)

    @contextlib.contextmanager
    def around(self, job: CurrentJob) -> Generator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_transaction_name(job.task, source="task")
            scope.set_tag("headrace.task", job.task)
            scope.set_tag("headrace.queue", job.queue)
            known = {"job": job.id, "attempt": job.attempt, "workflow": job.workflow_id, "node": job.node}
            scope.set_context("headrace", known)
            if not self._variables:
                scope.add_event_processor(_without_variables)
            # As logs, pages and spans hide them: secret arguments, and what follows a name such as ``token=``.
            hide = self._redactor.text
            scope.add_event_processor(lambda event, _: map_texts(event, lambda text: hide(job.hide(text))))
            check = self._check_in(job)
            raised: BaseException | None = None
            with _transaction(job) as transaction:
                try:
                    yield
                except BaseException as error:  # noqa: BLE001 - raised below
                    # Not through the transaction, which takes each exception for an internal error.
                    raised = error
                    transaction.set_status(_STATUS.get(type(signal_in(error)), "internal_error"))
                    self._failed(job, error)
                else:
                    transaction.set_status("ok")
                self._end_check_in(job, check, raised)
            if raised is not None:
                raise raised

    def _failed(self, job: CurrentJob, error: BaseException) -> None:
        if not self._wanted(job, error):
            return
        cause = cause_id(job.task, parse_error(evidence(error, job.attempt, "", hide=job.hide)))
        with sentry_sdk.new_scope() as scope:
            scope.fingerprint = ["headrace", cause]
            scope.set_tag("headrace.cause", cause)
            scope.set_tag("headrace.final", not job.will_retry(error))
            event, hint = _event(error)
            sentry_sdk.capture_event(event, hint=hint)

    def _wanted(self, job: CurrentJob, error: BaseException) -> bool:
        if isinstance(signal_in(error), Snooze | CancelRequested | JobInterrupted) or job.stopped_by == "interrupt":
            return False
        if self._report == "each" or not job.will_retry(error):
            return True
        return isinstance(self._report, int) and job.attempt >= self._report

    def killed(self, events: list[EventRecord]) -> None:
        meant = [one for one in events if one.kind == "quarantined" or one.facts["error"].startswith("HardTimeLimit")]
        client = self._app.client
        records = client.run(produce.read(client.keys, [one.facts["job"] for one in meant])) if meant else []
        for event, record in zip(meant, records, strict=True):
            sentry_sdk.capture_event(_of_killed(event, record.error if record else None, self._redactor))

    def _check_in(self, job: CurrentJob) -> str:
        name = job.headers.get(SCHEDULE, "")
        if not self._monitors or job.tick is None or not name:
            return ""
        # Of the job: all its starts are one check-in, whichever runner has them.
        check = hashlib.md5(job.id.encode(), usedforsecurity=False).hexdigest()
        config = monitor_config(self._app, name)
        capture_checkin(monitor_slug(name), check, "in_progress", monitor_config=config)
        return check

    def _end_check_in(self, job: CurrentJob, check: str, error: BaseException | None) -> None:
        if not check or (error is not None and job.will_retry(error)):
            return
        capture_checkin(monitor_slug(job.headers[SCHEDULE]), check, "ok" if error is None else "error")


def monitor_slug(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:50] or "schedule"


def monitor_config(app: Headrace, name: str) -> Any:
    """A monitor's times, from a declared schedule; None: none has this name, or its interval is not whole minutes."""
    found = app.schedules.declared.get(name)
    if found is None:
        return None
    from headrace.schedules.timetables import Cron

    times = found.timetable
    if isinstance(times, Cron):
        return {"schedule": {"type": "crontab", "value": times.expression}, "timezone": times.timezone}
    minutes, rest = divmod(times.step, 60_000_000)
    return None if rest or not minutes else {"schedule": {"type": "interval", "value": minutes, "unit": "minute"}}


@contextlib.contextmanager
def _transaction(job: CurrentJob) -> Generator[Any]:
    waited = max(0.0, job.token / 1e6 - milliseconds_of(job.id) / 1e3)
    follows = job.attempt == 1 and job.tick is None and waited <= LATE
    headers = {name: job.headers[name] for name in (TRACE, BAGGAGE) if follows and name in job.headers}
    begun = sentry_sdk.continue_trace(
        headers, op="queue.process", name=job.task, source="task", origin="auto.queue.headrace"
    )
    with sentry_sdk.start_transaction(
        begun, custom_sampling_context={"headrace": {"task": job.task, "queue": job.queue, "attempt": job.attempt}}
    ) as transaction:
        for name, value in {
            "messaging.system": "headrace",
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "messaging.message.receive.latency": round(waited * 1000),
            "messaging.message.retry.count": job.failures,
            **({"headrace.node": job.node} if job.node else {}),
        }.items():
            transaction.set_data(name, value)
        yield transaction


@contextlib.contextmanager
def _publish(act: Submission) -> Generator[None]:
    if not sentry_sdk.get_client().is_active() or not act.jobs:
        yield
        return
    first = act.jobs[0]
    name = first.task if len(act.jobs) == 1 else f"{act.verb} {len(act.jobs)} jobs"
    with sentry_sdk.start_span(op="queue.publish", name=name, origin="auto.queue.headrace") as span:
        span.set_data("messaging.system", "headrace")
        span.set_data("messaging.destination.name", first.options.get("queue") or "default")
        span.set_data("messaging.message.id" if len(act.jobs) == 1 else "messaging.batch.message_count",
                      first.id if len(act.jobs) == 1 else len(act.jobs))  # fmt: skip
        trace = {TRACE: sentry_sdk.get_traceparent(), BAGGAGE: sentry_sdk.get_baggage()}
        for job in act.jobs:
            # Those of the job that enqueues here are of another trace.
            for header, text in trace.items():
                if text and len(act.jobs) <= FEW:
                    job.headers[header] = text
                else:
                    job.headers.pop(header, None)
        yield


def _of_killed(event: EventRecord, error: JobError | None, redactor: Redactor) -> Any:
    facts, error = event.facts, error or JobError(type=event.kind)
    known = ("attempt", "signal", "exit_code", "peak_memory", "worker", "where")
    mechanism = {"type": "headrace", "handled": False}
    value = {"type": error.type, "value": redactor.text(error.message), "mechanism": mechanism}
    return {
        # The same if the event is given again.
        "event_id": hashlib.md5(event.id.encode(), usedforsecurity=False).hexdigest(),
        "timestamp": event.at_us / 1e6,
        "level": "error",
        "transaction": facts["task"],
        "exception": {"values": [value]},
        "fingerprint": ["headrace", facts["cause"]],
        "tags": {
            "headrace.task": facts["task"], "headrace.queue": facts["queue"], "headrace.cause": facts["cause"],
            "headrace.final": True,
        },
        "contexts": {"headrace": {"job": facts["job"], **{name: getattr(error, name) for name in known}}},
    }  # fmt: skip


def _event(error: BaseException) -> tuple[Any, Any]:
    options = sentry_sdk.get_client().options
    mechanism = {"type": "headrace", "handled": False}
    found: tuple[Any, Any] = event_from_exception(error, client_options=options, mechanism=mechanism)
    return found


def _without_variables(event: Any, hint: Mapping[str, Any]) -> Any:  # noqa: ARG001 - as Sentry calls it
    parts: list[Any] = [*event.get("exception", {}).get("values", ()), *event.get("threads", {}).get("values", ())]
    for part in parts:
        trace: Any = part.get("stacktrace") or {}
        for frame in trace.get("frames", ()):
            frame.pop("vars", None)
    return event
