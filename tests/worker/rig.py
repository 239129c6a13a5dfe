"""A real runner in a process of its own, with the test as its dispatcher."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace import Headrace
from headrace.model.job import Claim, JobError, parse_error
from headrace.worker.channel import Channel, Closed, give_tickets, take_back
from headrace.worker.child_process import only_wake
from headrace.worker.messages import (
    ChildCrashed,
    Done,
    Exit,
    Found,
    FromRunner,
    JobProgress,
    Recall,
    Run,
    Stop,
    ToRunner,
)
from headrace.worker.runner import runner_process
from headrace.worker.runner.runner_context import RunnerOptions
from tests.deadline import eventually
from tests.processes import where
from tests.worker import jobs

PLACE = "here:1"


def claim(token: int, task: str, *args: Any, data: bytes | None = None, options: bytes = b"", **given: int) -> Claim:
    """A claim of a task of :mod:`tests.worker.jobs`, by its short name."""
    name = task if "." in task else f"{jobs.__name__}.{task}"
    packed = msgspec.msgpack.encode((args, {})) if data is None else data
    counts = {name: given.get(name, 0) for name in ("failures", "crashes", "interruptions", "snoozes")}
    return Claim(f"id{token}", token, "default", 0, name, packed, token, options, "", once=False, **counts)


class Runner:
    """One runner; everything that it says is kept in ``said``, in order."""

    def __init__(self, kind: str = "process", slots: int = 1, app: Headrace = jobs.app, **options: Any) -> None:
        self.kind = kind
        self.said: list[JobProgress] = []
        self.found: list[Found] = []
        self.parting: list[ChildCrashed | Exit] = []
        self._done: dict[int, Done] = {}
        self.order: list[int] = []
        self.recalls = 0
        self.code: int | None = None
        self.noisy = False
        ours, theirs = socket.socketpair()
        self.ticket_read, self.ticket_write = os.pipe()
        os.set_blocking(self.ticket_read, False)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115
        # As the supervisor does: a stop that comes before its handler must not end the runner.
        before = signal.signal(signal.SIGUSR1, only_wake)
        self.pid = os.fork()
        if self.pid == 0:
            self._be(ours, theirs, app, slots, options)
        with contextlib.suppress(OSError):
            os.setpgid(self.pid, self.pid)
        signal.signal(signal.SIGUSR1, before)
        theirs.close()
        self.channel: Channel[FromRunner] = Channel(ours, FromRunner)

    def _be(
        self, ours: socket.socket, theirs: socket.socket, app: Headrace, slots: int, options: dict[str, Any]
    ) -> None:
        """What the supervisor does in its child."""
        code = 70
        try:
            # A fork server would search all that the suite has come to hold, which takes a second and more.
            gc.freeze()
            ours.close()
            os.close(self.ticket_write)
            os.setpgid(0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(self._stdout.fileno(), 1)
            os.dup2(self._stderr.fileno(), 2)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, only_wake)
            _plain_streams()
            channel, measures = Channel[ToRunner](theirs, ToRunner), options.pop("measure_memory", False)
            facts = RunnerOptions(self.kind, channel, self.ticket_read, slots, measures, PLACE, **options)
            code = runner_process.serve(app, facts)
        except BaseException:  # noqa: BLE001 - its frames are the test's own
            traceback.print_exc()
        finally:
            os._exit(code)

    # --- as the dispatcher ---

    def run(self, *claims: Claim) -> None:
        give_tickets(self.ticket_write, len(claims), self.recalls)
        self.channel.send(Run(list(claims)))

    def recall(self, most: int) -> int:
        count = take_back(self.ticket_read, most)
        if count:
            self.recalls += 1
            self.channel.send(Recall(count))
        return count

    def stop(self, token: int, reason: str = "soft", *, wake: bool = True) -> None:
        self.channel.send(Stop(token, reason))
        if wake and self.kind != "thread":
            self.wake()

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    # --- what it says ---

    def hear(self, *, timeout: float = 30) -> bool:
        """Take in what has been said, waiting for something; False when nothing came."""
        if not select.select([self.channel], [], [], timeout)[0]:
            return False
        for message in self.channel.receive(wait=False):
            if isinstance(message, Done):
                assert message.number not in self._done, f"{message.number} ended twice"
                self._done[message.number] = message
                self.order.append(message.number)
            elif isinstance(message, Found):
                self.found.append(message)
            elif isinstance(message, JobProgress):
                self.said.append(message)
            else:
                self.parting.append(message)
        return True

    def backlog(self) -> int:
        """Bytes that were said and not heard yet."""
        found = bytearray(4)
        fcntl.ioctl(self.channel.fileno(), termios.FIONREAD, found)
        return int.from_bytes(found, sys.byteorder)

    def speechless(self) -> None:
        """Wait until what it says finds no room any more."""
        sizes = [-1]

        def full() -> bool:
            sizes.append(self.backlog())
            return sizes[-1] == sizes[-2] > 0

        eventually(full, every=0.02)

    def until(self, condition: Callable[[], Any], what: str, timeout: float = 30) -> None:
        end = time.monotonic() + timeout
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"{what} did not come within {timeout} s; stderr: {self.stderr()}\n{where(self.pid)}"
            self.hear(timeout=left)

    def ended(self, *tokens: int) -> bool:
        return all(token in self._done for token in tokens)

    def done(self, token: int, timeout: float = 30) -> Done:
        self.until(lambda: token in self._done, f"the end of {token}", timeout)
        return self._done[token]

    def one(self, claim: Claim) -> Done:
        self.run(claim)
        return self.done(claim.token)

    def value(self, token: int) -> Any:
        done = self.done(token)
        assert done.ended.kind == "succeeded", error_of(done)
        return msgspec.msgpack.decode(done.ended.data)

    def started(self, *tokens: int) -> None:
        """Wait until these starts have logged ``started``."""
        self.until(
            lambda: {say.number for say in self.said if "started" in say.lines}.issuperset(tokens),
            f"the first line of {tokens}",
        )

    # --- its end ---

    def leave(self) -> int:
        self.channel.send(Exit())
        return self.wait()

    def wait(self, timeout: float = 30) -> int:
        """The exit code; negative: the signal."""
        end = time.monotonic() + timeout
        while self.code is None:
            in_time = time.monotonic() < end
            assert in_time, f"the runner did not leave within {timeout} s; stderr: {self.stderr()}\n{where(self.pid)}"
            try:
                select.select([self.channel], [], [], 0.02)
                self.hear(timeout=0)
            except (Closed, ValueError, OSError):
                pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def stderr(self) -> str:
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode()

    def stdout(self) -> str:
        return os.pread(self._stdout.fileno(), 1 << 20, 0).decode()

    def close(self) -> None:
        if self.code is None:
            # With the children of a fork server, as the supervisor does.
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.channel.close()
        os.close(self.ticket_read)
        os.close(self.ticket_write)
        self._stderr.close()
        self._stdout.close()


class Edge:
    """How long a job must run so that a stop reaches it about at its end: found out, since the machine may be busy.

    Attributes:
        seconds: for the next one.
        kinds: how often each end came.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.kinds: dict[str, int] = {}

    def learn(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.seconds = min(self.seconds * 1.2, 0.02) if kind == "succeeded" else self.seconds / 1.2


def error_of(done: Done) -> JobError:
    error = parse_error(done.ended.data)
    assert error is not None
    return error


def _plain_streams() -> None:
    """Undo pytest's capturing, which the fork inherited."""
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115


@contextlib.contextmanager
def runners() -> Iterator[Callable[..., Runner]]:
    """Makes runners and ends them. What one wrote to stderr must be what the test expects (``noisy``)."""
    made: list[Runner] = []

    def make(*args: Any, **options: Any) -> Runner:
        made.append(Runner(*args, **options))
        return made[-1]

    try:
        yield make
        for one in made:
            unexpected = one.stderr()
            assert one.noisy or not unexpected, unexpected
    finally:
        for one in made:
            one.close()
