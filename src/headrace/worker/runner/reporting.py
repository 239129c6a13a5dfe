"""The reports of a runner: notes of running jobs and their ends, each a whole frame, in order.

Texts of exceptions keep no exception, frame or traceback, which would hold the job's memory (see
docs/design/runners.md). Progress is thinned out, since only its newest word counts; log lines are sent at once, since
they are the evidence if the next line of the job crashes.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from headrace.errors import CancelRequested, Interrupt, JobInterrupted, SoftTimeLimit
from headrace.model.ended import Ended, Succeeded
from headrace.model.job import MESSAGE_CAP, TRACEBACK_CAP, Claim, JobError, error_json
from headrace.model.retry import group_members
from headrace.protocol.consume import Note
from headrace.worker import standard_streams
from headrace.worker.channel import Channel, Closed
from headrace.worker.messages import Done, JobProgress, ToRunner
from headrace.worker.runner.interrupts import MainGate
from headrace.worker.startup_profiler import StartupProfiler

# Frames of the worker are not at fault: the reader looks for the job's own lines.
_OURS = str(Path(__file__).parents[1])
_PACKAGE = str(Path(__file__).parents[2])
_LIBRARY = str(Path(os.__file__).parent)
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
# Characters of a file's path, from its end.
_PATH = 120
# A runaway recursion has thousands of frames, and only the last ones fit into the cap.
_FRAMES = 100
_UNSAID: dict[type[Interrupt], str] = {
    SoftTimeLimit: "the job exceeded its soft time limit; raise timeout=, or do less in one job",
    CancelRequested: "the job was cancelled while it ran",
    JobInterrupted: "the worker stopped or reloaded, and its shutdown timeout was nearly over",
}


def evidence(
    error: BaseException,
    attempt: int,
    worker: str,
    kind: type[BaseException] | None = None,
    hide: Callable[[str], str] = str,
) -> bytes:
    """JSON of a :class:`headrace.model.job.JobError` of any exception, however broken; never raises. ``kind``: the
    signal that a group of exceptions carries. ``hide``: takes the values of secret arguments out of a text.
    """
    try:
        named = kind or type(error)
        lines = clean(hide(_traceback(error)))[-TRACEBACK_CAP:]
        place = clean(where(traceback.walk_tb(error.__traceback__)))
        text = clean(hide(_message(error, named)))[:MESSAGE_CAP]
        found = JobError(
            type=clean(_name(named)), message=text, traceback=lines, attempt=attempt, worker=worker, where=place
        )
    except BaseException:  # noqa: BLE001 - a class whose very name raises must not take the outcome with it
        found = JobError(type="Exception", message="an exception that cannot be shown", attempt=attempt, worker=worker)
    return error_json(found)


def plain(error: Exception, attempt: int, worker: str, kind: str = "") -> bytes:
    """As :func:`evidence` for what Headrace itself refused: the text says all, a traceback would show our code."""
    text = clean(_message(error, type(error)))[:MESSAGE_CAP]
    return error_json(JobError(type=kind or _name(type(error)), message=text, attempt=attempt, worker=worker))


def fault(error: BaseException, attempt: int, worker: str) -> bytes:
    """As :func:`evidence` for a fault of Headrace's own code in a runner: its frames are shown."""
    text, lines = "Headrace's own code failed in the runner; please report this with its traceback", ""
    with contextlib.suppress(BaseException):
        lines = clean("".join(traceback.format_exception(error)))[-TRACEBACK_CAP:]
    return error_json(JobError(type="Crashed", message=text, traceback=lines, attempt=attempt, worker=worker))


def forget(error: BaseException) -> None:
    """Take the tracebacks off an exception and all that it is linked with. An exception, its frames and their locals
    hold each other until a garbage collection; a constant that a library raises again would collect frames for ever.
    """
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        # A class may refuse even this.
        with contextlib.suppress(BaseException):
            one.__traceback__ = None
            left.extend(other for other in (one.__cause__, one.__context__, *group_members(one)) if other is not None)


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _message(error: BaseException, named: type[BaseException]) -> str:
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - __str__ is user code and may raise anything
        return f"<no text: {type(error).__name__}.__str__ raised {type(broken).__name__}>"
    if text:
        return text
    return next((unsaid for signal, unsaid in _UNSAID.items() if issubclass(named, signal)), "")


def _traceback(error: BaseException) -> str:
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
            trace = trace.tb_next
        whole = traceback.TracebackException(type(error), error, trace, limit=-_FRAMES, compact=True)
        left = [whole]
        while left:
            one = left.pop()
            one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(_OURS)]
            linked = (one.__cause__, one.__context__, *(one.exceptions or () if hasattr(one, "exceptions") else ()))
            left.extend(other for other in linked if other is not None)
        return "".join(whole.format())
    except BaseException as broken:  # noqa: BLE001 - formatting calls __str__, __repr__ and notes of user classes
        return f"<no traceback: formatting it raised {type(broken).__name__}>"


