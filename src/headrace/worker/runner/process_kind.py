"""The process and fork kinds: the main thread runs user code, one job at a time, in the order of the inbox.

Owns the inbox and the reading side of the channel. A ticket decides whether the head of the inbox may start
(see tickets.py).
"""

from __future__ import annotations

import os
import time
from collections import deque

from headrace.context import CurrentJob, StopReason
from headrace.model.job import Claim
from headrace.worker.channel import Closed
from headrace.worker.forking.child_process import end_faulty
from headrace.worker.messages import Recall, Run, Stop, ToRunner, WakeHint
from headrace.worker.runner.fork_server import ForkServer
from headrace.worker.runner.interrupts import MainGate, keep_stop
from headrace.worker.runner.reporting import JobReporter, Reporter
from headrace.worker.runner.runner_context import RunnerContext, RunnerOptions
from headrace.worker.runner.traced_starts import Perform, performers
from headrace.worker.tickets import early, take_ticket

# Seconds that a runner looks for work that was announced before it sleeps again.
AWAKE = 0.001


class Process:
    """One process that runs jobs.

    Attributes:
        runner_context: what its starts share.
        recalls: how many were heard on this channel, also by others before it.
        fork_server: whose child it is.
    """

    def __init__(
        self, runner_context: RunnerContext, options: RunnerOptions, *, perform: Perform | None = None
    ) -> None:
        """Make one; ``perform`` is what runs its starts; None: as the application wants it."""
        self.gate = MainGate(self._look)
        self.reporter = Reporter(options.channel, self.gate, measure_memory=options.measure_memory)
        self.runner_context = runner_context
        self._perform = perform or performers(runner_context)[0]
        self._channel, self._tickets = options.channel, options.tickets
        # Whether it runs a single job, then leaves.
        self._once = options.kind == "fork"
        self._inbox: deque[Claim] = deque()
        # Stops that came before their start's code began, by token.
        self._pending: dict[int, StopReason] = {}
        self.recalls = 0
        self.fork_server: ForkServer | None = None
        self._leaving = False
        self._awake_until = 0.0

    def serve(self) -> None:
        """Run jobs until told to leave, or until nobody is left to tell."""
        inbox = self._inbox
        try:
            while inbox or not self._leaving:
                if not inbox:
                    self._file(self._next())
                elif self._admitted():
                    self._run(inbox.popleft())
                    if self._once:
                        break
        except Closed:
            self._leaving = True
        if self.fork_server is not None:
            # What was heard in part only, nobody else can read on.
            self.fork_server.last_word(self.recalls, leaves=self._leaving or bool(inbox) or self._channel.torn)

    def _next(self) -> list[ToRunner]:
        """What the dispatcher says next. When it said that a job follows, the runner looks for it without sleeping."""
        while time.monotonic() < self._awake_until:
            if messages := self._channel.receive(wait=False):
                return messages
            os.sched_yield()
        return self._channel.receive(wait=True)

    def _admitted(self) -> bool:
        """Take the ticket of the inbox's head; False when it was taken back, and the inbox is as that left it."""
        recalls = take_ticket(self._tickets)
        if recalls is None:
            self._file(self._channel.receive(wait=True))
            return False
        # The ticket may have overtaken recalls: then the head may be one of the recalled.
        while early(recalls, self.recalls) or not self._inbox:
            self._file(self._channel.receive(wait=True))
        return True

    def _run(self, claim: Claim) -> None:
        began = time.monotonic_ns()
        if claim.token in self._pending:
            self.gate.missed = True
        job_reporter, profiler = JobReporter(self.reporter), self.reporter.profiler
        watched = profiler is not None and profiler.begin(claim.task)
        ended = self._perform(self.runner_context, self.gate, claim, job_reporter)
        if watched and profiler is not None:
            profiler.end()
        self.reporter.done(job_reporter, claim, ended, began)

    def _file(self, messages: list[ToRunner], current: CurrentJob | None = None) -> StopReason:
        """Sort what arrived; returns why to raise in the code of ``current``."""
        reason: StopReason = ""
        for message in messages:
            if isinstance(message, Run):
                self._inbox.extend(message.claims)
            elif isinstance(message, Recall):
                self.recalls += 1
                for _ in range(message.count):
                    self._pending.pop(self._inbox.pop().token, None)
            elif isinstance(message, Stop):
                reason = self._stop(message, current) or reason
            elif isinstance(message, WakeHint):
                self._awake_until = time.monotonic() + AWAKE
            else:
                self._leaving = True
        return reason

    def _stop(self, stop: Stop, current: CurrentJob | None) -> StopReason:
        """Why to raise in the code of ``current``; a stop of another start that is here waits for that."""
        if current is not None and stop.token == current.token:
            return _raised(current, stop.reason)
        # A limit is one of code that runs.
        if stop.reason != "soft" and any(claim.token == stop.token for claim in self._inbox):
            keep_stop(self._pending, stop.token, stop.reason)
        return ""

    def _look(self, job: CurrentJob) -> StopReason:
        """Why to raise in this start; reads without waiting. Called amid user code, so a dead dispatcher waits."""
        try:
            if reason := _raised(job, self._pending.pop(job.token, "")):
                return reason
            return self._file(self._channel.receive(wait=False), job)
        except Closed:
            return ""
        except BaseException:  # noqa: BLE001 - it would be raised in the job's code, as if that had failed
            end_faulty()


def _raised(job: CurrentJob, reason: StopReason) -> StopReason:
    """The reason, if it raises: of a shutdown that begins the job is only told."""
    if reason != "shutdown":
        return reason
    job.begin_stop(reason)
    return ""
