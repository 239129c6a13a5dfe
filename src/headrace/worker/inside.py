"""A worker of a program's own, for notebooks and tests: ``with app.worker():``.

Owns the child process in which the worker's supervisor runs, from its fork to its end. The program goes on beside it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Generator
from time import monotonic
from typing import Any

from headrace.app import Headrace
from headrace.errors import HeadraceError, OptionsError
from headrace.worker.channel import Channel, Closed
from headrace.worker.forking.child_process import Terminal, fork_child
from headrace.worker.health_stamps import HealthStamps
from headrace.worker.messages import FromWorker, Serves, StartFailed, ToWorker
from headrace.worker.preload.warmup import warm_up
from headrace.worker.supervisor.supervisor_process import ParentLink, Supervisor
from headrace.worker.worker_options import WorkerOptions, parse_queues

# The worker may take this much longer (seconds) to stop than its jobs and runners.
SPARE = 30.0


@contextlib.contextmanager
def worker(app: Headrace, queues: str = "default", **sizes: int) -> Generator[int]:
    """Run a worker of this program's tasks as long as the block; yields its process id.

    It is forked from this program, so it runs what is defined so far, in a notebook too, in all kinds. Variables that
    jobs change are the worker's. Where the block ends, running jobs get ``shutdown_timeout`` seconds; what has not
    ended then returns to its queue. It stops likewise when the program ends or is killed.

    Args:
        queues: as ``headrace worker --queues`` takes them.
        sizes: fields of :class:`headrace.worker.worker_options.WorkerOptions`, such as ``threads``.

    Raises:
        OptionsError: there is no task, queue or size like this.
        HeadraceError: the worker could not start within ``reload_timeout`` seconds.
    """
    try:
        given: dict[str, Any] = {**sizes}
        options = WorkerOptions(queues=parse_queues(queues), **given)
    except TypeError as error:
        raise OptionsError(f"app.worker: {error}") from None
    if not app.tasks:
        raise OptionsError("the application has no task: define its tasks before app.worker()")
    # The private server, where it is one, is this program's too.
    app.client.url()
    mine, theirs = socket.socketpair()
    with mine:
        with theirs:
            pid = fork_child(lambda: _be_worker(app, options, theirs), [mine], tied=False)
        link: Channel[FromWorker] = Channel(mine, FromWorker)
        try:
            _await_start(link, monotonic() + app.settings.reload_timeout)
            yield pid
        finally:
            _stop(link, pid, monotonic() + app.settings.shutdown_timeout + app.settings.kill_timeout + SPARE)


def _be_worker(app: Headrace, options: WorkerOptions, link: socket.socket) -> int:
    # No Ctrl-C of the program's terminal reaches it.
    os.setsid()
    app.disconnect()
    warm_up(app)
    parent = ParentLink(Channel(link, ToWorker), "", first=True)
    return Supervisor(app, options, parent, [], HealthStamps("a program"), Terminal.of_process()).run()


def _await_start(link: Channel[FromWorker], end: float) -> None:
    while select.select([link.sock], [], [], max(0.0, end - monotonic()))[0]:
        try:
            messages = link.receive(wait=False)
        except Closed:
            raise HeadraceError("the worker ended before it was ready; its stderr says why") from None
        for message in messages:
            if isinstance(message, StartFailed):
                raise HeadraceError(f"the worker cannot start: {message.reason}")
            if isinstance(message, Serves):
                return
    raise HeadraceError("the worker was not ready in time; its stderr says what it waits for")


def _stop(link: Channel[FromWorker], pid: int, end: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    with contextlib.suppress(Closed):
        while select.select([link.sock], [], [], max(0.0, end - monotonic()))[0]:
            link.receive(wait=False)
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