def where(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost line of the application's own code; where none is known as that, of any code but ours."""
    own: tuple[FrameType, int] | None = None
    other: tuple[FrameType, int] | None = None
    for frame, line in frames:
        path = frame.f_code.co_filename
        if not path.startswith((_PACKAGE, _LIBRARY, "<frozen ")) and not _INSTALLED.search(path):
            own = frame, line
        elif not path.startswith(_PACKAGE):
            other = frame, line
    found = own or other
    if found is None:
        return ""
    code, base = found[0].f_code, ""
    with contextlib.suppress(OSError):
        base = f"{Path.cwd()}{os.sep}"
    return f"{code.co_filename.removeprefix(base)[-_PATH:]}:{found[1]} in {code.co_name}"


def clean(text: str) -> str:
    """Text that JSON and MessagePack can carry: a lone surrogate (a file name in odd bytes) is shown escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


# Seconds between two words of progress in the long run, and how many may follow each other closely before that: the
# first few words of a job (its phases, often) must not wait for the next one, which may come much later.
PACE = 0.05
BURST = 5.0
# The ends of jobs that took less than this many nanoseconds are kept for as long, up to this many bytes, while other
# jobs follow at once: they travel together. They are sent before a job begins whose task was not as quick the last
# time: it may hold the interpreter's lock or the event loop for long, or end the process.
KEEP = 1_000_000
MOST_KEPT = 1 << 14
# One that took less than this many nanoseconds did not wait for anything: another thread would only contend with it.
TINY = 50_000
# The store keeps this many lines of a job's log, so more of one call need not travel.
LINES = 1000


class Reporter:
    """The sending side of a runner's channel; ``profiler``: what this runner found of set-up that others repeat."""

    def __init__(
        self,
        channel: Channel[ToRunner],
        gate: MainGate | None,
        *,
        measure_memory: bool,
        following: Callable[[], int] | None = None,
    ) -> None:
        """``gate``: keeps stops out of the thread that sends. While jobs are ``following``, which begin when those
        that run end, ends may be kept, and the runner calls :meth:`flush` soon.
        """
        self.profiler: StartupProfiler | None = None
        self._channel = channel
        self._gate = gate
        self._memory: Callable[[], int] = peak_resident_bytes if measure_memory else int
        # One that a thread may take again: a signal's handler or a finalizer may speak during a word of its own thread.
        # What it says follows that word, since half a frame would ruin the channel.
        self._lock = threading.RLock()
        self._amid = False
        self._words: deque[tuple[JobReporter, Note]] = deque()
        self._following = following
        # When the first of the ends that are kept was.
        self._since = 0
        # How long the last job of each task took here, nanoseconds.
        self._took: dict[str, int] = {}

    def begin(self, claim: Claim) -> int:
        """Send what is kept before a start begins, unless that will most likely end at once; returns when it begins."""
        if self._channel.full and self._took.get(claim.task, KEEP) >= KEEP:
            # Who reads the channel learns that the dispatcher is gone.
            with contextlib.suppress(Closed):
                self.flush()
        return time.monotonic_ns()

    def done(self, job_reporter: JobReporter, claim: Claim, ended: Ended, began: int) -> None:
        """Send a start's end, after all that it said. Raises Closed: the other end reads no more."""
        if self._channel.closed:
            # A job forked this process, which must neither speak nor go on as a runner.
            standard_streams.flush()
            os._exit(0 if isinstance(ended, Succeeded) else 1)
        job_reporter.over = True
        channel, number = self._channel, claim.number
        with self._lock:
            self._amid = True
            try:
                if self.profiler is not None and self.profiler.noted:
                    channel.send(self.profiler.found(number))
                if job_reporter.waiting:
                    job_reporter.waiting = False
                    channel.send(JobProgress(number, job_reporter.share, job_reporter.text, (), data=job_reporter.data))
                now = time.monotonic_ns()
                took = self._took[claim.task] = now - began
                # What did not succeed has a line in the log, which tells it: the others need not pay for it.
                memory = self._memory() or (0 if isinstance(ended, Succeeded) else peak_resident_bytes())
                done = Done(number, ended, took // 1000, memory)
                if self._following is None or took >= KEEP or not self._following():
                    channel.send(done)
                    return
                if not channel.full:
                    self._since = now
                if channel.keep(done) > MOST_KEPT or now - self._since > KEEP:
                    channel.flush(wait=True)
            finally:
                self._amid = False

    def is_tiny(self, task: str) -> bool:
        return self._took.get(task, TINY) < TINY

    def flush(self, *, wait: bool = True) -> bool:
        """Send what is kept; whether something may be left to send. Without ``wait`` not for room, nor for a thread
        that speaks: call it again soon. Raises Closed: the other end reads no more.
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

    def report(self, job_reporter: JobReporter, note: Note) -> None:
        """Send a note, or keep its progress for a later one. A dead dispatcher is not an error of the job."""
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
        waiting: ``share``, ``text`` and ``data`` are newer than what was sent.
    """

    over = False
    waiting = False
    share: float | None = None
    text = ""
    data = ""
    _left = BURST
    _last = 0.0

    def __init__(self, reporter: Reporter, number: int) -> None:
        self._reporter, self._number = reporter, number

    def __call__(self, note: Note) -> None:
        self._reporter.report(self, note)

    def take(self, note: Note, now: float) -> JobProgress | None:
        """What to send now; None: it waits for the next word or the end."""
        if note.progress is not None:
            self.share = note.progress
            self.text, self.data = clean(note.text), note.data
            self.waiting = True
        self._left = min(BURST, self._left + (now - self._last) / PACE)
        self._last = now
        if not (note.lines or note.swallowed or note.spent) and self._left < 1:
            return None
        self._left = max(0.0, self._left - 1)
        share, self.waiting = (self.share if self.waiting else None), False
        text, data = (self.text, self.data) if share is not None else ("", "")
        lines = tuple(map(clean, note.lines[-LINES:]))
        return JobProgress(self._number, share, text, lines, note.swallowed, note.spent, data)


def peak_resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
