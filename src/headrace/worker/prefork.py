"""What a forker does before its first child, so that each child has less to do.

Most of what a child costs are pages: those that it is the first to touch, and those that it writes to, which are
copied. No code of the application runs here.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from headrace.app import Headrace
from headrace.context import running
from headrace.job import Claim
from headrace.options import Options
from headrace.task import Task
from headrace.worker.perform import Bench
from headrace.worker.process import Process
from headrace.worker.wire import Channel, FromRunner, Run, ToRunner, give_tickets

# CPython specialises code that has run eight times, and then some more for what it finds out.
TIMES = 20
_ROOM = 1000
# A mapping with fewer resident pages (kB) is not worth a copy of its table.
_LARGE = 200


def prepare(app: Headrace, bench: Bench, *, measure_memory: bool) -> None:
    """Make this process cheap to fork."""
    _dry_run(app, bench, measure_memory=measure_memory)
    _share_code()
    # What is garbage now, children must not collect.
    gc.collect()
    gc.freeze()


def _nothing() -> None: ...


def _dry_run(app: Headrace, bench: Bench, *, measure_memory: bool) -> None:
    """Have a job that does nothing go the whole way of a child's job, some times.

    What an interpreter learns when code runs for the first times (specialised instructions, where attributes are found)
    each child would learn anew, and copy a page for most of it.
    """
    task: Task[[], None, None] = Task(app.client, "headrace.dry_run", _nothing, "fork", Options())
    bench = replace(bench, tasks={task.name: task}, around=running)
    args = task.signature.pack((), {}, _ROOM)
    with contextlib.ExitStack() as end:
        mine, theirs = (end.enter_context(sock) for sock in socket.socketpair())
        tickets, give = os.pipe()
        end.callback(os.close, tickets)
        end.callback(os.close, give)
        os.set_blocking(tickets, False)
        here: Channel[FromRunner] = Channel(mine, FromRunner)
        there: Channel[ToRunner] = Channel(theirs, ToRunner)
        for number in range(1, TIMES + 1):
            give_tickets(give, 1, 0)
            here.send(Run([Claim("", number, "", 0, task.name, args)]))
            Process(bench, there, tickets, once=True, measure_memory=measure_memory).serve()
            here.receive(wait=True)


def _share_code() -> None:
    """Let children find the interpreter's code in their page tables, instead of faulting for each piece of it.

    Linux copies the table of a file's mapping at a fork only if a page of it was written to. So one byte of each large
    mapping is written over by itself, which a process may do to its own code by this file, as debuggers do. Where the
    kernel refuses that, nothing is lost.
    """
    with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123 - no path
        for start in _large_mappings():
            os.pwrite(memory.fileno(), os.pread(memory.fileno(), 1, start), start)


def _large_mappings() -> Iterator[int]:
    """Where files are mapped that are only read, and much of which is in memory."""
    start = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Rss:":
            if start and int(words[1]) >= _LARGE:
                yield start
        elif not words[0].endswith(":"):
            first, _, _ = words[0].partition("-")
            start = int(first, 16) if words[1] in ("r--p", "r-xp") and words[4] != "0" else 0
