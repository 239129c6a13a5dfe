"""What a runner says: notes of running jobs and their ends, each a whole frame, in order.

Owns the sending side of the channel and its lock. Progress is thinned out, since only its newest word counts; log lines
are sent at once, since they are the evidence if the next line of the job crashes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from headrace.model.ended import Ended, Succeeded
from headrace.model.job import Claim
from headrace.protocol.consume import Note
from headrace.worker.channel import Channel, Closed
from headrace.worker.forking import standard_streams
from headrace.worker.messages import Done, JobProgress, ToRunner
from headrace.worker.preload.startup_profiler import StartupProfiler
from headrace.worker.runner.error_report import clean
from headrace.worker.runner.interrupts import MainGate

# Seconds between two words of progress in the long run, and how many may follow each other closely before that: the
# first few words of a job (its phases, often) must not wait for the next one, which may come much later.
PACE = 0.05
BURST = 5.0
# The ends of jobs that took less than so many nanoseconds are kept for as long, up to so many bytes, while other jobs
# follow at once: they travel together. They are sent before a job begins whose task was not as quick the last time: it
# may hold the interpreter's lock or the event loop for long, or end the process.
KEEP, MOST_KEPT = 1_000_000, 1 << 14
# The store keeps so many lines of a job's log, so more of one call need not travel.
LINES = 1000


class Reporter:
    """The sending side of a runner's channel.

    Attributes:
        profiler: what this runner found of set-up that others repeat; None where nobody asked for it.
    """

    def __init__(
        self,
        channel: Channel[ToRunner],
        gate: MainGate | None,
        *,
        measure_memory: bool,
        following: Callable[[], int] | None = None,
    ) -> None:
        """Make one.

        Args:
            gate: keeps stops out of the thread that sends.
            following: how many jobs begin as soon as those that run end. While there are any, ends may be kept, and the
                runner calls :meth:`flush` soon.
        """
        self.profiler: StartupProfiler | None = None
        self._channel = channel
        self._gate = gate
        self._memory: Callable[[], int] = peak_memory if measure_memory else int
        # One that a thread may take again: a signal's handler or a finalizer may speak amid a word of its own thread.
        # What it says follows that word, since half a frame would ruin the channel.
        self._lock = threading.RLock()
        self._amid = False
        self._words: deque[tuple[JobReporter, Note]] = deque()
        self._following = following
        # When the first of the ends that are kept was.
        self._since = 0
        # Tasks whose last job here was so quick that its end may have been kept.
        self._quick: set[str] = set()

    def begin(self, claim: Claim) -> int:
        """Send what is kept before a start begins, unless that will most likely end at once.

        Returns:
            when it begins, nanoseconds of the monotonic clock.
        """
        if self._channel.full and claim.task not in self._quick:
            # Who reads the channel learns that the dispatcher is gone.
            with contextlib.suppress(Closed):
                self.flush()
        return time.monotonic_ns()

    def done(self, job_reporter: JobReporter, claim: Claim, ended: Ended, began: int) -> None:
        """Send a start's end, after all that it said.

        Args:
            began: nanoseconds of the monotonic clock.

        Raises:
            Closed: nobody reads any more.
        """
        if self._channel.closed:
            # A job forked this process, which must neither speak nor go on as a runner.
            _leave_stray(ended)
        job_reporter.over = True
        with self._lock:
            self._amid = True
            try:
                self._send_end(job_reporter, claim, ended, began)
            finally:
                self._amid = False

    def _send_end(self, job_reporter: JobReporter, claim: Claim, ended: Ended, began: int) -> None:
        token = claim.token
        if self.profiler is not None and self.profiler.noted:
            self._channel.send(self.profiler.found(token))
        if job_reporter.waiting:
            job_reporter.waiting = False
            self._channel.send(JobProgress(token, job_reporter.share, job_reporter.text, ()))
        now = time.monotonic_ns()
        # What did not succeed has a line in the log, which tells it: the others need not pay for it.
        memory = self._memory() or (0 if isinstance(ended, Succeeded) else peak_memory())
        done = Done(token, ended, (now - began) // 1000, memory)
        if self._following is not None and self._is_quick(claim.task, now - began) and self._following():
            self._keep(done, now)
        else:
            self._channel.send(done)

    def _is_quick(self, task: str, took: int) -> bool:
        if took < KEEP:
            self._quick.add(task)
            return True
        self._quick.discard(task)
        return False

    def _keep(self, done: Done, now: int) -> None:
        if not self._channel.full:
            self._since = now
        if self._channel.keep(done) > MOST_KEPT or now - self._since > KEEP:
            self._channel.flush(wait=True)

    def flush(self, *, wait: bool = True) -> bool:
        """Send what is kept; whether something is, or may be, still to be sent.

        Args:
            wait: False: not for another thread that speaks, nor for room; then call it again soon.

        Raises:
            Closed: nobody reads any more.
        """
        if not self._lock.acquire(blocking=wait):
            return True
        try:
            self._amid = True
            sent = self._channel.flush(wait=wait)
            return not sent or (self._following is not None and self._following() > 0)
        finally:
            self._amid = False
            self._lock.release()

    def say(self, job_reporter: JobReporter, note: Note) -> None:
        """Send a note, or keep its progress for a later one. A dead dispatcher is no error of the job that speaks."""
        if self._channel.closed or job_reporter.over:
            return
        # Before the lock is taken: a job that logs without end would else hold it while it waits, and take it again
        # before another thread runs.
        self._channel.wait_for_room()
        held = self._gate.hold() if self._gate else None
        try:
            with self._lock:
                self._words.append((job_reporter, note))
                if not self._amid:
                    self._speak()
        except Closed:
            pass
        finally:
            if self._gate:
                self._gate.resume(held)

    def _speak(self) -> None:
        self._amid = True
        try:
            while self._words:
                job_reporter, note = self._words.popleft()
                # It may have ended while this waited for its turn, and a process that leaves would tear the frame.
                said = None if job_reporter.over else job_reporter.take(note, time.monotonic())
                if said is not None:
                    self._channel.send(said)
        finally:
            self._amid = False


class JobReporter:
    """What one start says: its ``emit``. Class attributes hold the defaults, since most jobs say nothing.

    Attributes:
        over: the start has ended; what its leftover threads say is dropped.
        waiting: ``share`` and ``text`` are newer than what was sent.
    """

    over = False
    waiting = False
    share: float | None = None
    text = ""
    _left = BURST
    _last = 0.0

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def __call__(self, note: Note) -> None:
        self._reporter.say(self, note)

    def take(self, note: Note, now: float) -> JobProgress | None:
        """What to send now; None: it waits for the next word or the end."""
        if note.progress is not None:
            self.share, self.text, self.waiting = note.progress, clean(note.text), True
        self._left = min(BURST, self._left + (now - self._last) / PACE)
        self._last = now
        if not (note.lines or note.swallowed or note.spent) and self._left < 1:
            return None
        self._left = max(0.0, self._left - 1)
        share, self.waiting = (self.share if self.waiting else None), False
        text, lines = self.text if share is not None else "", tuple(map(clean, note.lines[-LINES:]))
        return JobProgress(note.token, share, text, lines, note.swallowed, note.spent)


def peak_memory() -> int:
    """The most resident memory that this process ever had, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _leave_stray(ended: Ended) -> None:
    """End a process that a job forked and that returned from the job: two runners on one channel would ruin both."""
    standard_streams.flush()
    os._exit(0 if isinstance(ended, Succeeded) else 1)
