"""The thread kind: ``slots`` threads run user code, the main thread reads the channel.

Python can raise an exception in another thread at its next step of Python code. A call that waits, or C code that holds
the interpreter, is not interrupted; the dispatcher kills then. The threads share one inbox and one pipe of tickets (see
channel.py): a free thread takes a ticket, and with it the oldest job. Between two tiny jobs no thread gives up the
interpreter's lock, which another would take for 5 ms: a ticket is read without letting go of it, and ends are sent
together. Tiny jobs wake one thread only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import select
import socket
import threading
import time
from collections import deque

from headrace.context import CurrentJob, StopReason
from headrace.model.job import Claim
from headrace.worker.channel import SIZE, Closed, early, number
from headrace.worker.child_process import NoRoom, end_faulty
from headrace.worker.messages import Exit, Recall, Run, Stop, ToRunner
from headrace.worker.runner.execute import Perform
from headrace.worker.runner.interrupts import SIGNALS, keep_stop
from headrace.worker.runner.reporting import JobReporter, Reporter
from headrace.worker.runner.runner_context import RunnerContext, RunnerOptions

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
# A function of ``PyDLL`` keeps the interpreter's lock. Only for a descriptor that never blocks.
_read = ctypes.PyDLL(None, use_errno=True).read
_read.argtypes, _read.restype = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_ssize_t
# Milliseconds after which the main thread sends the ends that threads keep, while jobs wait in the inbox.
SENDS = 1


def take_ticket(descriptor: int, into: ctypes.Array[ctypes.c_char]) -> int | None:
    """As ``channel.take_ticket``, without letting go of the interpreter's lock; None, too, where there will be none."""
    count = _read(descriptor, into, SIZE)
    if count < 0 and (code := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
        raise OSError(code, "a ticket cannot be read")
    return number(into.raw) if count == SIZE else None


class _TakenBack(BaseException):
    """Replaces a stop that was raised in a thread and must not reach it any more."""


class ThreadGate:
    """The gate of one thread (see :class:`headrace.worker.runner.interrupts.Gate`).

    The main thread aims, looks who runs, and shoots; the thread closes, and then waits while the other aims. Each
    writes its own flag before it reads the other's, so either the shot is not fired or the thread knows of it and takes
    it back. No lock: a shot may land between any two steps of the thread, those of taking and giving one included.

    Attributes:
        job: whose code the thread runs; written by the thread.
    """

    def __init__(self, pending: dict[int, StopReason]) -> None:
        """``pending``: stops that no start has heard of yet, by number; shared with the main thread."""
        self.job: CurrentJob | None = None
        self._pending = pending
        self._thread = 0
        self._aiming = False
        self._shot = False

    def attach(self) -> None:
        self._thread = threading.get_ident()

    def open(self, job: CurrentJob) -> None:
        self.job = job
        if self._pending and (reason := self._pending.pop(job.number, "")):
            job.begin_stop(reason)
            if reason != "shutdown":
                self.job = None
                raise SIGNALS[reason]

    def close(self) -> None:
        self.job = None
        while self._aiming:
            time.sleep(0)
        if self._shot:
            self._take_back()
            self._shot = False

    def _take_back(self) -> None:
        """Have nothing on its way to this thread: not delivered yet, or delivered long ago. A second exception replaces
        the first, and is caught here. To set None instead would leave Python 3.11 with a note of a pending exception
        that nothing ever clears, and the next traced or profiled call in any thread of the process would loop for ever.
        """
        try:
            _set_exception(ctypes.c_ulong(self._thread), ctypes.py_object(_TakenBack))
            while True:
                time.sleep(0)
        except _TakenBack:
            return

    def stop(self, number: int, reason: StopReason) -> None:
        self._aiming = True
        job = self.job
        if job is not None and job.number == number and not (self._shot and reason != "shutdown"):
            # What open() has found meanwhile is not raised twice.
            told = reason == "soft" or self._pending.pop(number, "")
            if told:
                job.begin_stop(reason)
            if told and reason != "shutdown":
                self._shot = True
                _set_exception(ctypes.c_ulong(self._thread), ctypes.py_object(SIGNALS[reason]))
        self._aiming = False


class Threads:
    """One process that runs ``slots`` jobs at once, each in its thread."""

    def __init__(self, runner_context: RunnerContext, options: RunnerOptions, perform: Perform) -> None:
        # Jobs that were sent and have not begun, oldest first. Only the main thread adds to it, and takes from its end.
        self._inbox: deque[Claim] = deque()
        self._channel, self._tickets = options.channel, options.tickets
        self.reporter = Reporter(
            self._channel, None, measure_memory=options.measure_memory, following=self._inbox.__len__
        )
        self._runner_context = runner_context
        self._perform = perform
        self._ticket = ctypes.create_string_buffer(SIZE)
        # Guards the inbox, and all that says whether a job of it may begin; threads without a job wait for it.
        self._filed = threading.Condition()
        # How many recalls were heard, and how many threads have a ticket and wait for its recalls, or for its job.
        self._recalls = 0
        self._early = 0
        # Tokens of what was received and has not ended, and the stops that these have not heard of.
        self._held: set[int] = set()
        self._pending: dict[int, StopReason] = {}
        self._leaving = False
        self._over = False
        self._closed = False
        self._gates = [ThreadGate(self._pending) for _ in range(options.slots)]

    def serve(self) -> None:
        """Run jobs until told to leave, or the dispatcher is gone. Raises NoRoom: no thread has begun a job."""
        threads = [
            threading.Thread(target=self._work, args=(gate,), name=f"slot-{number}", daemon=True)
            for number, gate in enumerate(self._gates)
        ]
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:
            advice = "raise the limits of processes and of memory, or lower --threads"
            raise NoRoom(f"no room for {len(threads)} threads ({error}; {advice})") from None
        waits = select.poll()
        waits.register(self._channel, select.POLLIN)
        try:
            while self._held or not self._leaving:
                # This thread hears the dispatcher, so it must not wait for threads that speak.
                more = self.reporter.flush(wait=False)
                if more:
                    held = len(self._held)
                    if not waits.poll(SENDS) and self._inbox and len(self._held) == held:
                        # Nothing ended meanwhile, so the threads that are awake wait for something.
                        with self._filed:
                            self._filed.notify()
                self._file(self._channel.receive(wait=not more))
        except Closed:
            self._closed = True
        with self._filed:
            self._over = True
            self._filed.notify_all()
        for thread in threads:
            thread.join()
        # Ends that were kept for jobs which were taken back.
        with contextlib.suppress(Closed):
            self.reporter.flush()

    def _file(self, messages: list[ToRunner]) -> None:
        for message in messages:
            if isinstance(message, Run):
                with self._filed:
                    self._held.update([claim.number for claim in message.claims])
                    self._inbox.extend(message.claims)
                    # Tiny jobs together need one thread, since threads contend for the interpreter. One of these that
                    # blocks anyway keeps others waiting until `serve` wakes the next thread.
                    longer = sum([not self.reporter.is_tiny(claim.task) for claim in message.claims])
                    self._wake(min(longer + 1, len(message.claims)))
            elif isinstance(message, Recall):
                with self._filed:
                    self._recalls += 1
                    for _ in range(message.count):
                        self._forget(self._inbox.pop())
                    self._wake(0)
            elif isinstance(message, Stop):
                self._stop(message)
            elif isinstance(message, Exit):
                self._leaving = True

    def _wake(self, count: int) -> None:
        if self._early:
            self._filed.notify_all()
        else:
            self._filed.notify(count)

    def _forget(self, claim: Claim) -> None:
        self._held.discard(claim.number)
        self._pending.pop(claim.number, None)

    def _stop(self, stop: Stop) -> None:
        # Written down first, so that a start which begins while the gates are looked at finds it itself.
        if stop.reason != "soft" and stop.number in self._held:
            keep_stop(self._pending, stop.number, stop.reason)
        for gate in self._gates:
            gate.stop(stop.number, stop.reason)
        if stop.number not in self._held:
            self._pending.pop(stop.number, None)

    def _work(self, gate: ThreadGate) -> None:
        gate.attach()
        try:
            while (claim := self._await_claim()) is not None:
                self._run(gate, claim)
        except BaseException:  # noqa: BLE001 - a fault of ours: a slot that died silently would swallow jobs for ever
            end_faulty()

    def _await_claim(self) -> Claim | None:
        ticket: int | None = None
        with self._filed:
            while not (self._over or self._closed):
                if self._inbox:
                    if ticket is None:
                        ticket = take_ticket(self._tickets, self._ticket)
                    if ticket is not None and not early(ticket, self._recalls):
                        return self._inbox.popleft()
                drawn = ticket is not None
                self._early += drawn
                self._filed.wait()
                self._early -= drawn
        return None

    def _run(self, gate: ThreadGate, claim: Claim) -> None:
        began = self.reporter.begin(claim)
        job_reporter = JobReporter(self.reporter, claim.number)
        ended = self._perform(self._runner_context, gate, claim, job_reporter)
        try:
            self.reporter.done(job_reporter, claim, ended, began)
        except Closed:
            self._closed = True
        self._forget(claim)
        if self._leaving and not self._held:
            # The main thread waits for messages, and none will come: end its waiting.
            with contextlib.suppress(OSError):
                self._channel.sock.shutdown(socket.SHUT_RD)
