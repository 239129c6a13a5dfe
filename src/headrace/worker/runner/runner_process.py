"""The runner: the process that runs user code and nothing else; ``process_kind``, ``thread_kind`` and ``async_kind``
run the jobs. It must not touch the store, nor decide when a limit is over or which runner gets a job.

On request it writes stacks to stderr, unnoticed by the jobs. The interpreter writes the main thread's at once, also
while C code holds its lock. Those of the other threads are written by Python code, under the lock: ``faulthandler``
without it reads frames that are gone, which ended the process with its jobs.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import gc
import logging
import math
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from headrace.app import Headrace
from headrace.context import current_job
from headrace.errors import LifespanError, NoCurrentJob
from headrace.model.form import Options
from headrace.model.hidden_values import Redactor
from headrace.model.job import Claim
from headrace.model.options import OWN
from headrace.model.stacks import stack
from headrace.tasks.app_context import of_kind
from headrace.tasks.task import Task
from headrace.worker import standard_streams, warmup
from headrace.worker.channel import Channel, Closed, give_tickets
from headrace.worker.child_process import FAULTY, NoRoom, let_fork
from headrace.worker.messages import FromRunner, Run, ToRunner, Up
from headrace.worker.own_tasks import own_tasks
from headrace.worker.runner.execute import Aperform, Perform, aperform, perform
from headrace.worker.runner.lifespans import Lifespans, reported_when_slow, starts_up
from headrace.worker.runner.process_kind import ForkServer, Process
from headrace.worker.runner.runner_context import RunnerContext, RunnerOptions, runner_context
from headrace.worker.runner.thread_kind import Threads
from headrace.worker.standard_streams import log
from headrace.worker.startup_profiler import StartupProfiler, clock_imports
from headrace.worker.warmup import Hook, HookTimeout, name_of, run_each

if TYPE_CHECKING:
    from headrace.worker.runner.async_kind import Loop

# Threads whose stacks are written at most.
MOST_THREADS = 100


def answer_stacks() -> None:
    signal.signal(signal.SIGUSR2, _write_others)
    _write_main_too()


def _write_main_too() -> None:
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=False, chain=True)


def _write_others(_number: int, _frame: FrameType | None) -> None:
    frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented
    del frames[threading.get_ident()]
    if frames:
        os.write(2, b"".join(stack(thread, frame) for thread, frame in list(frames.items())[:MOST_THREADS]))


class JobLogHandler(logging.Handler):
    """Gives each record of a running job to ``current_job().log``; others pass it by."""

    def __init__(self, level: int, redactor: Redactor) -> None:
        super().__init__(level)
        self._redactor = redactor
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == "headrace":
            return
        try:
            current_job().log(self._redactor.text(self.format(record)))
        except NoCurrentJob:
            return
        except Exception:  # noqa: BLE001 - as in any handler: a record that cannot be formatted costs no job
            self.handleError(record)


# CPython specialises code that has run eight times, and then some more for what it finds out.
TIMES = 20
_ROOM = 1000


def prepare(app: Headrace, runner_context: RunnerContext, options: RunnerOptions) -> None:
    _dry_run(app, runner_context, options)
    # What is garbage now, children must not collect.
    gc.collect()
    gc.freeze()
    # Again: what was written to since the fork has been copied in small pieces.
    warmup.join()


def _dry_run(app: Headrace, runner_context: RunnerContext, options: RunnerOptions) -> None:
    """Have a job that does nothing go the whole way of a child's job, some times. What an interpreter learns in the
    first runs of code (specialised instructions, ...) each child would learn anew, and copy a page for most of it.
    """
    task: Task[[], None, None] = Task(app.context, "headrace.dry_run", lambda: None, "fork", Options())
    runner_context = replace(runner_context, tasks={task.name: task}, middlewares=())
    args = task.signature.pack((), {}, _ROOM)
    with contextlib.ExitStack() as end:
        mine, theirs = (end.enter_context(sock) for sock in socket.socketpair())
        tickets, give = os.pipe()
        end.callback(os.close, tickets)
        end.callback(os.close, give)
        os.set_blocking(tickets, False)
        here: Channel[FromRunner] = Channel(mine, FromRunner)
        options = replace(options, channel=Channel(theirs, ToRunner), tickets=tickets)
        for number in range(1, TIMES + 1):
            give_tickets(give, 1, 0)
            here.send(Run([Claim("", number, "", 0, task.name, args, number)]))
            # No span: what is traced are the application's jobs.
            Process(runner_context, options, perform).serve()
            here.receive(wait=True)


# One kind of runner.
Work: TypeAlias = "Process | Threads | Loop"
# The part of the time for leaving that lifespans may take before exit hooks have their turn.
LIFESPANS = 0.8


def serve(app: Headrace, options: RunnerOptions) -> int:
    """Be a runner, in the main thread of a fresh fork; the exit code. The parent's ``atexit`` must not run then."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.enable(file=2)
        if not options.is_fork_server:
            answer_stacks()
    if app.job_log.level is not None:
        logging.getLogger().addHandler(JobLogHandler(app.job_log.level, Redactor.of(app.settings)))
    loop = None
    if options.kind == "async":
        import asyncio  # processes of other kinds must not pay for it

        loop = asyncio.new_event_loop()
    lifespans = Lifespans(of_kind(app.context.lifespans, options.kind), loop)
    try:
        work = _forked(app, options) if options.is_fork_server else _born(app, options, lifespans)
        if work is not None:
            work.serve()
    except (LifespanError, NoRoom) as error:
        log.error("%s: this runner is replaced", error, exc_info=error.__cause__, code="lifespan.failed")
        _write_out()
        return FAULTY
    if work is not None:
        _leave(work, app, lifespans, options.exit_deadline)
    return 0


