"""The standard streams of a worker's processes: to write to them neither waits nor fails, and nothing is lost unsaid."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from tests.deadline import eventually

# Writes far more than any pipe and than what is kept, says on stdout that it could, then waits for a line.
WRITES = """
import logging, sys, time
from headrace.worker.standard_streams import KEPT, STREAMS

STREAMS.install()
logging.basicConfig(format="%(message)s", level=logging.INFO)
lines = 3 * KEPT // 100
for number in range(lines):
    sys.stderr.write(f"{{number:099}}\\n")
print("went on", flush=True)
{then}
"""
READER_IS_BACK = """
sys.stdin.readline()
while STREAMS.next != float("inf"):
    time.sleep(0.01)
    STREAMS.pass_on()
print("all told", flush=True)
sys.stdin.readline()
"""


class Ways:
    """Descriptors to write to, and how to read from the other end."""

    def __init__(self) -> None:
        self.ends = contextlib.ExitStack()

    def pipe(self) -> tuple[int, int]:
        return os.pipe()

    def socket(self) -> tuple[int, int]:
        one, other = socket.socketpair()
        return one.detach(), other.detach()

    def terminal(self) -> tuple[int, int]:
        reads, writes = pty.openpty()
        settings = termios.tcgetattr(writes)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(writes, termios.TCSANOW, settings)
        # As Ctrl-S does.
        termios.tcflow(writes, termios.TCOOFF)
        return reads, writes


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for one in made:
        one.kill()
        one.communicate()


def start(code: str, stderr: int, started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started.append(subprocess.Popen([sys.executable, "-c", code], stderr=stderr, text=True, **pipes))  # type: ignore[call-overload]
    return started[-1]


def says(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"{text}\n"


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    print(file=process.stdin, flush=True)


@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_reader_that_stops_holds_nobody_up_and_learns_what_it_missed(
    kind: str, started: list[subprocess.Popen[str]]
) -> None:
    reads, writes = getattr(Ways(), kind)()
    flags = fcntl.fcntl(writes, fcntl.F_GETFL)
    process = start(WRITES.format(then=READER_IS_BACK), writes, started)
    says(process, "went on")
    # Others who write there find it as it was.
    assert fcntl.fcntl(writes, fcntl.F_GETFL) == flags
    if kind == "terminal":
        termios.tcflow(writes, termios.TCOON)
    os.set_blocking(reads, False)
    tell(process)
    said = bytearray()

    def told() -> bool:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reads, 1 << 16):
                said.extend(data)
        return b"lines of output were dropped" in said and said.endswith(b"slow\n")

    eventually(told, 30)
    *lines, last = said.decode().splitlines()
    assert all(len(line) == 99 for line in lines)
    numbers = [int(line) for line in lines]
    assert numbers == list(range(len(numbers))), "what was kept is whole and in order"
    written = 3 * (1 << 20) // 100
    assert last == f"{written - len(numbers)} lines of output were dropped, since their reader was too slow"
    says(process, "all told")
    for end in (reads, writes):
        os.close(end)


NO_OPENING = """
import os
real = os.open

def refuse(path, *rest, **more):
    if str(path).startswith("/proc/self/fd"):
        raise PermissionError(path)
    return real(path, *rest, **more)

os.open = refuse
"""


def test_a_pipe_of_another_user_is_not_waited_for_either(started: list[subprocess.Popen[str]]) -> None:
    reads, writes = os.pipe()
    process = start(NO_OPENING + WRITES.format(then=READER_IS_BACK), writes, started)
    says(process, "went on")
    for end in (reads, writes):
        os.close(end)


def test_a_reader_that_went_away_ends_nothing(started: list[subprocess.Popen[str]]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    process = start(WRITES.format(then="print('goes on', flush=True)"), writes, started)
    os.close(writes)
    says(process, "went on")
    says(process, "goes on")
    assert process.wait(20) == 0


def test_a_forked_child_writes_nothing_of_its_parents(started: list[subprocess.Popen[str]]) -> None:
    reads, writes = os.pipe()
    then = """
