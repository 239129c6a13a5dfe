"""The process kind and the fork kind: a main thread runs user code, one job at a time, in the order of the inbox.

A ticket decides whether the head of the inbox may start (see ``channel.py``). A fork server is a warm process that runs
no job, but forks a child for each, ahead of its job: a process runner for one job. It owns the channel and the process
group, which outlast a job, passes on signals to the child, reports its fall, and leaves when a child fell or was asked
to leave, or a job left a process running. After a fork each page that either writes to is copied, which is most of the
cost of a job here: so the fork server has one thread, runs no code of the application but the hooks around a fork, and
makes before what children need. See docs/design/runners.md.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from types import FrameType

from headrace.app import Headrace
from headrace.context import CurrentJob, StopReason
from headrace.model.job import Claim
from headrace.model.options import FORKING
from headrace.tasks.app_context import of_kind
from headrace.worker.channel import WHOLE, Closed, early, take_ticket
from headrace.worker.child_process import NoRoom, adopt_orphans, die_with, end_faulty
from headrace.worker.messages import ChildCrashed, Exit, Recall, Run, Stop, ToRunner, WakeHint
from headrace.worker.runner.execute import Perform
from headrace.worker.runner.interrupts import MainGate, keep_stop
from headrace.worker.runner.reporting import JobReporter, Reporter
from headrace.worker.runner.runner_context import RunnerContext, RunnerOptions
from headrace.worker.warmup import quiet_handlers, run_around_fork, store_is_loaded, write_out

# A fork server's first children are profiled, then one in this many.
FIRST = 4
EACH = 64
# A child's last word: that it said one, whether the fork server is to leave, if it used the store, recalls heard.
_WORD = struct.Struct("=B??Q")
_SAID = 1


def lasts(app: Headrace) -> bool:
    """Whether fork servers outlast their jobs; else each child comes from the supervisor, which costs more. They need a
    kernel that gives us the orphans of jobs. With exit hooks or lifespans the next job would wait for their end.
    """
    return sys.platform == "linux" and not app.exit_hooks and not of_kind(app.context.lifespans, "fork")


def small(app: Headrace) -> bool:
    """Whether each job is a fork of an image without the driver of the store, which costs as much as all else. Where
    runners of other kinds are forked, too, they share what the supervisor has imported.
    """
    forks = lasts(app) and all(task.kind == "fork" for task in app.tasks.values())
    return forks and "redis" not in sys.modules


class ForkServer:
    """Forks children, one after the other, until one says that it is time to leave, or falls.

    Attributes:
        count: of the children so far; ``recalls``: how many they have heard.
        profiled: whether a child is to note what is done again in it.
        handlers: those of logging, if none has anything to write when a child ends; else None.
    """

    def __init__(
        self,
        app: Headrace,
        options: RunnerOptions,
        gate: MainGate,
        write_others: Callable[[int, FrameType | None], None],
    ) -> None:
        # ``write_others``: writes the stacks of a child's other threads.
        self.recalls = 0
        self.profiled = False
        self.handlers = quiet_handlers()
        self._app = app
        self._channel = options.channel
        self._store_use = options.store_use
        self._gate = gate
        self._write_others = write_others
        self._profiles = options.profiled
        self._supervisor, self._pid = os.getppid(), os.getpid()
        self._child = 0
        self.count = 0
        # Shared with the children: what they leave here is how they say that they fell over nothing.
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def run(self) -> bool:
        """Fork: True in each child; False in the fork server, when it is time to leave. Raises NoRoom."""
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGUSR2, self._ask_stacks)
        adopt_orphans()
        die_with(self._supervisor, signal.SIGUSR1)
        while self._fork():
            if not self._goes_on():
                return False
        return True

    def last_word(self, recalls: int, *, leaves: bool) -> None:
        """In the child, when its job has ended, or it was told to leave: it has not fallen, whatever comes now."""
        self._page[: _WORD.size] = _WORD.pack(_SAID, leaves, store_is_loaded(), recalls)

    def _fork(self) -> bool:
        self.profiled = self._profiles and (self.count < FIRST or self.count % EACH == 0)
        self._page[0] = 0
        self.count += 1
        if self._app.before_fork_hooks or self._app.after_fork_parent_hooks:
            run_around_fork(list(reversed(self._app.before_fork_hooks)))
            write_out()
        try:
            self._child = os.fork()
        except OSError as error:
            raise NoRoom(f"no room for the process of a job ({error.strerror})") from None
        if not self._child:
            return False
        if self._gate.missed:
            # It came while there was no child to pass it on to.
            self._gate.missed = False
            self._on_signal(signal.SIGUSR1, None)
        run_around_fork(self._app.after_fork_parent_hooks)
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._child:
            self._gate.on_signal(number, frame)
        elif os.getppid() == self._supervisor:
            os.kill(self._child, signal.SIGUSR1)
        else:
            # A job may have made itself the leader of a group of its own.
            os.kill(self._child, signal.SIGKILL)
            os.killpg(0, signal.SIGKILL)

    def _ask_stacks(self, number: int, frame: FrameType | None) -> None:
        if self._child:
            os.kill(self._child, number)
        elif os.getpid() != self._pid:
            self._write_others(number, frame)

    def _goes_on(self) -> bool:
        """Wait for the child's end: is another one to follow?"""
        child = self._child
        # Its number is its own until it is reaped, and it is not signalled after this.
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        self._child = 0
        said, leaves, used_store, self.recalls = _WORD.unpack(self._page[: _WORD.size])
        if said != _SAID:
            _, status, usage = os.wait4(child, 0)
            code = os.waitstatus_to_exitcode(status)
            self._send(ChildCrashed(max(0, -code), max(0, code), usage.ru_maxrss * 1024))
            return False
        os.waitpid(child, 0)
        if used_store and self._store_use is not None and not store_is_loaded():
            self._store_use.learn(self._app)
        if leaves:
            return False
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            # Something lives; it ends with our group, when the supervisor buries us.
            self._send(Exit())
            return False
        return True

    def _send(self, message: ChildCrashed | Exit) -> None:
        with contextlib.suppress(Closed):
            self._channel.send(message)