def _forked(app: Headrace, options: RunnerOptions) -> Work | None:
    """Be a fork server. Returns in each child what it is to run; in the fork server, when it is to leave, None."""
    # Made once, before the forks; the hooks may change what the starts of a child share.
    work = _process(options, _runner_context(app, options))
    prepare(app, work.runner_context, options)
    fork_server = ForkServer(app, options, work.gate, _write_others)
    if not fork_server.run():
        _write_out()
        return None
    # The handler for the other threads is the fork server's: Python's way to set one touches sixty pages.
    _write_main_too()
    work.recalls, work.fork_server = fork_server.recalls, fork_server
    work.reporter.profiler = _settle_in(app, options.channel, Lifespans(()), profiled=fork_server.profiled)
    if app.after_fork_child_hooks:
        work.runner_context = _runner_context(app, options)
        if fork_server.count == 1:
            _send_up(options.channel)
    return work


def _born(app: Headrace, options: RunnerOptions, lifespans: Lifespans) -> Work:
    profiler = _settle_in(app, options.channel, lifespans, profiled=options.profiled)
    context = _runner_context(app, options, lifespans.state)
    if options.kind == "thread":
        work: Work = Threads(context, options, performers(context)[0])
    elif lifespans.loop is not None:
        from headrace.worker.runner.async_kind import Loop

        work = Loop(context, options, performers(context)[1], lifespans.loop)
    else:
        work = _process(options, context)
    work.reporter.profiler = profiler
    if starts_up(app, options.kind):
        _send_up(options.channel)
    if not isinstance(work, Threads):
        signal.signal(signal.SIGUSR1, work.gate.on_signal)
        # The supervisor's handler does nothing, and until here it was ours: a stop may have come already.
        work.gate.missed = True
    return work


def _runner_context(app: Headrace, options: RunnerOptions, state: Any = None) -> RunnerContext:
    context = runner_context(app, options.place, random.random, state)
    return replace(context, tasks=own_tasks(app), middlewares=()) if options.kind == OWN else context


def _process(options: RunnerOptions, context: RunnerContext) -> Process:
    # Own jobs have no span: what is traced are the application's.
    return Process(context, options, perform if options.kind == OWN else performers(context)[0])


def performers(context: RunnerContext) -> tuple[Perform, Aperform]:
    client = context.app.client
    if client.settings.traces == "off":
        return perform, aperform
    from headrace.worker.runner.traced_starts import TracedStarts  # loads OpenTelemetry

    traced = TracedStarts(client.settings, client)
    return traced.perform, traced.aperform


def _send_up(channel: Channel[ToRunner]) -> None:
    with contextlib.suppress(Closed):
        channel.send(Up())


def _settle_in(
    app: Headrace, channel: Channel[ToRunner], lifespans: Lifespans, *, profiled: bool
) -> StartupProfiler | None:
    # A job may fork (multiprocessing does), and so may a hook.
    let_fork(channel)
    warmup.reseed_numpy()
    # The warm image was made without collecting, so that its pages stay shared; what jobs leave must be collected.
    gc.enable()
    profiler = StartupProfiler({task.function for task in app.tasks.values()}) if profiled else None
    if profiler is not None:
        clock_imports(profiler.imported)
    for hook in app.after_fork_child_hooks:
        hook()
    if lifespans:
        with reported_when_slow(lifespans):
            lifespans.enter(cuts=True)
    return profiler


def _leave(work: Work, app: Headrace, lifespans: Lifespans, deadline: float) -> None:
    hooks = [*app.exit_hooks, *app.closers]
    if not (hooks or lifespans) and isinstance(work, Process):
        # Nothing of the application's can hang here, so the kernel's own watch is enough.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(deadline))
        _write_out(work.fork_server and work.fork_server.handlers)
        # No way back through the frames, each of which would cost a fork of one job some pages more.
        os._exit(0)
    # Logging and streams come last, and have a turn as well.
    hooks = [*([] if isinstance(work, Process | Threads) else [work.finish]), *hooks, _write_out]
    # A hook is cut at its share of the time; what cannot be cut, such as C code, keeps the process no longer than all.
    left = _thread.allocate_lock()
    left.acquire()
    # Not threading.Timer, which costs a fork of one job more than all else that it does to leave. Where the system has
    # no room for a thread, hooks have their turn without it.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(_watch, (left, deadline))
    ends_at = time.monotonic() + deadline
    lifespans.leave(deadline * LIFESPANS)
    run_each(hooks, max(0.1, ends_at - time.monotonic()), _failed)
    left.release()


def _failed(hook: Hook, error: BaseException, seconds: float) -> None:
    # Where stderr has no reader any more, the other hooks have their turn anyway.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if isinstance(error, HookTimeout):
            text = f"headrace: the exit hook {name_of(hook)} took more than {seconds:.2g} s and was cut\n"
            os.write(2, text.encode("utf-8", "backslashreplace"))
        else:
            traceback.print_exception(error)


def _write_out(handlers: object = None) -> None:
    """Write what is buffered; ``handlers``: if there are no others, none of them has kept anything back."""
    if handlers is None or handlers != warmup.all_handlers():
        logging.shutdown()
    standard_streams.flush()


def _watch(left: _thread.LockType, deadline: float) -> None:
    if left.acquire(timeout=deadline):
        return
    text = f"headrace: exit hooks of this runner took more than {deadline:g} s; it leaves without them\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(0)
