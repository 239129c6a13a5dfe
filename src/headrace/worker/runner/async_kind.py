"""The async kind: one event loop in the main thread runs the coroutines of many jobs.

A coroutine that waits is cancelled by asyncio; one that does not let the loop turn for a while is interrupted by the
signal, like the code of a process runner (see ``interrupts.py``).
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from types import CoroutineType, FrameType
from typing import Any

from headrace.clock import monotonic
from headrace.context import CurrentJob, StopReason
from headrace.errors import Interrupt
from headrace.model.ended import Ended, Released
from headrace.model.job import Claim
from headrace.running_job import running
from headrace.worker.channel import WHOLE, Closed, early, take_ticket
from headrace.worker.child_process import end_faulty
from headrace.worker.messages import Exit, Recall, Run, Stop, ToRunner
from headrace.worker.runner import interrupts
from headrace.worker.runner.execute import Aperform
from headrace.worker.runner.interrupts import MainGate, keep_stop
from headrace.worker.runner.reporting import JobReporter, Reporter, where
from headrace.worker.runner.runner_context import RunnerContext, RunnerOptions
from headrace.worker.standard_streams import log

# What asyncio and libraries do for a cancelled coroutine (stop the others of a group, give a connection back) must be
# done for a stopped one too, and they know it by its class.
SIGNALS: dict[str, type[Interrupt]] = {
    reason: type(signal.__name__, (signal, asyncio.CancelledError), {"__module__": signal.__module__})
    for reason, signal in interrupts.SIGNALS.items()
}


class Drive(Generator[Any, Any, Any]):
    """Awaits the coroutine of one job, with the gate open for each of its steps. It turns the cancellation by which a
    stop wakes the coroutine into the stop's own signal.
    """

    task: asyncio.Task[Any]

    def __init__(self, gate: MainGate, blockers: set[str]) -> None:
        self._gate = gate
        self._blockers = blockers
        # What is to be raised at the next step; and whether a shutdown began before the job did.
        self._reason: StopReason = ""
        self._warned = False
        self._job: CurrentJob | None = None
        self._asked = False

    def __call__(self, job: CurrentJob, coroutine: Coroutine[Any, Any, Any]) -> Drive:
        self._job = job
        self._coroutine: Any = coroutine
        if self._warned:
            job.begin_stop("shutdown")
        return self

    def __await__(self) -> Drive:
        return self

    def stop(self, reason: StopReason) -> None:
        """Raise in the coroutine at its next step, and see to it that this comes soon; of a shutdown only tell it."""
        if reason == "shutdown":
            self._warned = True
            if self._job is not None:
                self._job.begin_stop(reason)
        elif self._job is None:
            # A limit is meant for code that runs.
            if reason != "soft":
                self._reason = reason
        elif not self._reason and not notified(self._job, reason):
            self._reason = reason
            self._asked = self.task.cancel()

    def __next__(self) -> Any:
        # That of the class above would be the first line of each traceback of a job.
        return self.send(None)

    def send(self, value: Any) -> Any:
        if not self._reason:
            return self._step(self._coroutine.send, value)
        # Not begun yet; or what it waited for swallowed the cancellation.
        return self._interrupt()

    def throw(self, kind: Any, value: Any = None, trace: Any = None) -> Any:  # noqa: ARG002 - the form of a generator
        error = kind if isinstance(kind, BaseException) else value if value is not None else kind()
        if self._reason and isinstance(error, asyncio.CancelledError):
            return self._interrupt()
        return self._step(self._coroutine.throw, error)

    def close(self) -> None:
        self._coroutine.close()

    def _interrupt(self) -> Any:
        reason, self._reason = self._reason, ""
        assert self._job is not None
        if self._asked:
            # The cancellation ends here: time-outs and groups that the coroutine opens to clean up must not see it.
            self._asked = False
            self.task.uncancel()
        self._job.begin_stop(reason)
        return self._step(self._coroutine.throw, SIGNALS[reason]())

    def _step(self, step: Callable[[Any], Any], value: Any) -> Any:
        assert self._job is not None
        began = monotonic()
        try:
            try:
                self._gate.open(self._job)
                return step(value)
            finally:
                self._gate.close()
                if (taken := monotonic() - began) > LONG:
                    self._warn(self._job, taken)
        except Interrupt as signal:
            self._gate.close()
            if self._coroutine.cr_frame is None:
                raise
            # It came before or after the coroutine's own code, which waits and must learn of it.
            late = signal
        return self._step(self._coroutine.throw, late)

    def _warn(self, job: CurrentJob, taken: float) -> None:
        if job.task in self._blockers:
            return
        self._blockers.add(job.task)
        line = where(_paused(self._coroutine))
        # A handler or filter of the application may raise.
        with contextlib.suppress(Exception), running(job):
            log.warning(
                "job %s of %s blocked the event loop for %.1f s; the blocking call is before %s. No other job of this "
                "runner ran meanwhile: await, use asyncio.to_thread, or make the task an ordinary function",
                job.id, job.task, taken, f"{line}, where the job paused next" if line else "the end of the job",
                code="job.blocks_loop",
            )  # fmt: skip


def _paused(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    # Not any object that has the attributes: an awaitable of the application may answer to every name.
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        yield coroutine.cr_frame, coroutine.cr_frame.f_lineno
        coroutine = coroutine.cr_await


def notified(job: CurrentJob, reason: StopReason) -> bool:
    """Whether this is a limit that the job heard of: the dispatcher repeats it, and the code may be cleaning up."""
    return reason == "soft" and job.stopped_by not in ("", "shutdown")


# Seconds that a stopped job may keep the loop from turning before it is interrupted where it is. Not at once: it may be
# during a step of asyncio's own, which is not made to be interrupted, and most jobs wait soon.
PATIENCE = 0.05
# Seconds that one step of a job may take before a warning names its task.
LONG = 1.0


class Loop:
    def __init__(
        self, runner_context: RunnerContext, options: RunnerOptions, aperform: Aperform, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.gate = MainGate(self._check, SIGNALS)
        self._channel, self._tickets, self._slots = options.channel, options.tickets, options.slots
        self.reporter = Reporter(
            self._channel, self.gate, measure_memory=options.measure_memory,
            following=lambda: self._unbegun + len(self._inbox),
        )  # fmt: skip
        self._runner_context, self._aperform, self._loop = runner_context, aperform, loop
        # Jobs that were sent and have not begun, oldest first, and stops of these by number.
        self._inbox: deque[Claim] = deque()
        self._pending: dict[int, StopReason] = {}
        # How many recalls were heard, and the ticket with which the next job begins, if that has been drawn.
        self._recalls = 0
        self._ticket: int | None = None
        self._drives: dict[int, Drive] = {}
        self._blockers: set[str] = set()
        # Tasks whose first step is to come; and whether ends that are kept will be sent at the next turn of the loop.
        self._unbegun = 0
        self._sends = False
        # Messages that a signal's look read while a job kept the loop from turning.
        self._stash: deque[ToRunner] = deque()
        # The stop that a look found, and when the job that it names counts as blocking the loop.
        self._suspected: Stop | None = None
        self._blocked_at = 0.0
        self._leaving = False
        self._gone = False

    def serve(self) -> None:
        """Run jobs until told to leave, or until the dispatcher is gone; then let those that run end."""
        self._loop.add_reader(self._channel.fileno(), self._arrived)
        while self._drives or self._inbox or not self._leaving:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # A task that a job left behind called sys.exit(): no reason to take the mates down.
                traceback.print_exc()
        # A dispatcher that goes before us would be heard while `finish` runs the loop, and stop it.
        self._leave()
        # Ends that were kept for jobs which were taken back.
        with contextlib.suppress(Closed):
            self.reporter.flush()

    def finish(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True) if tasks else asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _arrived(self) -> None:
        try:
            self._stash.extend(self._channel.receive(wait=False))
        except Closed:
            self._leave()
        except BaseException:  # noqa: BLE001 - asyncio would only log it, and the jobs would run for ever
            end_faulty()
        self._file()

    def _file(self) -> None:
        try:
            self._file_all()
            self._start_all()
        except Closed:
            self._leave()
        except BaseException:  # noqa: BLE001 - as above
            end_faulty()
        if self._leaving and not self._drives and not self._inbox:
            self._loop.stop()

    def _file_all(self) -> None:
        while self._stash:
            message = self._stash.popleft()
            if isinstance(message, Run):
                self._inbox.extend(message.claims)
            elif isinstance(message, Recall):
                self._recalls += 1
                for _ in range(message.count):
                    self._pending.pop(self._inbox.pop().number, None)
            elif isinstance(message, Stop):
                self._stop(message)
            elif isinstance(message, Exit):
                self._leaving = True

    def _stop(self, stop: Stop) -> None:
        if stop.number in self._drives:
            self._drives[stop.number].stop(stop.reason)
        elif stop.reason != "soft" and any(claim.number == stop.number for claim in self._inbox):
            keep_stop(self._pending, stop.number, stop.reason)

    def _leave(self) -> None:
        self._leaving = self._gone = True
        self._loop.remove_reader(self._channel.fileno())

    def _start_all(self) -> None:
        """Start what may begin: a ticket for each. Raises Closed: the other end gives no more tickets."""
        if self._gone:
            self._inbox.clear()
        while self._inbox and len(self._drives) < self._slots:
            if self._ticket is None:
                self._ticket = take_ticket(self._tickets)
            if self._ticket is None or early(self._ticket, self._recalls):
                return
            self._ticket = None
            self._start(self._inbox.popleft())

    def _start(self, claim: Claim) -> None:
        drive = self._drives[claim.number] = Drive(self.gate, self._blockers)
        if self._pending and (reason := self._pending.pop(claim.number, "")):
            drive.stop(reason)
        self._unbegun += 1
        drive.task = self._loop.create_task(self._run(claim, drive), name=f"{claim.task} {claim.id}")
        drive.task.add_done_callback(partial(self._ended, claim))

    async def _run(self, claim: Claim, drive: Drive) -> None:
        self._unbegun -= 1
        began = self.reporter.begin(claim)
        job_reporter = JobReporter(self.reporter, claim.number)
        ended = await self._aperform(self._runner_context, drive, claim, job_reporter)
        self._report(job_reporter, claim, ended, began)

    def _report(self, job_reporter: JobReporter, claim: Claim, ended: Ended, began: int) -> None:
        self.reporter.done(job_reporter, claim, ended, began)
        if self._channel.full and not self._sends:
            self._sends = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sends = False
        try:
            self.reporter.flush()
        except Closed:
            self._leave()
            self._file()

    def _ended(self, claim: Claim, task: asyncio.Task[None]) -> None:
        try:
            del self._drives[claim.number]
            if task.cancelled():
                self._unbegun -= 1
                # A mate cancelled every task of the loop before this one had begun: it goes back to its queue.
                self._report(JobReporter(self.reporter, claim.number), claim, Released(), time.monotonic_ns())
            else:
                task.result()
        except Closed:
            self._leave()
        except BaseException:  # noqa: BLE001 - as above
            end_faulty()
        self._file()

    def _check(self, job: CurrentJob) -> StopReason:
        try:
            # Ends of mates do not wait for this one.
            self.reporter.flush()
            self._stash.extend(self._channel.receive(wait=False, most=WHOLE))
        except Closed:
            pass
        except BaseException:  # noqa: BLE001 - it would be raised in the job's code, as if that had failed
            end_faulty()
        if self._stash:
            self._loop.call_soon_threadsafe(self._file)
        stop = self._stop_of(job)
        if stop is not None and stop.reason == "shutdown":
            job.begin_stop(stop.reason)
            self._stash.remove(stop)
            stop = self._stop_of(job)
        if stop is None:
            return ""
        now = time.monotonic()
        if stop is not self._suspected:
            self._suspected, self._blocked_at = stop, now + PATIENCE
            # Not threading.Thread: this may have interrupted the start of another one, which holds a lock.
            try:
                _thread.start_new_thread(_check_again, ())
            except RuntimeError:
                # The system has no room for it, and the job's code is not to hear of that.
                self._blocked_at = now
        if now >= self._blocked_at:
            self._stash.remove(stop)
            return stop.reason
        return ""

    def _stop_of(self, job: CurrentJob) -> Stop | None:
        stops = (message for message in self._stash if isinstance(message, Stop) and message.number == job.number)
        return next((stop for stop in stops if not notified(job, stop.reason)), None)


def _check_again() -> None:
    time.sleep(PATIENCE)
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGUSR1)