import os
from headrace.worker.standard_streams import PATIENCE
pid = os.fork()
if not pid:
    STREAMS.pass_on()
    os._exit(0 if STREAMS.next == float("inf") else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    process = start(WRITES.format(then=then), writes, started)
    says(process, "went on")
    says(process, "0")
    os.close(writes)
    os.close(reads)


def test_a_child_writes_though_a_thread_of_its_parent_waited_for_the_reader(
    started: list[subprocess.Popen[str]],
) -> None:
    reads, writes = os.pipe()
    code = """
import os, sys
from headrace.worker.standard_streams import STREAMS

STREAMS.install()
STREAMS.be_patient()
# As a thread does that waits in a write.
sys.stderr.buffer._lock.acquire()
if not os.fork():
    os.write(2, b"begun ")
    sys.stderr.buffer.write(b"written")
    os._exit(0)
"""
    process = start(code, writes, started)
    os.close(writes)
    assert process.wait(20) == 0
    with os.fdopen(reads, "rb") as stream:
        os.set_blocking(reads, False)
        said = bytearray()

        def told() -> bool:
            said.extend(stream.read() or b"")
            return said == b"begun written"

        eventually(told)


def test_in_a_runner_to_write_waits_for_the_reader_as_in_any_program(started: list[subprocess.Popen[str]]) -> None:
    reads, writes = os.pipe()
    code = WRITES.replace("STREAMS.install()", "STREAMS.install(); STREAMS.be_patient()").format(then="")
    process = start(code, writes, started)
    os.close(writes)
    with os.fdopen(reads, "rb") as stream:
        lines = stream.read().splitlines()
    says(process, "went on")
    assert [int(line) for line in lines] == list(range(3 * (1 << 20) // 100))


def test_one_that_ends_waits_a_moment_for_its_reader_and_no_longer(started: list[subprocess.Popen[str]]) -> None:
    reads, writes = os.pipe()
    process = start(WRITES.format(then="STREAMS.drain(0.05)\nimport os\nos._exit(3)"), writes, started)
    assert process.wait(30) == 3
    os.close(writes)
    os.close(reads)


PATIENT = """
import sys
from headrace.worker.standard_streams import STREAMS

STREAMS.install()
STREAMS.be_patient()
for number in range(10_000):
    sys.stderr.write(f"{number:099}\\n")
sys.stderr.flush()
"""


def test_a_job_waits_for_room_where_somebody_made_its_stream_one_that_does_not_wait(
    started: list[subprocess.Popen[str]],
) -> None:
    reads, writes = os.pipe()
    # As a parent does that serves its end with an event loop: the open file is shared, and so is this.
    os.set_blocking(writes, False)
    process = start(PATIENT, writes, started)
    os.close(writes)
    eventually(lambda: select.select([reads], [], [], 0)[0], 30)
    said = bytearray()
    while data := os.read(reads, 4096):
        said += data
    os.close(reads)
    assert process.wait(30) == 0
    assert said.decode().splitlines() == [f"{number:099}" for number in range(10_000)]


INTERRUPTED = """
import signal, sys
from headrace.worker.standard_streams import STREAMS

STREAMS.install()
STREAMS.be_patient()
signal.signal(signal.SIGALRM, lambda *_: sys.stderr.write("alarmed\\n"))
print("ready", flush=True)
for number in range(10_000):
    sys.stderr.write(f"{number:099}\\n")
"""


def test_a_handler_of_a_signal_may_print_amid_what_its_thread_prints(started: list[subprocess.Popen[str]]) -> None:
    """It waited for ever for the lock that its own thread held."""
    reads, writes = os.pipe()
    process = start(INTERRUPTED, writes, started)
    says(process, "ready")
    eventually(lambda: not select.select([], [writes], [], 0)[1], 30)
    os.close(writes)
    process.send_signal(signal.SIGALRM)
    with os.fdopen(reads, "rb") as stream:
        assert stream.read().count(b"alarmed") == 1
    assert process.wait(30) == 0
