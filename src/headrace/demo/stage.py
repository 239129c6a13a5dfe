"""Set the stage of the demo: a private server in a temporary directory and one worker, both gone when it ends."""

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
from typing import NamedTuple, NoReturn

from headrace import embedded
from headrace.errors import HeadraceError
from headrace.worker.health_stamps import forget_dead

STOPPING = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoError(HeadraceError):
    """The demo cannot go on."""


class DemoWorker:
    """A real ``headrace worker`` in a session of its own: Ctrl-C reaches the demo alone, which ends the worker."""

    def __init__(self, directory: Path, processes: int) -> None:
        self._log = directory / "worker.log"
        command = [sys.executable, "-m", "headrace", "worker", "headrace.demo.demo_tasks:app"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--processes", str(processes)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def watch(self, seconds: float) -> None:
        """Wait; raise DemoError with the last lines of the log if the worker ended meanwhile."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
            raise DemoError(f"the demo's worker ended with exit code {code}; the end of its log:\n{self.tail()}")

    def stop(self) -> None:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(STOPPING)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            # The dispatcher outlives its supervisor for a moment, and would bring back the server to hand in outcomes.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            forget_dead()

    def tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-15:]) or "    (nothing)"


class Stage(NamedTuple):
    """The server, by its version and URL; ``worker`` starts a worker of this many process runners."""

    server: str
    url: str
    worker: Callable[[int], DemoWorker]


@contextmanager
def staged() -> Generator[Stage]:
    """Set the stage, and clear it whatever happens: no process, socket or file of it stays. It replaces the user's
    settings in this process, so that no job of the demo gets into a real queue.
    """
    with ExitStack() as end:

        def worker(processes: int) -> DemoWorker:
            started = DemoWorker(directory, processes)
            end.callback(started.stop)
            return started

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
            server = end.enter_context(embedded.attach(directory, idle_timeout=0))
            yield Stage(embedded.status(directory).version or "a private server", server.url, worker)
        finally:
            # A second Ctrl-C must not leave half of the stage behind; what remains to be done is bounded.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _remove(directory: Path) -> None:
    address = embedded.status(directory).socket
    if address is not None and address.parent != directory:
        # With a long TMPDIR the socket has a directory of its own.
        with suppress(OSError):
            address.unlink(missing_ok=True)
            address.parent.rmdir()
    shutil.rmtree(directory, ignore_errors=True)
