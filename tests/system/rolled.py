"""A parent that replaces its workers (``--reload``), their code, and a producer, for tests that roll them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil

from headrace import Headrace
from headrace.tasks.job_handle import Job
from tests.deadline import eventually
from tests.nursery import Forked
from tests.processes import below, lives
from tests.program import Program, Worker

GOOD = """
import os, time
from pathlib import Path
from headrace import Headrace

app = Headrace()
VERSION = {version}

@app.task
def nap(seconds: float) -> int:
    time.sleep(seconds)
    return VERSION

@app.task
def gate(path: str) -> int:
    Path(path + ".began").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return VERSION
"""
# Before code whose import is to wait for a file, once it has said so.
HELD = """
import os, time
open('began', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
"""
# Imported for ever, once it has said so.
STUCK = "import time\nopen('stuck', 'w').close()\ntime.sleep(600)\n"


class Rolled:
    """Workers with a parent that replaces them, their code, and a producer."""

    def __init__(self, directory: Path, url: str) -> None:
        self.program = Program(directory, url)
        self.app = Headrace(url)
        self.workers: list[Worker] = []
        self._seen: dict[int, psutil.Process] = {}
        self.code(1)

    def code(self, version: int) -> None:
        self.program.write("tasks", GOOD.format(version=version))

    def start(self, *arguments: str, ready: bool = True, reload: str = "--reload=hup", **options: Any) -> Worker:
        words = ["worker", "tasks:app", "--processes", "2", *filter(None, [reload]), *arguments]
        return self._joined(self.program.start(*words, **options), ready=ready)

    def start_by(self, *program: str, cwd: Path | None = None, after: tuple[str, ...] = ()) -> Worker:
        """A worker with one process that another program than ours starts."""
        process = subprocess.Popen(
            [*program, "worker", "tasks:app", "--processes", "1", "--reload=hup", *after],
            cwd=cwd or self.program.directory, env=self.program.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return self._joined(process)

    def _joined(self, process: subprocess.Popen[str] | Forked, *, ready: bool = True) -> Worker:
        worker = Worker(process)
        self.workers.append(worker)
        if ready:
            worker.serves()
        return worker

    def hup(self, worker: Worker) -> None:
        worker.process.send_signal(signal.SIGHUP)

    def roll(self, worker: Worker, version: int) -> int:
        """New code takes over; the pid of its image."""
        taken = len(self.claims(worker))
        self.code(version)
        self.hup(worker)
        eventually(lambda: len(self.claims(worker)) > taken, 60, what=f"another image, after {worker.lines}")
        return self.claims(worker)[-1]

    def serving(self, worker: Worker) -> int:
        """The only worker of the parent, once the others have left."""
        parent = psutil.Process(worker.process.pid)
        (pid,) = eventually(lambda: found if len(found := [child.pid for child in parent.children()]) == 1 else [], 60)
        return int(pid)

    def claims(self, worker: Worker) -> list[int]:
        """The workers that took over, in their order, from one that claims no more: for a moment both do."""
        text = "".join(list(worker.lines))
        heirs: list[tuple[str, str]] = re.findall(r"new process (\d+) is serving; old process (\d+)", text)
        return [int(heir) for heir, old in heirs if re.search(rf":{old}(:\w+)? stops claiming", text)]

    def starting(self, worker: Worker) -> int:
        """The worker that was started last."""
        worker.says("is starting")
        return int(re.findall(r"new process (\d+) is starting", "".join(list(worker.lines)))[-1])

    def enqueue(self, task: str, *args: Any) -> Job[Any]:
        return self.app.by_name(f"tasks.{task}").enqueue(*args)

    def family(self, worker: Worker) -> list[int]:
        """Everything below the parent, which is remembered."""
        self._seen |= {child.pid: child for child in below(worker.process.pid)}
        return self.living()

    def living(self) -> list[int]:
        return [pid for pid, process in self._seen.items() if lives(process)]

    def end(self) -> None:
        for worker in self.workers:
            self.family(worker)
        try:
            for worker in self.workers:
                worker.close()
        finally:
            for pid in self.living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.app.close()


def result(job: Job[Any], timeout: float = 60) -> Any:
    return job.result(timeout=timeout)
