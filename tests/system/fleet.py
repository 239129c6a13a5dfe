"""Real workers for tests: started as programs of their own, taken apart role by role, always ended.

Owns the processes that it starts and waits on what they announce in the store and in the ledger. Kills by process id
only, and only processes that it found below a worker of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import redis

from headrace import Headrace
from headrace.model.job_record import Record
from headrace.store.connection import driver_client
from headrace.tasks.job_handle import Job
from headrace.testing import assert_invariants
from tests.deadline import eventually
from tests.nursery import nursery_of
from tests.processes import below, dispatcher_of, group_of, lives
from tests.servers import Server, connect
from tests.system.ledger import VARIABLE, Ledger

PATIENCE = 60.0
KINDS = ("process", "fork", "thread", "async")
ALL = ",".join(KINDS)
LEASE = 3.0
"""A worker that gets no processor for half of it stops its jobs. So where none waits for its end it may be long."""
LONG_LEASE = 60.0


class Worker:
    """One worker: a supervisor, its dispatcher and runners.

    Attributes:
        place: what it calls itself in the store, ``host:pid``.
        errors: the file that its stderr goes to.
    """

    def __init__(self, environ: dict[str, str], errors: Path) -> None:
        self.errors = errors
        with errors.open("ab") as err:
            self.process = nursery_of(environ).start("tests.system.station", environ, stderr=err)
        self.pid = self.process.pid
        self.place = f"{socket.gethostname()}:{self.pid}"
        self._seen: dict[int, psutil.Process] = {}

    def __repr__(self) -> str:
        return f"<Worker {self.pid}, its stderr ends: {self.log()[-3000:]}>"

    def log(self) -> str:
        return self.errors.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def _below(self) -> list[psutil.Process]:
        found = below(self.pid)
        self._seen |= {child.pid: child for child in found}
        return found

    def dispatcher(self) -> int:
        """The process id of the living dispatcher."""
        return eventually(lambda: dispatcher_of(self.pid), PATIENCE, what=f"a dispatcher of {self!r}").pid

    def runners(self) -> list[int]:
        """The process ids of the living runners."""
        found = below(self.pid, recursive=False) if self.alive else []
        return [child.pid for child in found if group_of(child.pid) == child.pid]

    def everyone(self) -> list[int]:
        """All processes of this worker, what jobs started included."""
        return [self.pid, *(child.pid for child in self._below())]

    def descendants_left(self) -> list[int]:
        """Which of the processes ever seen below it still live (as themselves, not as reused numbers)."""
        return [pid for pid, child in self._seen.items() if lives(child)]

    def kill(self, role: str) -> None:
        """SIGKILL the ``runner`` s, the ``dispatcher``, the ``supervisor`` or the whole ``worker``."""
        self._below()
        if role == "runner":
            pids = self.runners()
        elif role == "dispatcher":
            pids = [self.dispatcher()]
        elif role == "supervisor":
            pids = [self.pid]
        else:
            # Stopped first, so that nobody has the time to react to the death of another: as a power cut.
            pids = self.stop_all()
        assert pids, f"no {role} lives"
        send(pids, signal.SIGKILL)
        if self.pid in pids:
            self.process.wait(PATIENCE)

    def stop_all(self) -> list[int]:
        """SIGSTOP every process; which those were."""
        pids = self.everyone()
        send(pids, signal.SIGSTOP)
        return pids

    def terminate(self) -> None:
        self._below()
        self.process.terminate()

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, when it has ended and nothing of it is left."""
        code = self.process.wait(timeout)
        eventually(lambda: not self.descendants_left(), PATIENCE, what=f"nothing is left of {self!r}")
        return code

    def end(self) -> None:
        """However it stands: gone when this returns."""
        self._below()
        if self.alive:
            send(self.everyone(), signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                send(self.stop_all(), signal.SIGKILL)
                self.process.wait(PATIENCE)
        send(self.descendants_left(), signal.SIGKILL)


class Fleet:
    """A store of one shard, or of several on a cluster; the workers on it, their ledger, and a producer.

    Attributes:
        app: knows no task: jobs are enqueued by name.
        ledger: what the jobs did.
        forgetful: the server forgets claims, so that a start which it forgot may begin after the next one.
    """

    def __init__(self, url: str, directory: Path, **settings: Any) -> None:
        self.url = url
        self.directory = directory
        self.settings = {"lease": LEASE, "shutdown_timeout": 10.0, "kill_timeout": 1.5, **settings}
        self.ledger = Ledger(directory / "ledger")
        self.forgetful = False
        self.workers: list[Worker] = []
        self.app = Headrace(url, **self.settings)

    def worker(
        self, *, kinds: str = "process", ready: bool = True, url: str = "", environ: dict[str, str] | None = None,
        settings: dict[str, Any] | None = None, **options: Any,
    ) -> Worker:  # fmt: skip
        """Start a worker; with ``ready``, return when it has registered and has all its runners.

        Args:
            kinds: of tasks that it knows, separated by commas.
            options: of ``WorkerOptions``; ``queues`` as the command line takes it.
        """
        options = {"processes": 1, "forks": 1, "threads": 3, "concurrency": 4, **options}
        values = {**self.settings, **(settings or {}), "url": url or self.url}
        mine = {f"HEADRACE_{name.upper()}": str(value) for name, value in values.items()}
        mine |= {VARIABLE: str(self.ledger.path), "HR_KINDS": kinds, "HR_OPTIONS": json.dumps(options)}
        errors = self.directory / f"worker-{len(self.workers)}.log"
        worker = Worker({**os.environ, **mine, **(environ or {})}, errors)
        self.workers.append(worker)
        if ready:
            counts = {"process": options["processes"], "fork": options["forks"], "thread": 1, "async": 1}
            wanted = sum(counts[kind] for kind in kinds.split(","))
            self.until(lambda: self.registered(worker) and len(worker.runners()) >= wanted)
        return worker

    def registered(self, worker: Worker) -> bool:
        """Whether it is known, and hears what it is told, which comes a moment later."""
        assert worker.alive, f"it ended: {worker!r}"
        owners = [seen.owner for seen in self.app.overview().workers if seen.metadata.get("place") == worker.place]
        client: redis.Redis
        with connect(self.url.partition("?shards")[0]) as client:
            return any(client.pubsub_numsub(self.app.client.keys.mail(owner))[0][1] for owner in owners)

    def kill_each_role(self, every: int) -> None:
        """Two workers run what there is; each time that so many jobs more have ended, one of them dies, in each role."""
        # What a whole worker held comes back when its lease is over.
        self.settings["lease"] = LEASE
        workers = [self.worker(processes=2) for _ in range(2)]
        for number, role in enumerate(("runner", "worker", "dispatcher", "supervisor"), 1):
            self.until(lambda wanted=every * number: len(self.ledger.ends()) >= wanted)
            worker = workers.pop(0)
            worker.kill(role)
            workers.append(self.worker(processes=2) if role in ("supervisor", "worker") else worker)

    def enqueue(self, task: str, *args: Any, **options: Any) -> Job[Any]:
        return self.app.by_name(task, **options).enqueue(*args)

    def enqueue_many(self, task: str, arguments: list[tuple[Any, ...]], **options: Any) -> list[Job[Any]]:
        bound = self.app.by_name(task, **options)
        drafts = [bound.job(*args) for args in arguments]
        assert self.app.enqueue_many(drafts) == len(drafts)
        return [draft.handle for draft in drafts]

    def started(self, job: Job[Any], times: int = 1, timeout: float = PATIENCE) -> None:
        """Wait until the job's code has begun so many times."""
        self.until(lambda: len(self.ledger.starts(job.id)) >= times, timeout)

    def ended(self, job: Job[Any], timeout: float = PATIENCE) -> Record:
        """The record of the job when it has ended."""
        self.until(lambda: job.state.final, timeout)
        return job.refresh()

    def until(self, condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
        """Wait; a failure shows what the workers said."""
        try:
            return eventually(condition, timeout)
        except AssertionError as error:
            error.add_note(repr(self))
            raise

    def drained(self, timeout: float = PATIENCE) -> None:
        """Wait until nothing waits and nothing runs."""
        live = ("scheduled", "ready", "running")
        left = dict[str, int]()

        def over() -> bool:
            states = self.app.overview().states
            left.update({state: states.get(state, 0) for state in live})
            # A shard that is away tells nothing.
            return not any(left.values()) and not self.app.client.left_out

        try:
            self.until(over, timeout)
        except AssertionError as error:
            error.add_note(f"left: {left}")
            raise

    def check(self, namespace: str = "hr") -> None:
        """What holds after every scenario."""
        parts = self.app.store.parts
        for part in parts:
            client: redis.Redis = connect(self.url) if len(parts) == 1 else driver_client(part.target, PATIENCE)
            with contextlib.closing(client):
                assert_invariants(client, namespace)
        assert self.forgetful or self.ledger.tokens_grow()

    def end(self) -> None:
        for worker in self.workers:
            worker.end()
        self.app.close()

    def __repr__(self) -> str:
        return "\n".join(repr(worker) for worker in self.workers) or "<no worker>"


NewFleet = Callable[..., Fleet]
NewServer = Callable[..., Server]


def send(pids: list[int], number: int) -> None:
    """Signal processes; those that are gone do not matter. Those that are to stop have stopped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    for pid in pids if number == signal.SIGSTOP else ():
        # One that waits to be scheduled may read what comes meanwhile.
        eventually(lambda pid=pid: not lives(pid) or psutil.Process(pid).status() == psutil.STATUS_STOPPED, PATIENCE)