# Seconds that a runner looks for work that was announced before it sleeps again.
AWAKE = 0.001


class Process:
    """One process that runs jobs; ``recalls``: how many were heard on this channel, also by others before it."""

    def __init__(self, runner_context: RunnerContext, options: RunnerOptions, perform: Perform) -> None:
        self.gate = MainGate(self._check)
        self.reporter = Reporter(options.channel, self.gate, measure_memory=options.measure_memory)
        self.runner_context = runner_context
        self._perform = perform
        self._channel, self._tickets = options.channel, options.tickets
        # Whether it runs a single job, then leaves.
        self._once = options.kind in FORKING
        self._inbox: deque[Claim] = deque()
        # Stops that came before their start's code began, by number.
        self._pending: dict[int, StopReason] = {}
        self.recalls = 0
        self.fork_server: ForkServer | None = None
        self._leaving = False
        self._awake_until = 0.0

    def serve(self) -> None:
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
            # A message that was read in part cannot be read on elsewhere.
            self.fork_server.last_word(self.recalls, leaves=self._leaving or bool(inbox) or self._channel.torn)

    def _next(self) -> list[ToRunner]:
        """What the dispatcher says next. When it said that a job follows, the runner looks for it without sleeping."""
        while time.monotonic() < self._awake_until:
            if messages := self._channel.receive(wait=False):
                return messages
            os.sched_yield()
        return self._channel.receive(wait=True)

    def _admitted(self) -> bool:
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
        if claim.number in self._pending:
            self.gate.missed = True
        job_reporter, profiler = JobReporter(self.reporter, claim.number), self.reporter.profiler
        watched = profiler is not None and profiler.begin(claim.task)
        ended = self._perform(self.runner_context, self.gate, claim, job_reporter)
        if watched and profiler is not None:
            profiler.end()
        self.reporter.done(job_reporter, claim, ended, began)

    def _file(self, messages: list[ToRunner], current: CurrentJob | None = None) -> StopReason:
        reason: StopReason = ""
        for message in messages:
            if isinstance(message, Run):
                self._inbox.extend(message.claims)
            elif isinstance(message, Recall):
                self.recalls += 1
                for _ in range(message.count):
                    self._pending.pop(self._inbox.pop().number, None)
            elif isinstance(message, Stop):
                reason = self._stop(message, current) or reason
            elif isinstance(message, WakeHint):
                self._awake_until = time.monotonic() + AWAKE
            else:
                self._leaving = True
        return reason

    def _stop(self, stop: Stop, current: CurrentJob | None) -> StopReason:
        if current is not None and stop.number == current.number:
            return _reason_to_raise(current, stop.reason)
        # A limit is one of code that runs.
        if stop.reason != "soft" and any(claim.number == stop.number for claim in self._inbox):
            keep_stop(self._pending, stop.number, stop.reason)
        return ""

    def _check(self, job: CurrentJob) -> StopReason:
        """Why to raise in this start; reads without waiting. Called during user code, so a dead dispatcher waits."""
        try:
            if reason := _reason_to_raise(job, self._pending.pop(job.number, "")):
                return reason
            return self._file(self._channel.receive(wait=False, most=WHOLE), job)
        except Closed:
            return ""
        except BaseException:  # noqa: BLE001 - it would be raised in the job's code, as if that had failed
            end_faulty()


def _reason_to_raise(job: CurrentJob, reason: StopReason) -> StopReason:
    if reason != "shutdown":
        return reason
    job.begin_stop(reason)
    return ""
