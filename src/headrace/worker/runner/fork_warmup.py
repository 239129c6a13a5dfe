"""What a fork server does before its first child, so that each child has less to do.

Most of what a child costs are pages: those that it is the first to touch, and those that it writes to, which are
copied. No code of the application runs here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket

from msgspec.structs import replace

from headrace.app import Headrace
from headrace.model.form import Options
from headrace.model.job import Claim
from headrace.tasks.task import Task
from headrace.worker.channel import Channel
from headrace.worker.forking import memory_mapping
from headrace.worker.messages import FromRunner, Run, ToRunner
from headrace.worker.runner.execute import perform
from headrace.worker.runner.process_kind import Process
from headrace.worker.runner.runner_context import RunnerContext, RunnerOptions
from headrace.worker.tickets import give_tickets

# CPython specialises code that has run eight times, and then some more for what it finds out.
TIMES = 20
_ROOM = 1000


def prepare(app: Headrace, runner_context: RunnerContext, options: RunnerOptions) -> None:
    _dry_run(app, runner_context, options)
    # What is garbage now, children must not collect.
    gc.collect()
    gc.freeze()
    # Again: what was written to since the fork has been copied in small pieces.
    memory_mapping.join()


def _nothing() -> None: ...


def _dry_run(app: Headrace, runner_context: RunnerContext, options: RunnerOptions) -> None:
    """Have a job that does nothing go the whole way of a child's job, some times.

    What an interpreter learns when code runs for the first times (specialised instructions, where attributes are found)
    each child would learn anew, and copy a page for most of it.
    """
    task: Task[[], None, None] = Task(app.context, "headrace.dry_run", _nothing, "fork", Options())
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
            here.send(Run([Claim("", number, "", 0, task.name, args)]))
            # No span: what is traced are the application's jobs.
            Process(runner_context, options, perform=perform).serve()
            here.receive(wait=True)
