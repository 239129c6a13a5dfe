"""The runner: the process that runs user code and nothing else.

Owns what every kind shares: becoming a runner after the fork, and leaving. :mod:`process`, :mod:`threads` and
:mod:`loops` run the jobs. Must not touch the store, nor decide when a limit is over or who gets a job.

1. make the fork a process of its own: random numbers, fault evidence, the application's hooks;
2. run what the dispatcher sends, until it says Exit or is gone;
3. leave within a deadline: exit hooks, logging, streams.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.app import Headrace
from headrace.worker.audit import Audit, clock_imports
from headrace.worker.forks import Forker, Life
from headrace.worker.gate import MainGate
from headrace.worker.hooks import Cut, Hook, name_of, run_each
from headrace.worker.loops import Loop
from headrace.worker.perform import Bench, bench
from headrace.worker.process import Process
from headrace.worker.report import Reporter
from headrace.worker.threads import Threads
from headrace.worker.warmup import reseed
from headrace.worker.wire import Channel, ToRunner


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How one runner works.

    Attributes:
        slots: jobs at once: threads or coroutines; 1 for the process and fork kinds.
        measure_memory: whether each outcome carries the peak memory of the process; one system call per job.
        place: ``host:pid`` of the worker, for errors.
        forked: when the supervisor began to fork this runner (nanoseconds of the monotonic clock) if it is to note what
            is done again in it; else 0.
        forker: be one that forks a child for each job; the fork kind only.
        exit_deadline: seconds that exit hooks and the flushing of logs and streams may take.
        settled: told once: nothing when it has settled in, else what kept it; None: nobody waits for that.
    """

    slots: int
    measure_memory: bool
    place: str
    forked: int = 0
    forker: bool = False
    exit_deadline: float = 5.0
    settled: Callable[[str], None] | None = None


class Work(Protocol):
    """One kind of runner."""

    reporter: Reporter

    @property
    def gate(self) -> MainGate | None: ...

    def serve(self) -> None: ...

    def finish(self) -> None: ...


def serve(app: Headrace, kind: str, channel: Channel[ToRunner], tickets: int, options: RunnerOptions) -> int:
    """Be a runner: run jobs until the dispatcher says Exit or is gone. Call it in the main thread of a fresh fork.

    Args:
        tickets: reading end of the ticket pipe, not blocking; only the process and fork kinds use it.

    Returns:
        the exit code for the process, which should end now, without the parent's ``atexit``.
    """
    life: Life | None = None
    if options.forker:
        life = Forker(app, channel, audited=options.forked > 0).run()
        if life is None:
            return 0
        options = replace(options, forked=life.forked, settled=options.settled if life.first else None)
    work = _begin(app, kind, channel, tickets, options, life)
    work.serve()
    if life is not None and isinstance(work, Process):
        life.leave(work.recalls, work.leaving or work.spoilt)
    _leave(work, app, options.exit_deadline)
    return 0


def _begin(
    app: Headrace, kind: str, channel: Channel[ToRunner], tickets: int, options: RunnerOptions, life: Life | None
) -> Work:
    # A job may fork (multiprocessing does), and so may a hook. Their children must not hold our channel open.
    os.register_at_fork(after_in_child=channel.close)
    with _reporting(options.settled):
        audit = _settle_in(app, options.forked)
    work = _work(kind, bench(app, options.place, random.random), channel, tickets, options, life.recalls if life else 0)
    work.reporter.audit = audit
    _admit_signals(work)
    return work


@contextlib.contextmanager
def _reporting(settled: Callable[[str], None] | None) -> Generator[None]:
    try:
        yield
    except BaseException:
        if settled is not None:
            settled(traceback.format_exc().rstrip())
        raise
    if settled is not None:
        settled("")


def _settle_in(app: Headrace, forked: int) -> Audit | None:
    """Make the fork a process of its own."""
    reseed()
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.enable(file=2)
    # The warm image was made without collecting, so that its pages stay shared; what jobs leave must be collected.
    gc.enable()
    audit = Audit(forked) if forked else None
    if audit is not None:
        clock_imports(audit.imported)
    for hook in app.after_fork_child_hooks:
        hook()
    if audit is not None:
        audit.ready()
    return audit


def _work(
    kind: str, bench: Bench, channel: Channel[ToRunner], tickets: int, options: RunnerOptions, recalls: int
) -> Work:
    slots, measure_memory = options.slots, options.measure_memory
    if kind == "thread":
        return Threads(bench, channel, slots=slots, measure_memory=measure_memory)
    if kind == "async":
        return Loop(bench, channel, measure_memory=measure_memory)
    return Process(bench, channel, tickets, once=kind == "fork", recalls=recalls, measure_memory=measure_memory)


def _admit_signals(work: Work) -> None:
    """Let stops in, and keep children of jobs from acting for us."""
    gate = work.gate
    if gate is not None:
        signal.signal(signal.SIGUSR1, gate.on_signal)
        # The supervisor's handler does nothing, and until here it was ours: a stop may have come already.
        gate.remind()

    def stray() -> None:
        work.reporter.strayed = True
        if gate is not None:
            gate.close()

    os.register_at_fork(after_in_child=stray)


def _leave(work: Work, app: Headrace, deadline: float) -> None:
    """Run exit hooks and write out what is buffered; when the deadline passes, the process ends at once."""
    # Logging and streams come last, and have a turn as well.
    hooks = [work.finish, *app.exit_hooks, *app.closers, _write_out]
    # A hook is cut at its share of the time; what cannot be cut, such as C code, keeps the process no longer than all.
    left = _thread.allocate_lock()
    left.acquire()
    # Not threading.Timer, which costs a fork of one job more than all else that it does to leave.
    _thread.start_new_thread(_watch, (left, deadline))
    run_each(hooks, deadline, _failed)
    left.release()


def _failed(hook: Hook, error: BaseException, seconds: float) -> None:
    # Where nobody reads stderr any more, the other hooks have their turn all the same.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if isinstance(error, Cut):
            text = f"headrace: the exit hook {name_of(hook)} took more than {seconds:.2g} s and was cut\n"
            os.write(2, text.encode("utf-8", "backslashreplace"))
        else:
            traceback.print_exception(error)


def _write_out() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _watch(left: _thread.LockType, deadline: float) -> None:
    if left.acquire(timeout=deadline):
        return
    text = f"headrace: exit hooks of this runner took more than {deadline:g} s; it leaves without them\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(0)
