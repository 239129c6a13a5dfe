"""How an image starts another: in which state the new one finds itself, and that no signal to it is lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from headrace.worker.lineage import HEARD

# Starts an image as a supervisor does, which hears signals by a handler of its own.
STARTS = """
import os, signal, sys
from headrace.worker.lineage import HEARD, Launch

for number in HEARD:
    signal.signal(number, lambda *_: None)
{before}
image = Launch([sys.executable, "-c", {code!r}], dict(os.environ), os.getcwd(), False, False).start(first=True)
_, status = os.waitpid(image.pid, 0)
print(os.waitstatus_to_exitcode(status), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""


def started(code: str, before: str = "") -> str:
    run = subprocess.run(
        [sys.executable, "-c", STARTS.format(code=code, before=before)],
        capture_output=True, check=True, text=True, timeout=60,
    )  # fmt: skip
    assert not run.stderr
    return run.stdout


def test_a_new_image_hears_signals_though_the_one_that_starts_it_has_blocked_them() -> None:
    blocked = "import signal; print(*signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    out = started(blocked, "signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)")
    theirs, ours = out.splitlines()
    assert not theirs
    assert ours == f"0 {sorted(HEARD)}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_between_fork_and_exec_ends_it(number: int) -> None:
    at_once = f"os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), {int(number)}))"
    assert started("print('runs')", at_once) == f"-{int(number)} []\n"
