"""What the demo runs on: a private server in a temporary directory and one worker, both gone when it ends.

Owns the directory, the hold on the server and the worker's process. Prints nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

import redis

from headrace import embedded
from headrace.errors import HeadraceError
from headrace.worker.health_stamps import forget_dead

# Patience with a worker that was told to stop; its jobs take well under a second each.
STOPPING = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoError(HeadraceError):
    """The demo cannot go on."""


class Worker:
    """A real ``headrace worker`` of the demo's application, in a session of its own.

    Of its own, so that Ctrl-C in the terminal reaches only the demo, which then ends the worker in order.
    """

    def __init__(self, processes: int, log: IO[bytes], path: Path) -> None:
        target = "headrace.demo.demo_tasks:app"
        command = [sys.executable, "-m", "headrace", "worker", target, "--processes", str(processes)]
        self._log = path
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, seconds: float) -> None:
        """Let this time pass; DemoError if the worker ended meanwhile, with the last lines of its log."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            raise DemoError(f"the demo's worker ended with exit code {code}; its last words:\n{self.tail()}")

    def stop(self) -> None:
        """End it in order, then by force."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(STOPPING)
        if self._process.poll() is None:
            # The dispatcher leaves, and runners die, with their supervisor.
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            # Its dispatcher outlives it for a moment, and would bring back the server to hand in what ran.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            forget_dead()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-15:]) or "    (nothing)"


class Stage:
    """The directory and the server; :meth:`worker` adds the worker.

    Attributes:
        server: name and version of the server.
    """

    def __init__(self, directory: Path, held: embedded.Embedded, end: ExitStack) -> None:
        """Use :func:`staged`."""
        self._directory = directory
        self._held = held
        self._end = end
        self.server = embedded.status(directory).version or "a private server"

    @contextmanager
    def reads(self) -> Generator[Callable[[], int]]:
        """A question to the server: how many requests it has read since it started. Each costs one of them."""
        driver: Any = redis.Redis
        with driver.from_url(self._held.url, protocol=2) as client:
            yield lambda: int(client.info("stats")["total_reads_processed"])

    def worker(self, processes: int) -> Worker:
        """Start the worker; it ends with the stage."""
        path = self._directory / "worker.log"
        log = self._end.enter_context(path.open("wb"))
        worker = Worker(processes, log, path)
        self._end.callback(worker.stop)
        return worker


@contextmanager
def staged() -> Generator[Stage]:
    """Set the stage, and clear it whatever happens: no process, socket or file of it stays.

    Points this process's own settings at the private server, and away from any that the user has set: the demo must
    not put a thousand jobs into somebody's real queue.
    """
    with ExitStack() as end:
        try:
            for number in _SIGNALS:
                end.callback(signal.signal, number, signal.getsignal(number))
            directory = Path(tempfile.mkdtemp(prefix="headrace-demo-")).resolve()
            end.callback(_remove, directory)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, _leave)
            for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
                del os.environ[name]
            os.environ["HEADRACE_DIR"] = str(directory)
            end.callback(embedded.stop, directory)
            held = end.enter_context(embedded.attach(directory, idle_timeout=0))
            yield Stage(directory, held, end)
        finally:
            # A second Ctrl-C must not leave half of the stage behind; what remains to be done is bounded.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _remove(directory: Path) -> None:
    address = embedded.status(directory).socket
    if address is not None and address.parent != directory:
        # A long TMPDIR: the socket found no room in the directory itself, and got one of its own.
        with suppress(OSError):
            address.unlink(missing_ok=True)
            address.parent.rmdir()
    shutil.rmtree(directory, ignore_errors=True)
